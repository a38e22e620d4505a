"""A run on a Kubernetes cluster that people have: `render` writes its manifests, and asks no cluster."""

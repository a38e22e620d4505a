"""A run on a Kubernetes cluster that a user has: `render` writes its manifests, and calls no cluster."""

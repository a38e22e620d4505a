"""Runs on a user's own Kubernetes cluster: `render` writes the manifests, and calls no cluster."""

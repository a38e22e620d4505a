"""Runs on several instances: rendezvous, submitted jobs, manifests for Kubernetes."""

"""Runs on several instances: who meets whom, submitted jobs, manifests for Kubernetes."""

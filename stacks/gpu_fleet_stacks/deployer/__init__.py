"""Permissions of a stack's deployer: policy documents, from the resources that its program registers."""

"""Preflight: ask a cloud, before an ``up``, whether it has capacity for everything in a stack."""

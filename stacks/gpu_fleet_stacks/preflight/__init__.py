"""Preflight: ask a cloud, before an ``up``, whether it has room for everything in a stack."""

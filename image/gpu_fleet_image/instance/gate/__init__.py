"""The gate: compares an instance with its stack's expectations before anyone trains on it."""

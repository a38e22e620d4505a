"""The gate: holds an instance against what its stack expects, before anyone trains on it."""

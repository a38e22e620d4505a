"""The gate: holds a machine against what its stack expects, before anyone trains on it."""

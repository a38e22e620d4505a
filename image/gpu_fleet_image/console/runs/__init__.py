"""Runs on instances without a queue: submitted from a laptop, started as the caller's own account."""

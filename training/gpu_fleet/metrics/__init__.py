"""Measurements of a run, and the writers that record them."""

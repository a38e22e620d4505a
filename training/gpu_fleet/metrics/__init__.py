"""Measurements of a run: writers.py says where they go."""

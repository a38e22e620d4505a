"""Releases of gpu-fleet: the one that runs here, and what a deployed stack sees of each."""

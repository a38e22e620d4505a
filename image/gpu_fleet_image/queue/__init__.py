"""Slurm on a stack with ``queue: slurm``: its configuration, its controller's watch, and how nodes join."""

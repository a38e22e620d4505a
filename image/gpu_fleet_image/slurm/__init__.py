"""Slurm on a stack with ``queue: slurm``: its configuration, the controller's watch, and joining nodes."""

"""Ways in which the processes of a run share a model."""

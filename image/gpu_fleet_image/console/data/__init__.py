"""``gpu-fleet data``: files between a computer and the stack's data bucket."""

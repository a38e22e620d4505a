"""``gpu-fleet new``: answers in, the text of a checked stack file out."""

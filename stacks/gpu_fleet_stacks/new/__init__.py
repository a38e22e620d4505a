"""``gpu-fleet new``: from answers to the text of a checked stack file."""

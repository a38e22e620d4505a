"""What to pick: the memory and arithmetic that a training run needs, and what finishes it for least."""

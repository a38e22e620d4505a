"""The scheduled sweep: what it reads, what it decides (pure), and what it does about it."""

"""Controller of a stack's image builds: a function that retries, promotes, and reports problems."""

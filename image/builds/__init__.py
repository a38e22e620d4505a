"""The keeper of a stack's image builds: a function that tries again, promotes, and says what is wrong."""

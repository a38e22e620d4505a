"""Lowest floor of the trainer, on which all rooms stand: configuration, errors, exit codes, ranks, files."""

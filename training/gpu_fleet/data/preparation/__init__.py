"""The `prepare` commands, one module for each kind of data."""

"""Exceptions, names and tags, files written whole, tables for a terminal: what every room may use."""

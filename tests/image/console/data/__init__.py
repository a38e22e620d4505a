"""Tests of runs without a queue: submitted by the console, started by the stack's own document."""

"""Submitted runs: packed on the user's computer, executed on instances by the unit gpu-run@."""

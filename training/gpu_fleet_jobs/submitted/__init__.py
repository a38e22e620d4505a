"""Runs that a user submits from elsewhere: packed there, worked through here by the unit gpu-run@."""

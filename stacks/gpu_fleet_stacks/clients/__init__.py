"""Clients of the clouds' APIs: one method for a call, and one sentence for every failure."""

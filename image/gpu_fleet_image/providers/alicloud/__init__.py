"""Alibaba Cloud, as sweep and agent need it; the same files and functions as ``aws/`` where it has the like.

In: calls in this room's words. Out: answers in this room's words (``model.py``).
"""

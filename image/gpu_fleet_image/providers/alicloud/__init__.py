"""Alibaba Cloud for sweep and agent: the same files and functions as ``aws/``, if it has the service.

It takes and returns the types of ``core/model.py``.
"""

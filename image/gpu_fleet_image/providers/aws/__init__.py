"""AWS for sweep and agent (``core/cloud.py``, ``instance/agent/cloud.py``).

It takes and returns the types of ``core/model.py``.
"""

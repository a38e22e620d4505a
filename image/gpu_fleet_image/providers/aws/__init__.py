"""AWS, as sweep and agent need it (``cloud.py``, ``agent/cloud.py``).

In: calls in this room's words. Out: answers in this room's words (``model.py``).
"""

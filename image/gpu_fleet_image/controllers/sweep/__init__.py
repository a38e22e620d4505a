"""The sweep, which the stack runs every ten minutes. It alone stops and terminates instances.

In: the fleet, heartbeats, words of instances, the policy, the lease's memory. Out: marks, decisions to end,
ends, notifications, the ledger, metrics. ``sweep.py`` is one sweep, ``verdict.py`` what it decides,
``carry_out.py`` what it does.
"""

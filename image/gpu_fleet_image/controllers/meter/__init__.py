"""Costs of the stack.

They read fleet and prices, sweep by sweep, and write the month's meter, freezes of training pools, and the
daily report.
"""

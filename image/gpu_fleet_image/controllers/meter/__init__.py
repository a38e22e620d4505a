"""What the stack costs.

In: fleet and prices, sweep by sweep. Out: the month's meter, freezes of training pools, the daily report.
"""

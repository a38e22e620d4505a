"""What the agent looks at: use of the machine or of one process tree, and the process table.

A sensor is a class with one ``read`` that returns plain values of ``sample.py`` or raises ``SensorError``.
"""

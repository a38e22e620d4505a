"""What the agent looks at, in the plain values of ``reading.py``; ``poll.py`` reads every sensor.

In: the kernel's counters and process table, terminals, NVML, Jupyter's API, a command of the stack's. Out: a
``Reading``, which ``judge.py`` judges. A sensor that fails raises ``SensorError``: unknown, never idle.
"""

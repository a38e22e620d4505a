"""What the agent looks at, in the plain values of ``reading.py``; ``poll.py`` reads every sensor.

They read the kernel's counters and process table, terminals, NVML, Jupyter's API, and a command of the stack.
Each look is a ``Reading``, which ``judge.py`` judges. A sensor that fails raises ``SensorError``: unknown,
never idle.
"""

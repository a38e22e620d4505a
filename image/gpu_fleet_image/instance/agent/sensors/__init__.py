"""The agent's sensors, in the plain values of ``reading.py``; ``poll.py`` reads all of them.

They read the kernel's counters and process table, terminals, NVML, Jupyter's API, and a command of the stack.
Each look is a ``Reading``, which ``idle_detection.py`` judges. A sensor that fails raises ``SensorError``:
unknown, never idle.
"""

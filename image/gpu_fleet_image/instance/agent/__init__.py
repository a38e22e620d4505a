"""The program on each instance.

In: sensors, the metadata service, the sweep's mark and decision. Out: a heartbeat every minute,
``activity.json``, words for a mark, copies of /scratch/keep. ``command.py`` puts it together; ``loop.py`` is
its minute, ``listening.py`` what else it listens to.
"""

"""The agent of each instance.

It reads sensors, the metadata service, the sweep's mark and decision. It publishes a heartbeat every minute,
``activity.json``, replies to a mark, and copies of /scratch/keep. ``command.py`` assembles it; ``loop.py``
judges each minute, ``listening.py`` handles notices and marks.
"""

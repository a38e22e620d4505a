"""Progress of a bake, past pytest's capture: it takes minutes."""

import os


def report(part):
    """Say what the bake is at."""
    os.write(2, f"\nevent=bake part={part}".encode())

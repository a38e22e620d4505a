"""What holds for every test."""

from hypothesis import settings

# Timing depends on the machine, so no deadline. The same examples in every run, so that a change is judged by
# what it changed; `make bench` plays new ones.
settings.register_profile("gpu-fleet", deadline=None, derandomize=True)
settings.load_profile("gpu-fleet")

"""``python -m image.reaper`` is ``gpu-reaper``."""

from image.reaper.cli import main

main()

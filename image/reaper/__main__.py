"""``python -m image.reaper`` is ``gpu-fleet``, by the name that units and older scripts know."""

from image.console.cli import main

main(prog_name="gpu-fleet")

"""``python -m gpu_fleet_image.reaper`` is ``gpu-fleet``, by the name that units and older scripts know."""

from gpu_fleet_image.console.cli import main

main(prog_name="gpu-fleet")

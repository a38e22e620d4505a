"""``python -m gpu_fleet_image.console``, the same as ``gpu-fleet``."""

from gpu_fleet_image.console.cli import main

main(prog_name="gpu-fleet")

"""``python -m image.console`` is ``gpu-fleet``."""

from image.console.cli import main

main(prog_name="gpu-fleet")

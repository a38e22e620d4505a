"""``gpu-fleet``, and ``python -m gpu_fleet_image.console``, the same."""

import sys

from gpu_fleet_image.console import INTERRUPTED


def main() -> None:
    """Run the command line; Ctrl-C ends it in one word, also while Python still loads it."""
    try:
        from gpu_fleet_image.console.cli import main as console  # noqa: PLC0415 - Ctrl-C in it is caught here

        console(prog_name="gpu-fleet")
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()

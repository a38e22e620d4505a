"""`python -m gpu_fleet` is `gpu-fleet train`; the commands live in gpu_fleet.cli."""

import os
import sys

from gpu_fleet.errors import MissingPackageError


def leave(status: object) -> None:
    """Ends the process at once where an upload that was given up for a newer one hangs in a socket.

    Python would wait for it, minutes on end, with all that counts in the bucket.
    """
    if "gpu_fleet.checkpoint.saver" not in sys.modules:
        return
    from gpu_fleet.checkpoint.saver import left_behind  # noqa: PLC0415 - seconds that --help need not pay

    if left_behind() and isinstance(status, int | None):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


if __name__ == "__main__":
    try:
        from gpu_fleet.cli import main
    except ModuleNotFoundError as error:
        missing = MissingPackageError(f"needs the Python package {error.name}, which is not here")
        sys.stderr.write(f"error: {missing}; the extra brings it: pip install '/path/to/gpu-fleet[train]'\n")
        sys.exit(missing.exit_status)
    try:
        main(prog_name="gpu-fleet train")
    except SystemExit as end:
        leave(end.code)
        raise

"""`python -m gpu_fleet` is `gpu-fleet train`; gpu_fleet.cli has the commands."""

import sys

from gpu_fleet.core import ctrl_c
from gpu_fleet.core.errors import MissingPackageError


def leave(status: object) -> None:
    """End the process at once if an upload that was abandoned for a newer one hangs in a socket.

    Python would wait minutes for its thread, although the newer checkpoint is in the bucket.
    """
    if "gpu_fleet.checkpoint.uploader" not in sys.modules:
        return
    from gpu_fleet.checkpoint.uploader import left_behind  # noqa: PLC0415 - seconds, not needed for --help
    from gpu_fleet.core.outcome import leave_at_once  # noqa: PLC0415 - as above

    if left_behind() and isinstance(status, int | None):
        leave_at_once(status or 0)


if __name__ == "__main__":
    try:
        with ctrl_c.ends_the_process():
            from gpu_fleet.cli import main
    except ModuleNotFoundError as error:
        missing = MissingPackageError.of(error.name)
        sys.stderr.write(f"error: {missing}\n")
        sys.exit(missing.exit_status)
    try:
        main(prog_name="gpu-fleet train")
    except SystemExit as end:
        leave(end.code)
        raise

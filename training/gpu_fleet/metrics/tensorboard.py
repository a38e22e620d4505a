"""TensorBoard: every number of a record as a curve over the steps.

tensorboardX writes the same event files with numpy and protobuf alone. The SummaryWriter of torch needs the
package tensorboard, and with it a web server and gRPC on every training instance. To look at the curves,
`pip install tensorboard` on a laptop is enough.
"""

from pathlib import Path

from gpu_fleet.metrics.records import Record

FOLDER = "tensorboard"
NOT_CURVES = {"step"}


class TensorBoard:
    """Writer of event files in a folder; a resumed run adds a file, and TensorBoard shows them as one."""

    def __init__(self, folder: Path) -> None:
        """Open an event file; raises OSError if the folder cannot be written."""
        from tensorboardX import (  # type: ignore[import-untyped]  # noqa: PLC0415 - untyped, a second to load
            SummaryWriter,
        )

        self._writer = SummaryWriter(logdir=str(folder), flush_secs=10)

    def write(self, record: Record) -> None:
        step = int(record["step"])
        for name, value in record.items():
            if name not in NOT_CURVES and isinstance(value, int | float):
                self._writer.add_scalar(f"{record['kind']}/{name}", float(value), step)

    def close(self) -> None:
        self._writer.close()

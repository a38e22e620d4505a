"""``python -m gpu_fleet_image.instance.gate.copies COUNT``.

Copies inside each GPU's memory, with the trainer's torch.

Prints one JSON list: for each GPU its speed in GiB/s, null if nothing was measured, and why CUDA failed.
"""

import json
import sys
from typing import Any

GIB = 2**30
_COPY_BYTES = 2**28
_COPIES = 20


def copied(index: int) -> tuple[float | None, str]:
    """Return the speed of a copy, and the first line of CUDA's error if there was none."""
    try:
        return _copy_speed(index), ""
    except RuntimeError as error:
        return None, str(error).partition("\n")[0]


def _copy_speed(index: int) -> float | None:
    """Return GiB/s read and written by copies inside one GPU's memory; None for a GPU that torch lacks.

    A torch without CUDA sees no GPU, and only the first part of an instance with MIG. If CUDA cannot be
    initialized, torch counts no GPU either, and gives the reason when it is used.

    Raises:
        RuntimeError: CUDA's own error.
    """
    import torch  # noqa: PLC0415 - seconds of loading, only where there is a GPU

    if torch.version.cuda is None or 0 < torch.cuda.device_count() <= index:
        return None
    with torch.cuda.device(index):
        source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        target.copy_(source)
        begin, end = _event(torch), _event(torch)
        begin.record()
        for _ in range(_COPIES):
            target.copy_(source)
        end.record()
        end.synchronize()
        seconds = float(begin.elapsed_time(end)) / 1000
    return 2 * _COPIES * _COPY_BYTES / GIB / seconds


def _event(torch: Any) -> Any:
    return torch.cuda.Event(enable_timing=True)


def main() -> None:
    """Measure as many GPUs as the argument says."""
    sys.stdout.write(json.dumps([copied(index) for index in range(int(sys.argv[1]))]) + "\n")


if __name__ == "__main__":
    main()

"""``torchrun -m gpu_fleet_image.instance.gate.all_reduce BACKEND``.

Every rank adds its number to those of all others.

With ``nccl`` each rank has a GPU of its own. ``gloo`` is for an instance with a single GPU, which NCCL
accepts in one rank only.
"""

import sys
from datetime import timedelta

_ELEMENTS = 2**22  # 16 MiB: more than NCCL sends in one piece
TIMEOUT = timedelta(minutes=2)


def wrong(backend: str) -> int:
    """Return how many elements of the sum are wrong.

    Raises:
        RuntimeError: the backend's own error.
    """
    import torch  # noqa: PLC0415 - seconds of loading
    from torch import distributed  # noqa: PLC0415 - as above

    distributed.init_process_group(backend, timeout=TIMEOUT)
    try:
        rank, size = distributed.get_rank(), distributed.get_world_size()
        gpu = f"cuda:{rank if backend == 'nccl' else 0}"
        if backend == "nccl":
            torch.cuda.set_device(gpu)
        values = torch.full((_ELEMENTS,), float(rank + 1), device=gpu if torch.cuda.is_available() else "cpu")
        distributed.all_reduce(values)
        return int((values != size * (size + 1) / 2).sum().item())
    finally:
        distributed.destroy_process_group()


def main() -> None:
    """Exit with status 1 if a sum is wrong."""
    (backend,) = sys.argv[1:]
    if odd := wrong(backend):
        sys.exit(f"all-reduce by {backend}: {odd} of {_ELEMENTS} elements are wrong")


if __name__ == "__main__":
    main()

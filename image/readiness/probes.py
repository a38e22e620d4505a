"""Looks at the machine: NVML, the kernel's log, /sys."""

import subprocess
from pathlib import Path
from typing import Any

from image.readiness.checks import Gpu, Seen

GIB = 2**30
INFINIBAND = Path("/sys/class/infiniband")
COPY_BYTES = 2**28
COPIES = 20


def look(nvml: Any, infiniband: Path = INFINIBAND) -> Seen:
    """One look at everything.

    Args:
        nvml: the module ``pynvml``, or something that speaks like it.
        infiniband: where RDMA devices are listed.
    """
    gpus, problem = _gpus(nvml)
    drivers = [_driver(device) for device in sorted(infiniband.glob("*"))]
    return Seen(
        gpus=gpus,
        efa_interfaces=drivers.count("efa"),
        erdma_interfaces=drivers.count("erdma"),
        kernel_log=_kernel_log(),
        driver_problem=problem,
    )


def _gpus(nvml: Any) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, and why there are none when the driver does not answer."""
    try:
        nvml.nvmlInit()
        try:
            return tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())), ""
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return (), str(error)


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    errors = _ask(
        nvml,
        lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    )
    states = [
        _ask(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkState(handle, link)) for link in _links(nvml)
    ]
    copied, cuda_problem = _copied(index)
    return Gpu(
        name=f"{index} ({nvml.nvmlDeviceGetPciInfo(handle).busId})",
        memory_gib=nvml.nvmlDeviceGetMemoryInfo(handle).total / GIB,
        uncorrected_ecc_errors=errors,
        inactive_nvlinks=states.count(nvml.NVML_FEATURE_DISABLED),
        copy_gib_per_s=copied,
        cuda_problem=cuda_problem,
    )


def _copied(index: int) -> tuple[float | None, str]:
    """The speed of a copy, and why there was none where CUDA failed; torch's words go over many lines."""
    try:
        return copy_speed(index), ""
    except RuntimeError as error:
        return None, str(error).partition("\n")[0]


def _links(nvml: Any) -> range:
    return range(nvml.NVML_NVLINK_MAX_LINKS)


def _ask(nvml: Any, call: Any) -> Any:
    """An answer, or None where the GPU has no such thing; an error of another kind is the caller's."""
    try:
        return call()
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_INVALID_ARGUMENT):
            return None
        raise


def copy_speed(index: int) -> float | None:
    """GiB/s read and written by copies inside one GPU's memory; None for what this torch does not see.

    A torch without CUDA sees no GPU, and of a machine cut by MIG only the first piece. Where CUDA cannot be
    initialized torch counts no GPU either, and says why when it is used.

    Raises:
        RuntimeError: CUDA's own words.
    """
    import torch  # noqa: PLC0415 - seconds of loading, only where there is a GPU

    if torch.version.cuda is None or 0 < torch.cuda.device_count() <= index:
        return None
    with torch.cuda.device(index):
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        target.copy_(source)
        begin, end = _event(torch), _event(torch)
        begin.record()
        for _ in range(COPIES):
            target.copy_(source)
        end.record()
        end.synchronize()
        seconds = float(begin.elapsed_time(end)) / 1000
    return 2 * COPIES * COPY_BYTES / GIB / seconds


def _event(torch: Any) -> Any:
    return torch.cuda.Event(enable_timing=True)


def _driver(device: Path) -> str:
    """The kernel driver of an RDMA device."""
    return (device / "device" / "driver").resolve().name


def _kernel_log() -> str:
    command = ["journalctl", "--dmesg", "--boot", "--output=cat", "--no-pager", "--grep=NVRM: Xid"]
    # exits with 1 when nothing matches
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout

"""Looks at the instance: NVML, the kernel's log, /sys."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from image.readiness.checks import Gpu, Seen

GIB = 2**30
INFINIBAND = Path("/sys/class/infiniband")
# The gate runs with the system's Python, torch lies in the trainer's environment.
TRAINER_PYTHON = Path("/opt/gpu-fleet/venv/bin/python")
# What steps/70-trainer.sh writes there once every package is installed.
COMPLETE = "lib/python3*/site-packages/gpu-fleet.pth"
LONGEST_COPIES_S = 240

# GPU's index -> (GiB/s or None where nothing was measured, why CUDA failed or empty)
Copies = list[tuple[float | None, str]]


def look(nvml: Any, infiniband: Path = INFINIBAND, copies: Callable[[int], Copies] | None = None) -> Seen:
    """One look at everything.

    Args:
        nvml: the module ``pynvml``, or something that speaks like it.
        infiniband: where RDMA devices are listed.
        copies: measures so many GPUs; by default the trainer's environment does.
    """
    gpus, problem = _gpus(nvml, copies or measured)
    drivers = [_driver(device) for device in sorted(infiniband.glob("*"))]
    return Seen(
        gpus=gpus,
        efa_interfaces=drivers.count("efa"),
        erdma_interfaces=drivers.count("erdma"),
        kernel_log=_kernel_log(),
        driver_problem=problem,
    )


def measured(count: int, python: Path = TRAINER_PYTHON) -> Copies:
    """Copies on every GPU, by torch in an interpreter of its own; nothing while torch is not there yet.

    An environment whose packages are not all installed says nothing of the GPUs: they would look broken, and
    the sweep would replace a healthy instance.
    """
    if count == 0 or not any(python.parents[1].glob(COMPLETE)):
        return [(None, "")] * count
    command = [str(python), "-m", "image.readiness.copies", str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_COPIES_S, check=False)
        return [(speed, str(problem)) for speed, problem in json.loads(done.stdout)]
    except (subprocess.TimeoutExpired, ValueError):
        return [(None, f"no copy was made: {' '.join(command)} did not answer")] * count


def _gpus(nvml: Any, copies: Callable[[int], Copies]) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, and why there are none when the driver does not answer."""
    try:
        nvml.nvmlInit()
        try:
            count = nvml.nvmlDeviceGetCount()
            made = zip(range(count), copies(count), strict=True)
            return tuple(_gpu(nvml, index, *copy) for index, copy in made), ""
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        return (), _said(nvml, error)


def _said(nvml: Any, error: Any) -> str:
    """NVML's words; of a base without a driver also what that means."""
    if getattr(error, "value", None) == getattr(nvml, "NVML_ERROR_LIBRARY_NOT_FOUND", None) is not None:
        return f"no NVIDIA driver on this image ({error}); name one that has it, see image.mode"
    return str(error)


def _gpu(nvml: Any, index: int, copied: float | None, cuda_problem: str) -> Gpu:
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
    return Gpu(
        name=f"{index} ({nvml.nvmlDeviceGetPciInfo(handle).busId})",
        memory_gib=nvml.nvmlDeviceGetMemoryInfo(handle).total / GIB,
        uncorrected_ecc_errors=errors,
        inactive_nvlinks=states.count(nvml.NVML_FEATURE_DISABLED),
        copy_gib_per_s=copied,
        cuda_problem=cuda_problem,
    )


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


def _driver(device: Path) -> str:
    """The kernel driver of an RDMA device."""
    return (device / "device" / "driver").resolve().name


def _kernel_log() -> str:
    command = ["journalctl", "--dmesg", "--boot", "--output=cat", "--no-pager", "--grep=NVRM: Xid"]
    # exits with 1 when nothing matches
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout

"""Probes of the instance: NVML, the kernel's log, /sys."""

import ctypes
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_fleet_image.instance.gate.checks import ProbedGpu, ProbedInstance
from gpu_fleet_image.instance.logs.lines import text_of

GIB = 2**30
_SYS = Path("/sys")
NVIDIA, _DISPLAY = "0x10de", "0x03"  # vendor and class of a GPU on the PCI bus
# The gate runs with the system's Python; torch is in the trainer's environment.
_TRAINER_PYTHON = Path("/opt/gpu-fleet/venv/bin/python")
# steps/70-trainer.sh writes it once every package is installed.
COMPLETE = "lib/python3*/site-packages/gpu-fleet.pth"
_LONGEST_COPIES_S = 240
_NO_DRIVER = "no NVIDIA driver on this image"

# GPU's index -> (GiB/s or None if nothing was measured, why CUDA failed or empty)
Copies = list[tuple[float | None, str]]


def probe(nvml: Any, copies: Callable[[int], Copies] | None = None, sys: Path = _SYS) -> ProbedInstance:
    """Probe everything once.

    Args:
        nvml: the module ``pynvml``, or one with the same interface.
        copies: measures this many GPUs; None measures none.
    """
    gpus, problem = _gpus(nvml, copies or unmeasured)
    up = [_driver(device) for device in sorted(sys.glob("class/infiniband/*")) if _is_up(device)]
    return ProbedInstance(
        gpus=gpus,
        gpus_to_come=0 if problem.startswith(_NO_DRIVER) else _on_the_bus(sys),
        efa_interfaces=up.count("efa"),
        erdma_interfaces=up.count("erdma"),
        kernel_log=_kernel_log(),
        driver_problem=problem,
    )


def unmeasured(count: int) -> Copies:
    """Return results without a copy."""
    return [(None, "")] * count


def measured(count: int, python: Path = _TRAINER_PYTHON) -> Copies:
    """Copy on every GPU, by torch in its own interpreter.

    Return results without a copy until it is installed.

    An environment that is not completely installed proves nothing about the GPUs: they would look broken, and
    the sweep would replace a healthy instance.
    """
    if count == 0 or not any(python.parents[1].glob(COMPLETE)):
        return unmeasured(count)
    command = [str(python), "-m", "gpu_fleet_image.instance.gate.copies", str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_COPIES_S, check=False)
        return [(speed, str(problem)) for speed, problem in json.loads(done.stdout)]
    except (subprocess.TimeoutExpired, ValueError):
        return [(None, f"no copy was made: {' '.join(command)} did not answer")] * count


def _gpus(nvml: Any, copies: Callable[[int], Copies]) -> tuple[tuple[ProbedGpu, ...], str]:
    """Return the GPUs, and the driver's error if it does not answer."""
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
    """Return NVML's error; without a driver, also its meaning."""
    if getattr(error, "value", None) == getattr(nvml, "NVML_ERROR_LIBRARY_NOT_FOUND", None) is not None:
        return f"{_NO_DRIVER} ({error}); choose a base with a driver, see image.mode"
    return str(error)


def _gpu(nvml: Any, index: int, copied: float | None, cuda_problem: str) -> ProbedGpu:
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
    to_come, failed = _fabric(nvml, handle)
    return ProbedGpu(
        name=f"{index} ({nvml.nvmlDeviceGetPciInfo(handle).busId})",
        memory_gib=nvml.nvmlDeviceGetMemoryInfo(handle).total / GIB,
        uncorrected_ecc_errors=errors,
        inactive_nvlinks=states.count(nvml.NVML_FEATURE_DISABLED),
        copy_gib_per_s=copied,
        peak_gib_per_s=_peak_gib_per_s(nvml, handle),
        slowed_by=_slowed_by(nvml, handle),
        fabric_to_come=to_come,
        fabric_problem=failed,
        cuda_problem=cuda_problem,
    )


def _fabric(nvml: Any, handle: Any) -> tuple[str, str]:
    """Return the state of a GPU's fabric that is in progress, and its failure; each may be empty.

    https://docs.nvidia.com/deploy/nvml-api/group__NvmlFabricDefs.html
    """
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    if _ask(nvml, lambda: nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))) is None:
        return "", ""
    to_come = {
        nvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: "fabric not started",
        nvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: "fabric in progress",
    }.get(info.state, "")
    complete = info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED
    return to_come, f"fabric failed: NVML error {info.status}" if complete and info.status else ""


def _peak_gib_per_s(nvml: Any, handle: Any) -> float | None:
    """Return the peak of two transfers a clock over the memory's whole width, as in NVIDIA's data sheets."""
    mode = _ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    clock_mhz = _ask(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM))
    width_bits = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryBusWidth(handle))
    if not clock_mhz or not width_bits or (mode and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE):
        return None
    return float(2 * clock_mhz * 1e6 * width_bits / 8 / GIB)


def _slowed_by(nvml: Any, handle: Any) -> tuple[str, ...]:
    reasons = _ask(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0
    names = {
        nvml.nvmlClocksEventReasonHwThermalSlowdown: "too hot",
        nvml.nvmlClocksEventReasonSwThermalSlowdown: "too hot for its driver",
        nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power brake",
    }
    return tuple(name for reason, name in names.items() if reasons & reason)


def _links(nvml: Any) -> range:
    return range(nvml.NVML_NVLINK_MAX_LINKS)


def _ask(nvml: Any, call: Any) -> Any:
    """Make a call; return None if the GPU does not support it. Other errors are the caller's."""
    try:
        return call()
    except nvml.NVMLError as error:
        if error.value in (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,  # of a driver older than the call
        ):
            return None
        raise


def _is_up(device: Path) -> bool:
    """Return whether all ports of an RDMA device report "4: ACTIVE"; a device without a state counts."""
    try:
        return all("ACTIVE" in port.read_text(encoding="ascii") for port in device.glob("ports/*/state"))
    except OSError:  # it is being removed
        return False


def _on_the_bus(sys: Path) -> int:
    def said(device: Path, name: str) -> str:
        file = device / name
        return file.read_text(encoding="ascii") if file.is_file() else ""

    devices = sys.glob("bus/pci/devices/*")
    return sum(
        said(device, "vendor").startswith(NVIDIA) and said(device, "class").startswith(_DISPLAY)
        for device in devices
    )


def _driver(device: Path) -> str:
    """Return the kernel driver of an RDMA device."""
    return (device / "device" / "driver").resolve().name


def _kernel_log() -> str:
    """Return the first line of each message: words of users may follow, such as a file name of two lines."""
    command = ["journalctl", "--dmesg", "--boot", "--no-pager", "--grep=NVRM: Xid"]
    command += ["--output=json", "--output-fields=MESSAGE"]
    # exits with 1 when nothing matches
    entries = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    texts = (text_of(json.loads(entry).get("MESSAGE")) for entry in entries)
    return "\n".join(line for text in texts for line in text.splitlines()[:1])

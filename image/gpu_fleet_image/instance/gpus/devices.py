"""GPUs that can be reserved; a partitioned GPU is replaced by its MIG instances."""

from collections.abc import Iterator
from typing import Any

from gpu_fleet_image.instance.gpus.errors import GpuReservationError


def listed(nvml: Any) -> tuple[str, ...]:
    """Return UUIDs in NVML's order; a partitioned GPU is listed as its MIG instances, possibly none.

    Raises:
        GpuReservationError: NVML does not answer.
    """
    try:
        nvml.nvmlInit()
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return tuple(uuid for handle in handles for uuid in _of(nvml, handle))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise GpuReservationError(f"GPUs cannot be listed: {error}") from error


def _of(nvml: Any, handle: Any) -> Iterator[str]:
    if not _is_cut(nvml, handle):
        yield nvml.nvmlDeviceGetUUID(handle)
        return
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place)
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:  # an empty place
                raise
        else:
            yield nvml.nvmlDeviceGetUUID(part)


def _is_cut(nvml: Any, handle: Any) -> bool:
    try:
        now, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value != nvml.NVML_ERROR_NOT_SUPPORTED:  # a GPU without MIG
            raise
        return False
    return bool(now == nvml.NVML_DEVICE_MIG_ENABLE)

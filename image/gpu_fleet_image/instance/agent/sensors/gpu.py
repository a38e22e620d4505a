"""GPUs through NVML: utilisation, memory, power and processes, MIG included.

Every error code of NVML becomes a ``SensorError`` that names code, call and GPU. The exception is
``NVML_ERROR_NOT_SUPPORTED`` on a reading that some GPUs do not have, which becomes None.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.instance.agent.sensors.reading import Gpu
from gpu_fleet_image.instance.agent.sensors.sm_activity import SmActivitySensor

GIB = 2**30
_MILLI = 1e-3
SHORTEST_INTERVAL_S = 0.05  # NVML updates its energy counter every 20 to 100 ms


_SLOW_EVERY_S = 25.0  # twice in each judged minute


@dataclass(frozen=True)
class _Device:
    name: str
    handle: Any


@dataclass(frozen=True)
class _Slow:
    """Readings that change slowly and cost most: half of NVML's calls, and the slower half."""

    read_s: float
    memory_used_gib: float
    memory_total_gib: float
    power_limit_w: float | None
    pids: tuple[int, ...]


class GpuSensor:
    """Sensor of every GPU of the instance.

    Args:
        nvml: the module ``pynvml``, or one with the same interface.
        expected: number of GPUs that the instance must have; fewer is a failure, also without NVML.
        real_s: returns real seconds, monotonic.
        only_pids: in a rehearsal, returns the watched processes; GPUs without one of them are left out.
    """

    def __init__(
        self,
        nvml: Any,
        expected: int,
        real_s: Callable[[], float],
        only_pids: Callable[[], frozenset[int]] | None = None,
    ) -> None:
        self._nvml = nvml
        self._expected = expected
        self._real_s = real_s
        self._only_pids = only_pids
        self._devices: list[_Device] | None = None
        self._energy: dict[str, tuple[float, float]] = {}
        self._slow: dict[str, _Slow] = {}
        self._sm_activity = SmActivitySensor(nvml, real_s)
        self.pids: frozenset[int] = frozenset()

    def read(self, *, fresh: bool = False) -> tuple[Gpu, ...]:
        """Read every GPU; keep their processes in ``pids``.

        Args:
            fresh: read the processes again, instead of those of an earlier look; memory and power limit may
                be older.

        Raises SensorError, which names NVML's error, or the number of missing GPUs.
        """
        try:
            gpus = tuple(self._gpu(device, fresh=fresh) for device in self._open())
        except self._nvml.NVMLError as error:
            self._close()
            raise SensorError(self._message(error, " on opening the GPUs")) from error
        except SensorError:
            self._close()
            raise
        if len(gpus) < self._expected:
            self._close()
            raise SensorError(f"{len(gpus) or 'no'} GPU seen, {self._expected} expected")
        self.pids = frozenset(pid for gpu in gpus for pid in gpu.pids)
        if self._only_pids is not None:
            watched = self._only_pids()
            gpus = tuple(gpu for gpu in gpus if watched.intersection(gpu.pids))
        return gpus

    def _open(self) -> list[_Device]:
        if self._devices is not None:
            return self._devices
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                return []
            raise SensorError(self._message(error, " in nvmlInit")) from error
        self._devices = [self._device(index) for index in range(self._nvml.nvmlDeviceGetCount())]
        return self._devices

    def _device(self, index: int) -> _Device:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return _Device(f"{index} ({self._nvml.nvmlDeviceGetUUID(handle)})", handle)

    def _close(self) -> None:
        """Close NVML, to open it again at the next look: a reloaded driver answers only then."""
        self._devices = None
        self._energy.clear()
        self._slow.clear()
        self._sm_activity.close()
        with contextlib.suppress(self._nvml.NVMLError):  # it may not have been open
            self._nvml.nvmlShutdown()

    def _gpu(self, device: _Device, *, fresh: bool) -> Gpu:
        utilisation = self._ask(device, "nvmlDeviceGetUtilizationRates")
        slow = self._slow.get(device.name)
        if slow is None or self._real_s() - slow.read_s >= _SLOW_EVERY_S:
            slow = self._slow[device.name] = self._read_slow(device)
        elif fresh:
            pids = tuple(sorted(self._processes(device)))
            slow = self._slow[device.name] = replace(slow, pids=pids)
        return Gpu(
            name=device.name,
            utilisation_percent=None if utilisation is None else float(utilisation.gpu),
            memory_used_gib=slow.memory_used_gib,
            memory_total_gib=slow.memory_total_gib,
            power_w=self._power(device),
            power_limit_w=slow.power_limit_w,
            pids=slow.pids,
            sm_activity_percent=self._sm_activity.read(device.name, device.handle),
        )

    def _read_slow(self, device: _Device) -> _Slow:
        memory = self._must(device, "nvmlDeviceGetMemoryInfo")
        limit_mw = self._ask(device, "nvmlDeviceGetEnforcedPowerLimit")
        return _Slow(
            read_s=self._real_s(),
            memory_used_gib=memory.used / GIB,
            memory_total_gib=memory.total / GIB,
            power_limit_w=None if limit_mw is None else limit_mw * _MILLI,
            pids=tuple(sorted(self._processes(device))),
        )

    def _power(self, device: _Device) -> float | None:
        """Return mean watts since the previous look from the energy counter (mJ), else the present watts."""
        now_s, energy_mj = self._real_s(), self._ask(device, "nvmlDeviceGetTotalEnergyConsumption")
        if energy_mj is not None:
            before_s, before_mj = self._energy.setdefault(device.name, (now_s, energy_mj))
            if now_s - before_s >= SHORTEST_INTERVAL_S and energy_mj >= before_mj:
                self._energy[device.name] = (now_s, energy_mj)
                return float((energy_mj - before_mj) * _MILLI / (now_s - before_s))
            if energy_mj < before_mj:  # the counter starts at 0 when the driver is reloaded
                self._energy[device.name] = (now_s, energy_mj)
        power_mw = self._ask(device, "nvmlDeviceGetPowerUsage")
        return None if power_mw is None else power_mw * _MILLI

    def _processes(self, device: _Device) -> Iterator[int]:
        mode = self._ask(device, "nvmlDeviceGetMigMode")
        if not mode or mode[0] != self._nvml.NVML_DEVICE_MIG_ENABLE:
            running = self._must(device, "nvmlDeviceGetComputeRunningProcesses")
            yield from (process.pid for process in running)
            return
        for index in range(self._must(device, "nvmlDeviceGetMaxMigDeviceCount")):
            try:
                handle = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(device.handle, index)
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_NOT_FOUND:  # no MIG instance at this index
                    continue
                raise SensorError(
                    self._message(error, f" in MIG instance {index} of GPU {device.name}")
                ) from error
            part = _Device(f"{device.name} MIG {index}", handle)
            running = self._must(part, "nvmlDeviceGetComputeRunningProcesses")
            yield from (process.pid for process in running)

    def _ask(self, device: _Device, call: str) -> Any:
        """Return an answer, or None if the GPU has no such reading."""
        try:
            return getattr(self._nvml, call)(device.handle)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise SensorError(self._message(error, f" in {call} of GPU {device.name}")) from error

    def _must(self, device: _Device, call: str) -> Any:
        try:
            return getattr(self._nvml, call)(device.handle)
        except self._nvml.NVMLError as error:
            raise SensorError(self._message(error, f" in {call} of GPU {device.name}")) from error

    def _message(self, error: Any, where: str) -> str:
        return f"{_error_name(self._nvml, error.value)}{where}"


def _error_name(nvml: Any, code: int) -> str:
    """Return the name of an NVML error code, say ``NVML_ERROR_GPU_IS_LOST``."""
    names = (name for name in dir(nvml) if name.startswith("NVML_ERROR_") and getattr(nvml, name) == code)
    return next(names, f"NVML error {code}")

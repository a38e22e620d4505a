"""SM activity: the share of a GPU's streaming multiprocessors that had work, by NVML's GPM.

GPM (GPU performance monitoring) compares two samples of counters that run always: Hopper and newer GPUs have
it, and users' profilers are not in its way. Every other GPU, and one in MIG mode, has no SM activity here.
"""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHORTEST_INTERVAL_S = 0.1  # nvml.h: two samples must lie 100 ms apart

LOG = logging.getLogger(__name__)


@dataclass
class _Pair:
    """Buffers of one GPU: the sample before, and the one that the next look fills."""

    before: Any
    spare: Any
    before_s: float


class SmActivitySensor:
    """Sensor of SM activity. It never fails: nothing is decided by what it reads.

    Args:
        nvml: the module ``pynvml``, or one with the same interface.
        real_s: returns real seconds, monotonic.
    """

    def __init__(self, nvml: Any, real_s: Callable[[], float]) -> None:
        self._nvml = nvml
        self._real_s = real_s
        self._pairs: dict[str, _Pair | None] = {}

    def read(self, name: str, handle: Any) -> float | None:
        """Return the mean since the previous look, 0 to 100; None if the GPU has none, or at the first."""
        try:
            if name not in self._pairs:
                self._pairs[name] = self._opened(handle)
                return None
            pair = self._pairs[name]
            return None if pair is None else self._since(pair, handle)
        except self._nvml.NVMLError as error:
            LOG.warning("event=no-sm-activity gpu=%r reason=%r", name, str(error))
            self._pairs[name] = None
            return None

    def close(self) -> None:
        """Give the buffers back, before NVML is closed."""
        pairs = [pair for pair in self._pairs.values() if pair is not None]
        self._pairs.clear()
        with contextlib.suppress(self._nvml.NVMLError):  # the driver may be gone, and the buffers with it
            for pair in pairs:
                self._nvml.nvmlGpmSampleFree(pair.before)
                self._nvml.nvmlGpmSampleFree(pair.spare)

    def _opened(self, handle: Any) -> _Pair | None:
        if not self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        before, spare = self._nvml.nvmlGpmSampleAlloc(), self._nvml.nvmlGpmSampleAlloc()
        return _Pair(self._nvml.nvmlGpmSampleGet(handle, before), spare, self._real_s())

    def _since(self, pair: _Pair, handle: Any) -> float | None:
        now_s = self._real_s()
        if now_s - pair.before_s < SHORTEST_INTERVAL_S:
            return None
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1 = pair.before
        request.sample2 = self._nvml.nvmlGpmSampleGet(handle, pair.spare)
        request.metrics[0].metricId = self._nvml.NVML_GPM_METRIC_SM_UTIL
        metric = self._nvml.nvmlGpmMetricsGet(request).metrics[0]
        pair.before, pair.spare, pair.before_s = pair.spare, pair.before, now_s
        if metric.nvmlReturn != self._nvml.NVML_SUCCESS or not 0 <= metric.value <= 100:  # noqa: PLR2004
            return None
        return float(metric.value)

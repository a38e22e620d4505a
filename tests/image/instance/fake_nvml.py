"""Fake of the module ``pynvml``, with GPUs and errors that a test chooses.

Its error classes, codes and constants are NVIDIA's own: they come from the real module.
"""

from functools import partial
from types import SimpleNamespace

import pynvml

ERROR_CODES = {
    name: getattr(pynvml, name)
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_") and isinstance(getattr(pynvml, name), int)
}


NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


def _refused(code, *_arguments):
    raise pynvml.NVMLError(code)


def _mig_instance(gpu, index):
    known = index < len(gpu.mig_pids)
    return SimpleNamespace(pids=gpu.mig_pids[index]) if known else _refused(pynvml.NVML_ERROR_NOT_FOUND)


def _sampled(gpu, sample):
    sample.at_s, sample.active_s = gpu.sm_at
    return sample


def _compared(request):
    first, second = request.sample1, request.sample2
    metric = request.metrics[0]
    metric.nvmlReturn = pynvml.NVML_SUCCESS
    metric.value = 100 * (second.active_s - first.active_s) / (second.at_s - first.at_s)
    return request


def _of_fabric(gpu, info):
    info._obj.state, info._obj.status = gpu.fabric
    return pynvml.NVML_SUCCESS


# call -> its answer of a GPU at rest
ANSWERS = {
    "nvmlDeviceGetUtilizationRates": lambda gpu: (
        _refused(NOT_SUPPORTED)
        if gpu.mig_pids is not None
        else SimpleNamespace(gpu=gpu.utilisation, memory=0)
    ),
    "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=20 * 2**30, total=80 * 2**30),
    "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
    "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.energy_mj,
    "nvmlDeviceGetMigMode": lambda gpu: (
        _refused(NOT_SUPPORTED) if gpu.mig_pids is None else [pynvml.NVML_DEVICE_MIG_ENABLE] * 2
    ),
    "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": _mig_instance,
    "nvmlGpmQueryDeviceSupport": lambda gpu: SimpleNamespace(isSupportedDevice=int(gpu.sm_at is not None)),
    "nvmlGpmSampleAlloc": SimpleNamespace,
    "nvmlGpmSampleGet": _sampled,
    "nvmlGpmMetricsGet": _compared,
    "c_nvmlGpmMetricsGet_t": lambda: SimpleNamespace(metrics=[SimpleNamespace()]),
    # the rest is what the gate asks of an A10G
    "nvmlDeviceGetTotalEccErrors": lambda *_: 0,
    "nvmlDeviceGetNvLinkState": lambda *_: pynvml.NVML_FEATURE_ENABLED,
    "nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId="00:1e.0"),
    "nvmlDeviceGetMaxClockInfo": lambda *_: 6251,
    "nvmlDeviceGetMemoryBusWidth": lambda _: 384,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: gpu.clock_events,
    "nvmlDeviceGetGpuFabricInfoV": _of_fabric,
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [SimpleNamespace(pid=pid) for pid in gpu.pids],
}


class FakeNvml:
    """Idle GPUs; ``fail`` makes a call return an error code.

    Attributes:
        gpus: index -> values that a test may change; ``sm_at``: (time, seconds of work so far) of its
            multiprocessors, None for a GPU without GPM; ``fabric``: (state, status).
        failing: call -> the error code that it returns.
        inits: number of times that the library was opened.
    """

    def __init__(self, count=1, mig_instances=None):
        self.gpus = [
            SimpleNamespace(
                utilisation=0,
                energy_mj=0,
                power_mw=60_000,
                pids=[],
                mig_pids=mig_instances,
                sm_at=None,
                clock_events=pynvml.nvmlClocksEventReasonGpuIdle,
                fabric=(pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, 0),
            )
            for _ in range(count)
        ]
        self.inits, self.failing = 0, {}
        self._answers = ANSWERS | {
            "nvmlInit": self._opened,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: len(self.gpus),
            "nvmlDeviceGetHandleByIndex": lambda index: self.gpus[index],
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{self.gpus.index(gpu)}",
        }

    def __getattr__(self, name):
        if name.startswith(("NVML", "nvmlError", "nvmlClocksEvent", "c_nvmlGpuFabric")):
            return getattr(pynvml, name)
        if name not in self.__dict__.get("_answers", ()):
            raise AttributeError(name)
        return partial(_refused, self.failing[name]) if name in self.failing else self._answers[name]

    def __dir__(self):
        return dir(pynvml)

    def fail(self, call, code):
        self.failing[call] = code

    def _opened(self):
        self.inits += 1

"""Something that speaks like the module ``pynvml``, with GPUs and errors that a test chooses.

Its error classes, codes and constants are NVIDIA's own: they come from the real module.
"""

from types import SimpleNamespace

import pynvml

ERROR_CODES = {
    name: getattr(pynvml, name)
    for name in dir(pynvml)
    if name.startswith("NVML_ERROR_") and isinstance(getattr(pynvml, name), int)
}


class FakeNvml:
    """GPUs at rest; ``fail`` makes a call answer an error code.

    Attributes:
        gpus: index -> values that a test may change.
        inits: how often the library was opened.
    """

    def __init__(self, count=1, mig_instances=None):
        self.gpus = [
            SimpleNamespace(utilisation=0, energy_mj=0, power_mw=60_000, pids=[], mig_pids=mig_instances)
            for _ in range(count)
        ]
        self.inits = 0
        self._failing = {}

    def __getattr__(self, name):
        if name.startswith(("NVML", "nvmlError")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def __dir__(self):
        return dir(pynvml)

    def fail(self, call, code):
        self._failing[call] = code

    def heal(self, call):
        del self._failing[call]

    def _check(self, call):
        if call in self._failing:
            raise pynvml.NVMLError(self._failing[call])

    def nvmlInit(self):  # noqa: N802 - NVIDIA's name, like all below
        self._check("nvmlInit")
        self.inits += 1

    def nvmlShutdown(self):  # noqa: N802
        self._check("nvmlShutdown")

    def nvmlDeviceGetCount(self):  # noqa: N802
        self._check("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        self._check("nvmlDeviceGetHandleByIndex")
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetUUID")
        return f"GPU-{self.gpus.index(gpu)}"

    def nvmlDeviceGetUtilizationRates(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetUtilizationRates")
        if gpu.mig_pids is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=gpu.utilisation, memory=0)

    def nvmlDeviceGetMemoryInfo(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(used=20 * 2**30, total=80 * 2**30)

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetEnforcedPowerLimit")
        return 700_000

    def nvmlDeviceGetPowerUsage(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetPowerUsage")
        return gpu.power_mw

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetTotalEnergyConsumption")
        return gpu.energy_mj

    def nvmlDeviceGetMigMode(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetMigMode")
        if gpu.mig_pids is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [pynvml.NVML_DEVICE_MIG_ENABLE, pynvml.NVML_DEVICE_MIG_ENABLE]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetMaxMigDeviceCount")
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu, index):  # noqa: N802
        self._check("nvmlDeviceGetMigDeviceHandleByIndex")
        if index >= len(gpu.mig_pids):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return SimpleNamespace(pids=gpu.mig_pids[index])

    def nvmlDeviceGetComputeRunningProcesses(self, gpu):  # noqa: N802
        self._check("nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid) for pid in gpu.pids]

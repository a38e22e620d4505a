"""GPUs through an NVML that answers, fails and comes back."""

import pynvml
import pytest

from image.reaper.agent.sensors.gpu import GpuSensor
from image.reaper.errors import SensorError
from tests.reaper.fake_nvml import ERROR_CODES, FakeNvml

MUST_ANSWER = [
    "nvmlInit",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetComputeRunningProcesses",
]
MAY_LACK = [
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetMigMode",
]
FAILURES = [
    (call, name)
    for call in MUST_ANSWER + MAY_LACK
    for name in ERROR_CODES
    if (call, name) != ("nvmlInit", "NVML_ERROR_LIBRARY_NOT_FOUND")
    and not (call in MAY_LACK and name == "NVML_ERROR_NOT_SUPPORTED")
]


class Seconds:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def seconds():
    return Seconds()


@pytest.fixture
def sensor_of(seconds):
    return lambda nvml, expected=1, **options: GpuSensor(nvml, expected, seconds, **options)


def test_a_gpu_is_read_with_its_units(sensor_of):
    nvml = FakeNvml()
    nvml.gpus[0].utilisation, nvml.gpus[0].pids = 37, [42]

    (gpu,) = sensor_of(nvml).read()

    assert gpu.name == "0 (GPU-0)"
    assert gpu.utilisation_percent == 37.0
    assert (gpu.memory_used_gib, gpu.memory_total_gib) == (20.0, 80.0)
    assert (gpu.power_w, gpu.power_limit_w) == (60.0, 700.0)
    assert gpu.pids == (42,)


def test_processes_are_asked_for_twice_a_minute(sensor_of, seconds):
    nvml = FakeNvml()
    sensor = sensor_of(nvml)
    sensor.read()
    nvml.gpus[0].pids = [42]

    seconds.now = 20.0
    assert sensor.read()[0].pids == ()
    seconds.now = 25.0
    assert sensor.read()[0].pids == (42,)


def test_power_is_the_mean_of_the_energy_counter_between_two_looks(sensor_of, seconds):
    nvml = FakeNvml()
    sensor = sensor_of(nvml)
    sensor.read()
    seconds.now, nvml.gpus[0].energy_mj = 5.0, 2_000_000

    (gpu,) = sensor.read()

    assert gpu.power_w == pytest.approx(400.0)


def test_an_energy_counter_that_began_anew_falls_back_to_power_at_the_moment(sensor_of, seconds):
    nvml = FakeNvml()
    nvml.gpus[0].energy_mj = 9_000_000
    sensor = sensor_of(nvml)
    sensor.read()
    seconds.now, nvml.gpus[0].energy_mj = 5.0, 1_000

    (gpu,) = sensor.read()

    assert gpu.power_w == 60.0


def test_every_error_code_is_a_failure_that_names_it(sensor_of):
    def said(call, name):
        nvml = FakeNvml()
        nvml.fail("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
        nvml.fail(call, ERROR_CODES[name])
        try:
            return str(sensor_of(nvml).read())
        except SensorError as error:
            return str(error)

    texts = {(call, name): said(call, name) for call, name in FAILURES}

    assert len(texts) > 200
    assert {row: text for row, text in texts.items() if text.split()[0] != row[1]} == {}


def test_a_failure_names_call_and_gpu(sensor_of):
    nvml = FakeNvml()
    nvml.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_GPU_IS_LOST)

    with pytest.raises(
        SensorError, match=r"NVML_ERROR_GPU_IS_LOST in nvmlDeviceGetUtilizationRates of GPU 0 "
    ):
        sensor_of(nvml).read()


@pytest.mark.parametrize("call", MAY_LACK)
def test_a_reading_that_a_gpu_does_not_have_is_no_failure(sensor_of, call):
    nvml = FakeNvml()
    nvml.fail(call, pynvml.NVML_ERROR_NOT_SUPPORTED)

    (gpu,) = sensor_of(nvml).read()

    assert gpu.memory_total_gib == 80.0


def test_an_error_code_of_a_newer_driver_is_named_by_its_number(sensor_of):
    nvml = FakeNvml()
    nvml.fail("nvmlDeviceGetMemoryInfo", 777)

    with pytest.raises(SensorError, match="NVML error 777"):
        sensor_of(nvml).read()


def test_after_a_failure_the_library_is_opened_anew(sensor_of):
    nvml = FakeNvml()
    sensor = sensor_of(nvml)
    nvml.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_UNINITIALIZED)
    with pytest.raises(SensorError):
        sensor.read()
    nvml.heal("nvmlDeviceGetUtilizationRates")

    (gpu,) = sensor.read()

    assert gpu.utilisation_percent == 0.0
    assert nvml.inits == 2


def test_without_nvml_an_instance_of_no_gpu_is_well(sensor_of):
    nvml = FakeNvml()
    nvml.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    assert sensor_of(nvml, expected=0).read() == ()


def test_without_nvml_a_gpu_instance_is_unknown(sensor_of):
    nvml = FakeNvml()
    nvml.fail("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    with pytest.raises(SensorError, match="no GPU seen, 8 expected"):
        sensor_of(nvml, expected=8).read()


def test_a_gpu_that_fell_off_the_bus_is_missed(sensor_of):
    with pytest.raises(SensorError, match="7 GPU seen, 8 expected"):
        sensor_of(FakeNvml(count=7), expected=8).read()


def test_a_mig_gpu_reports_the_processes_of_all_its_instances_and_no_utilisation(sensor_of):
    sensor = sensor_of(FakeNvml(mig_instances=[[5], [], [6, 7]]))

    (gpu,) = sensor.read()

    assert gpu.utilisation_percent is None
    assert gpu.pids == (5, 6, 7)
    assert sensor.pids == {5, 6, 7}


def test_a_mig_instance_that_fails_is_named(sensor_of):
    nvml = FakeNvml(mig_instances=[[5]])
    nvml.fail("nvmlDeviceGetMigDeviceHandleByIndex", pynvml.NVML_ERROR_IN_USE)

    with pytest.raises(SensorError, match=r"NVML_ERROR_IN_USE in MIG instance 0 of GPU 0"):
        sensor_of(nvml).read()


def test_of_a_watched_tree_only_the_gpus_it_is_on_are_looked_at(sensor_of):
    nvml = FakeNvml(count=2)
    nvml.gpus[0].pids, nvml.gpus[1].pids = [1], [2]

    gpus = sensor_of(nvml, only_pids=lambda: frozenset({2})).read()

    assert [gpu.pids for gpu in gpus] == [(2,)]


def test_the_real_library_is_missing_here_or_answers(sensor_of):
    gpus = sensor_of(pynvml, expected=0).read()

    assert all(gpu.memory_total_gib > 0 for gpu in gpus)

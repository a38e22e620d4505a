"""GPUs by an NVML that answers, fails and recovers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.instance.agent.sensors.gpu import GpuSensor
from gpu_fleet_image.instance.agent.sensors.reading import Gpu
from tests.image.instance.fake_nvml import ERROR_CODES, FakeNvml
from tests.image.one_instance import one_instance
from tests.ran import ran

ROOT = Path(__file__).parents[5]
COMPILER = shutil.which("cc")
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


@pytest.fixture
def seconds():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def sensor_of(seconds):
    return lambda nvml, expected=1, **options: GpuSensor(nvml, expected, lambda: seconds.now, **options)


def failing(call, code, **options):
    nvml = FakeNvml(**options)
    nvml.failing[call] = code
    return nvml


def test_a_gpu_is_read_with_its_units(sensor_of):
    nvml = FakeNvml()
    nvml.gpus[0].utilisation, nvml.gpus[0].pids = 37, [42]

    assert sensor_of(nvml).read() == (Gpu("0 (GPU-0)", 37.0, 20.0, 80.0, 60.0, 700.0, (42,)),)


def test_processes_are_asked_for_twice_a_minute(sensor_of, seconds):
    nvml = FakeNvml()
    sensor, pids = sensor_of(nvml), []

    for seconds.now in (0.0, 20.0, 25.0):
        pids.append(sensor.read()[0].pids)
        nvml.gpus[0].pids = [42]

    assert pids == [(), (), (42,)]


def test_power_is_the_mean_of_the_energy_counter_or_what_it_is_now_where_that_began_anew(sensor_of, seconds):
    nvml = FakeNvml()
    sensor, power_w = sensor_of(nvml), []

    for seconds.now, nvml.gpus[0].energy_mj in ((0.0, 9_000_000), (5.0, 11_000_000), (10.0, 1_000)):
        power_w.append(sensor.read()[0].power_w)

    assert power_w == [60.0, pytest.approx(400.0), 60.0]


def test_sm_activity_is_the_mean_since_the_last_look(sensor_of, seconds):
    nvml = FakeNvml()
    sensor, percent = sensor_of(nvml), []

    for nvml.gpus[0].sm_at in ((0.0, 0.0), (5.0, 2.0), (5.05, 2.05), (10.0, 2.0)):
        seconds.now = nvml.gpus[0].sm_at[0]
        percent.append(sensor.read()[0].sm_activity_percent)

    assert percent == [None, pytest.approx(40.0), None, pytest.approx(0.0)]


@pytest.mark.parametrize("call", ["nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_sm_activity_that_cannot_be_read_is_unknown_and_fails_nothing(sensor_of, seconds, call, caplog):
    nvml = failing(call, ERROR_CODES["NVML_ERROR_FUNCTION_NOT_FOUND"])
    nvml.gpus[0].sm_at = (0.0, 0.0)
    sensor = sensor_of(nvml)

    for seconds.now in (0.0, 5.0, 10.0):
        assert sensor.read()[0].sm_activity_percent is None

    assert caplog.text.count("event=no-sm-activity") == 1


def test_every_error_code_is_a_failure_that_names_it(sensor_of):
    def said(call, name):
        nvml = failing("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_NOT_SUPPORTED)
        nvml.failing[call] = ERROR_CODES[name]
        try:
            return str(sensor_of(nvml).read())
        except SensorError as error:
            return str(error)

    texts = {(call, name): said(call, name) for call, name in FAILURES}

    assert len(texts) > 200
    assert {row: text for row, text in texts.items() if text.split()[0] != row[1]} == {}


LIBRARY_NOT_FOUND = ("nvmlInit", pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
# (an NVML that fails, GPUs expected, what is said)
SAID = [
    (
        failing("nvmlDeviceGetMigDeviceHandleByIndex", pynvml.NVML_ERROR_IN_USE, mig_instances=[[5]]),
        1,
        r"NVML_ERROR_IN_USE in MIG instance 0 of GPU 0",
    ),
    (failing("nvmlDeviceGetMemoryInfo", 777), 1, "NVML error 777"),  # of a newer driver
    (failing(*LIBRARY_NOT_FOUND), 8, "no GPU seen, 8 expected"),
    (FakeNvml(count=7), 8, "7 GPU seen, 8 expected"),
]


@pytest.mark.parametrize(("nvml", "expected", "said"), SAID)
def test_a_failure_names_call_and_gpu_or_how_many_are_missing(sensor_of, nvml, expected, said):
    with pytest.raises(SensorError, match=said):
        sensor_of(nvml, expected).read()


def test_a_reading_that_a_gpu_does_not_have_and_an_instance_without_gpus_are_no_failure(sensor_of):
    gpus = [sensor_of(failing(call, pynvml.NVML_ERROR_NOT_SUPPORTED)).read()[0] for call in MAY_LACK]

    assert [gpu.memory_total_gib for gpu in gpus] == [80.0] * len(MAY_LACK)
    assert sensor_of(failing(*LIBRARY_NOT_FOUND), expected=0).read() == ()


def test_after_a_failure_the_library_is_opened_anew(sensor_of):
    nvml = failing("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_UNINITIALIZED)
    sensor = sensor_of(nvml)
    with pytest.raises(SensorError):
        sensor.read()
    nvml.failing.clear()

    assert sensor.read()[0].utilisation_percent == 0.0
    assert nvml.inits == 2


def test_a_mig_gpu_reports_the_processes_of_all_its_instances_and_no_utilisation(sensor_of):
    sensor = sensor_of(FakeNvml(mig_instances=[[5], [], [6, 7]]))

    (gpu,) = sensor.read()

    assert gpu.utilisation_percent is None
    assert gpu.pids == (5, 6, 7)
    assert sensor.pids == {5, 6, 7}


def test_of_a_watched_tree_only_the_gpus_it_is_on_are_looked_at(sensor_of):
    nvml = FakeNvml(count=2)
    nvml.gpus[0].pids, nvml.gpus[1].pids = [1], [2]

    assert [gpu.pids for gpu in sensor_of(nvml, only_pids=lambda: frozenset({2})).read()] == [(2,)]


# by NVIDIA's own Python binding, with a library that a C compiler builds here

READ = """
import json, pynvml
from dataclasses import asdict
from gpu_fleet_image.core.reaper_errors import SensorError
from gpu_fleet_image.instance.agent.sensors.gpu import GpuSensor
try:
    sensor = GpuSensor(pynvml, 2, iter(range(99)).__next__)
    sensor.read()
    print(json.dumps([asdict(gpu) for gpu in sensor.read()]))
except SensorError as error:
    print(json.dumps(str(error)))
"""


def compiled(source, folder):
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", library, source], check=True)


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Build the library; return an environment in which it is that of the driver."""
    if COMPILER is None:
        pytest.skip("no C compiler to make a libnvidia-ml.so.1 with")
    folder = tmp_path_factory.mktemp("driver")
    compiled(Path(__file__).with_name("fake_nvml.c"), folder)
    return {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(ROOT / "image")}


def read(driver, **more):
    command = [sys.executable, "-c", READ]
    environment = os.environ | driver | more
    return json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)


def test_gpus_are_read_in_full_and_one_in_mig_mode_with_the_processes_of_its_instances(driver):
    whole, cut = read(driver)

    assert whole == {
        "name": "0 (GPU-whole)",
        "utilisation_percent": 73.0,
        "memory_used_gib": 60.0,
        "memory_total_gib": 80.0,
        "power_w": 350.0,
        "power_limit_w": 700.0,
        "pids": [41],
        "sm_activity_percent": 41.5,
    }
    assert (cut["utilisation_percent"], cut["pids"]) == (None, [51, 52])
    assert cut["sm_activity_percent"] is None


def test_a_lost_gpu_is_named(driver):
    error = read(driver, NVML_FAILS="nvmlDeviceGetUtilizationRates")

    assert error == "NVML_ERROR_GPU_IS_LOST in nvmlDeviceGetUtilizationRates of GPU 0 (GPU-whole)"


def test_a_library_without_a_function_is_reported_as_such(driver, tmp_path):
    source = Path(__file__).with_name("fake_nvml.c").read_text()
    (tmp_path / "old.c").write_text(source.replace("nvmlDeviceGetMemoryInfo", "somethingElse"))
    compiled(tmp_path / "old.c", tmp_path)

    error = read(driver, LD_LIBRARY_PATH=str(tmp_path))

    assert error.startswith("NVML_ERROR_FUNCTION_NOT_FOUND in nvmlDeviceGetMemoryInfo")


def test_an_agent_process_finds_the_instance_active_by_its_gpu(driver, tmp_path):
    fast = ("--instance-id", "i-gpu", "--clock-speed", "600", "--duration", "300")
    with one_instance(tmp_path) as environment:
        command = [sys.executable, "-m", "gpu_fleet_image.console", "agent", *fast]
        ended = ran(command, env=environment | driver)

    assert ended.returncode == 0, ended.stderr
    content = json.loads((tmp_path / "run/activity.json").read_text())
    assert "gpu 0 (GPU-whole): utilisation" in content["reasons"]
    assert content["gpu_memory_used_percent"] == 75.0

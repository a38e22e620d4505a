"""GPUs by NVIDIA's own Python binding, with a fake library that a C compiler builds here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.image.one_instance import one_instance
from tests.ran import ran

ROOT = Path(__file__).parents[5]
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to make a libnvidia-ml.so.1 with")
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


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Build the library; return an environment in which it is that of the driver."""
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).with_name("fake_nvml.c")
    command = [COMPILER, "-shared", "-fPIC", "-w", "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(command, check=True)
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
    library = str(tmp_path / "libnvidia-ml.so.1")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-w", "-o", library, tmp_path / "old.c"], check=True)

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

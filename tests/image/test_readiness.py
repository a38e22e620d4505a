"""The gate: what it expects, what it finds, what it says."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from image.instance.instance_file import Expected
from image.instance.metadata import SERVICES
from image.readiness import __main__ as gate
from image.readiness import checks, copies, probes
from image.readiness.checks import Finding, Gpu, Seen
from tests.reaper.machine_file import MACHINE_FILE
from tests.reaper.metadata_server import metadata_server

EXPECTED = Expected(gpus=2, gpu_memory_gib=40, efa_interfaces=4)
SOUND = Seen(gpus=(Gpu("0", 39.4, 0, 0, 1300.0), Gpu("1", 39.4, 0, 0, 1290.0)), efa_interfaces=4)


def failed(seen, expected=EXPECTED):
    return {finding.check: finding.detail for finding in checks.judge(expected, seen) if not finding.ok}


def bent(**changes):
    return replace(SOUND, gpus=(SOUND.gpus[0], replace(SOUND.gpus[1], **changes)))


def test_a_sound_instance_passes_every_check():
    assert failed(SOUND) == {}


def test_an_instance_without_its_gpus_says_how_many_and_why():
    seen = Seen(efa_interfaces=4, driver_problem="Driver Not Loaded")

    assert failed(seen, Expected(gpus=8)) == {"gpu_count": "0 of 8 GPUs: Driver Not Loaded"}


def test_a_gpu_with_less_memory_than_its_type_is_named():
    assert failed(bent(memory_gib=19.5)) == {"gpu_memory": "GPU 1 has 19.5 GiB"}


def test_an_uncorrected_memory_error_fails():
    assert failed(bent(uncorrected_ecc_errors=3)) == {"ecc": "GPU 1: 3"}


def test_a_link_that_is_down_fails():
    assert failed(bent(inactive_nvlinks=2)) == {"nvlink": "GPU 1: 2 down"}


def test_the_links_of_an_only_gpu_lead_nowhere_and_may_be_down():
    alone = replace(SOUND, gpus=(replace(SOUND.gpus[0], inactive_nvlinks=18),))

    assert failed(alone, replace(EXPECTED, gpus=1)) == {}


def test_a_gpu_on_which_cuda_runs_nothing_fails():
    assert failed(bent(copy_gib_per_s=None, cuda_problem="Error 802: system not yet initialized")) == {
        "cuda": "GPU 1: Error 802: system not yet initialized"
    }


def test_a_gpu_much_slower_than_its_neighbours_fails():
    assert failed(bent(copy_gib_per_s=900.0)) == {"bandwidth": "GPU 1: 900 GiB/s"}


def test_missing_network_cards_fail():
    assert failed(replace(SOUND, efa_interfaces=3)) == {"fabric": "3 of 4 EFA interfaces"}


@pytest.mark.parametrize("code", sorted(checks.FATAL_XIDS))
def test_a_fatal_error_in_the_kernels_log_fails(code):
    log = f"NVRM: Xid (PCI:0000:10:1c): {code}, pid='<unknown>'\n" * 2

    assert failed(replace(SOUND, kernel_log=log)) == {"xid": f"Xid {code} on PCI:0000:10:1c"}


def test_an_error_of_a_program_is_not_the_instances_fault():
    assert failed(replace(SOUND, kernel_log="NVRM: Xid (PCI:0000:10:1c): 31, pid=7, a bad pointer\n")) == {}


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_the_gate_expects_what_the_instances_own_type_has(cloud, tmp_path, monkeypatch):
    """The two clouds keep the type under different paths of their metadata."""
    (tmp_path / "instance.toml").write_text(
        MACHINE_FILE.replace('"aws"', f'"{cloud}"') + '[expected."big"]\ngpus = 8\n'
    )
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(tmp_path))
    path = {"aws": "instance-type", "alicloud": "instance/instance-type"}[cloud]

    with metadata_server(cloud) as service:
        service.says(path, "big")
        monkeypatch.setenv(SERVICES[cloud][0], service.base)
        status = gate.main()

    report = json.loads((tmp_path / "ready.json").read_text())
    assert status == 1
    assert report["checks"]["gpu_count"]["detail"].startswith("0 of 8 GPUs")


def test_rdma_devices_are_counted_by_their_driver(tmp_path):
    for index, driver in enumerate(["efa", "efa", "mlx5_core"]):
        device = tmp_path / f"rdmap{index}" / "device"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "drivers" / driver)

    seen = probes.look(NoDriver, tmp_path)

    assert (seen.efa_interfaces, seen.erdma_interfaces) == (2, 0)
    assert seen.driver_problem == "Driver Not Loaded"


class NoDriver:
    """Speaks like pynvml on an instance whose driver is not loaded."""

    class NVMLError(Exception):
        pass

    @staticmethod
    def nvmlInit():  # noqa: N802 - NVML's own name
        raise NoDriver.NVMLError("Driver Not Loaded")


class OneGpu(NoDriver):
    """Speaks like pynvml on an instance with one sound GPU that has no NVLink."""

    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = NVML_FEATURE_DISABLED = NVML_NVLINK_MAX_LINKS = 0

    nvmlInit = nvmlShutdown = staticmethod(lambda: None)  # noqa: N815 - NVML's own names
    nvmlDeviceGetCount = staticmethod(lambda: 1)  # noqa: N815
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)  # noqa: N815
    nvmlDeviceGetTotalEccErrors = staticmethod(lambda *_: 0)  # noqa: N815
    nvmlDeviceGetPciInfo = staticmethod(lambda _: SimpleNamespace(busId="00:1e.0"))  # noqa: N815
    nvmlDeviceGetMemoryInfo = staticmethod(lambda _: SimpleNamespace(total=24 * probes.GIB))  # noqa: N815


def in_this_process(count):
    return [copies.copied(index) for index in range(count)]


def test_a_gpu_that_cuda_cannot_use_is_a_finding_and_not_a_crash(tmp_path, monkeypatch):
    """As torch behaves without a fabric manager: it counts no GPU, and fails where it is used."""

    def refuse(_):
        raise RuntimeError("Error 802: system not yet initialized\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", refuse)

    seen = probes.look(OneGpu, tmp_path, in_this_process)

    assert failed(seen, Expected(gpus=1, gpu_memory_gib=24)) == {
        "cuda": "GPU 0 (00:1e.0): Error 802: system not yet initialized"
    }


def environment(folder, program, *, complete=True):
    """A trainer's environment whose Python is another program; gives that Python."""
    python = folder / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    python.chmod(0o755)
    if complete:
        packages = folder / "venv/lib/python3.12/site-packages"
        packages.mkdir(parents=True)
        (packages / "gpu-fleet.pth").touch()
    return python


def test_a_torch_without_cuda_measures_nothing(tmp_path):
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")

    python = environment(tmp_path, sys.executable)

    seen = probes.look(OneGpu, tmp_path, lambda count: probes.measured(count, python))

    assert failed(seen, Expected(gpus=1, gpu_memory_gib=24)) == {}


def test_before_the_trainers_environment_is_there_nothing_is_measured(tmp_path):
    assert probes.measured(2, tmp_path / "venv/bin/python") == [(None, ""), (None, "")]


def test_an_environment_that_does_not_answer_is_a_finding(tmp_path):
    python = environment(tmp_path, "/bin/true")

    seen = probes.look(OneGpu, tmp_path, lambda count: probes.measured(count, python))

    assert failed(seen, Expected(gpus=1, gpu_memory_gib=24)).keys() == {"cuda"}


def test_an_environment_that_was_installed_in_part_says_nothing_of_the_gpus(tmp_path):
    """A sound instance that cannot reach PyPI, say, and was rebooted: it is not to be replaced for that."""
    python = environment(tmp_path, "/bin/false", complete=False)

    seen = probes.look(OneGpu, tmp_path, lambda count: probes.measured(count, python))

    assert failed(seen, Expected(gpus=1, gpu_memory_gib=24)) == {}


def test_the_recipe_says_last_that_the_environment_is_complete():
    step = (Path(probes.__file__).parents[1] / "steps/70-trainer.sh").read_text()
    marker = Path(probes.COMPLETE).name

    assert step.count(marker) == 1
    assert step.index("venv --clear") < step.index('"${pip[@]}" check') < step.index(marker)


def test_an_image_without_a_driver_is_named_as_one(tmp_path):
    seen = probes.look(pynvml, tmp_path)

    if not seen.driver_problem.startswith("no NVIDIA driver"):
        pytest.skip(f"this computer has a driver: {seen.driver_problem}")
    assert failed(seen, Expected(gpus=1)) == {
        "gpu_count": "0 of 1 GPUs: no NVIDIA driver on this image (NVML Shared Library Not Found); "
        "name one that has it, see image.mode"
    }


def test_the_report_says_what_failed_and_leaves_no_half_file(tmp_path):
    findings = (Finding("gpu_count", ok=False, detail="0 of 8 GPUs"), Finding("xid", ok=True, detail="none"))

    ready = gate.write_report(findings, tmp_path / "ready.json", datetime(2026, 11, 21, tzinfo=UTC))

    report = json.loads((tmp_path / "ready.json").read_text())
    assert not ready
    assert not report["ready"]
    assert report["checks"]["gpu_count"] == {"ok": False, "detail": "0 of 8 GPUs"}
    assert [file.name for file in tmp_path.iterdir()] == ["ready.json"]


def test_a_missing_instance_file_is_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))

    assert gate.main() == 1
    assert "instance.toml" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_report_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, caplog):
    (tmp_path / "instance.toml").write_text(MACHINE_FILE)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(tmp_path / "missing"))
    monkeypatch.setattr(gate.Metadata, "get", lambda *_: None)

    assert gate.main() == 1
    assert "event=no-report" in caplog.text
    assert "Traceback" not in caplog.text


def test_the_gate_calls_no_service():
    """It reports to the agent by its file; whom the sweep replaces is the sweep's affair."""
    sources = [path.read_text() for path in Path(gate.__file__).parent.glob("*.py")]

    assert not any("boto3" in source or "alicloud.session" in source for source in sources)

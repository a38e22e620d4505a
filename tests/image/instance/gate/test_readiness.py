"""The gate: what it expects, what it finds, what it says."""

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pynvml
import pytest
import torch

from gpu_fleet_image.core import paths
from gpu_fleet_image.core.instance_file import Expected
from gpu_fleet_image.core.metadata import SERVICES
from gpu_fleet_image.instance.agent import publish
from gpu_fleet_image.instance.gate import __main__ as gate
from gpu_fleet_image.instance.gate import checks, copies, probes
from gpu_fleet_image.instance.gate.checks import CheckResult, ProbedGpu, ProbedInstance
from tests.image.instance.fake_nvml import FakeNvml
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.metadata_server import metadata_server
from tests.ran import executable

EXPECTED = Expected(gpus=2, gpu_memory_gib=40, efa_interfaces=4)
A10G = Expected(gpus=1, gpu_memory_gib=24)
SOUND = ProbedInstance(
    gpus=(ProbedGpu("0", 39.4, 0, 0, 1300.0), ProbedGpu("1", 39.4, 0, 0, 1290.0)), efa_interfaces=4
)


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """The folder of an instance for its instance file and its reports."""
    (tmp_path / "instance.toml").write_text(INSTANCE_TOML)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(tmp_path))
    return tmp_path


def failed(seen, expected=EXPECTED):
    return {finding.check: finding.detail for finding in checks.judge(expected, seen) if not finding.ok}


def bent(**changes):
    return replace(SOUND, gpus=(SOUND.gpus[0], replace(SOUND.gpus[1], **changes)))


ALONE = replace(SOUND.gpus[0], inactive_nvlinks=18, fabric_to_come="fabric not started")
SLOW = (
    ProbedGpu("0", 80, 0, 0, 900.0, 2900.0, ("power brake",)),
    ProbedGpu("1", 80, 0, 0, 910.0, 2900.0),
)
NO_CUDA = "Error 802: system not yet initialized"
BIG = Expected(gpus=8, gpu_memory_gib=40, efa_interfaces=4)
# what is seen -> (what of it fails; of two GPUs, if nothing else is expected)
JUDGED = {
    "sound": (SOUND, {}),
    "no driver": (
        *(ProbedInstance(efa_interfaces=4, driver_problem="Driver Not Loaded"),),
        *({"gpu_count": "0 of 8 GPUs: Driver Not Loaded"}, BIG),
    ),
    "less memory": (bent(memory_gib=19.5), {"gpu_memory": "GPU 1 has 19.5 GiB"}),
    "an uncorrected error": (bent(uncorrected_ecc_errors=3), {"ecc": "GPU 1: 3"}),
    "links down": (bent(inactive_nvlinks=2), {"nvlink": "GPU 1: 2 down"}),
    "an only GPU, whose links lead nowhere": (replace(SOUND, gpus=(ALONE,)), {}, replace(EXPECTED, gpus=1)),
    "no CUDA": (bent(copy_gib_per_s=None, cuda_problem=NO_CUDA), {"cuda": f"GPU 1: {NO_CUDA}"}),
    "slower than its neighbours": (bent(copy_gib_per_s=900.0), {"bandwidth": "GPU 1: 900 GiB/s"}),
    "all slow alike, with what slows them": (
        replace(SOUND, gpus=SLOW),
        {"bandwidth": "all are slow alike: GPU 0: 900 of 2900 GiB/s (power brake); GPU 1: 910 of 2900 GiB/s"},
    ),
    "less than the peak": (bent(copy_gib_per_s=1290.0, peak_gib_per_s=1290.0 / 0.75), {}),
    "no card": (replace(SOUND, efa_interfaces=3), {"fabric": "3 of 4 EFA interfaces"}),
}


def test_each_finding_fails_its_check_alone_and_says_what_was_found():
    found = {key: failed(seen, *expected) for key, (seen, _, *expected) in JUDGED.items()}

    assert found == {key: row[1] for key, row in JUDGED.items()}


BUS = "PCI:0000:10:1c"
FALLEN = f"NVRM: Xid ({BUS}): 79, fallen"
LINK = f"NVRM: Xid ({BUS}): {{}}, NETIR_LINK_EVT {{}} XC0 i0 Link 02 (0x0250 0 0 0 0 0)\n"
RESET, REBOOT, NONE = "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)", "0x0 (None)"
TO_REBOOT = "Xid 154 (Node Reboot Required) on PCI:0000:3b:00"
# the kernel names the control group that ran out of memory, and a user names those of their session
GROUP = "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user.slice/{},task=python,pid=7,uid=1001\n"


def recovery(before, after):
    return f"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from {before} to {after}\n"


# the kernel's messages -> what fails
LOGS = {
    f"NVRM: Xid ({BUS}): 31, pid=7, a bad pointer\n": "",  # a program's
    **{f"NVRM: Xid ({BUS}): {code}, pid=1\n" * 2: f"Xid {code} on {BUS}" for code in checks.FATAL_XIDS},
    # of Blackwell's links, where the driver calls it fatal
    **{LINK.format(code, "Fatal"): f"Xid {code} on {BUS}" for code in range(144, 151)},
    **{LINK.format(code, "Nonfatal"): "" for code in range(144, 151)},
    # what the driver wants counts until it wants nothing
    recovery(NONE, REBOOT): TO_REBOOT,
    recovery(NONE, RESET) + recovery(RESET, NONE): "",
    "NVRM: Xid (PCI:0000:3b:00): 154\n": TO_REBOOT.replace(
        "Node Reboot Required", "an action that the driver does not name"
    ),
    # words of users are no error of the driver, and hide none
    GROUP.format(FALLEN): "",
    recovery(NONE, REBOOT) + GROUP.format(recovery(REBOOT, NONE).strip()): TO_REBOOT,
}


def test_errors_in_the_kernels_messages_after_which_a_gpu_is_unusable_fail():
    found = {log: failed(replace(SOUND, kernel_log=log)) for log in LOGS}

    assert found == {log: {"xid": said} if said else {} for log, said in LOGS.items()}


CRASHED = "x[7]: segfault at 0 ip 00 sp 00 error 4 in {}[5555+1000]"


def test_a_file_whose_name_has_two_lines_forges_no_error_of_the_driver(tmp_path, monkeypatch):
    """The kernel names the file in which a user's program crashed, and journald keeps a line's end in it."""
    messages = [CRASHED.format(f"a{end}{FALLEN}") for end in ("\n", "\x0b", "\u2028")]
    entries = [{"MESSAGE": text} for text in messages] + [{"MESSAGE": None}]
    own = "NVRM: Xid (PCI:0000:3b:00): 48, name=\udcff"
    entries.append({"MESSAGE": list(own.encode(errors="surrogateescape"))})
    says = "\n".join(json.dumps(entry) for entry in entries)
    executable(tmp_path / "journalctl", f"#!/bin/sh\ncase $* in *=json*) cat <<'.'\n{says}\n.\nesac\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    seen = replace(SOUND, kernel_log=probes.probe(NO_DRIVER, sys=tmp_path).kernel_log)

    assert failed(seen) == {"xid": "Xid 48 on PCI:0000:3b:00"}


def test_what_broke_after_the_boot_check_makes_an_instance_unfit_for_a_job(run_dir, monkeypatch, capsys):
    """Links train and copies are slow while jobs run: those checks are the boot's alone."""
    gate.write_report(checks.judge(EXPECTED, SOUND), paths.ready_file(), datetime(2026, 11, 26, tzinfo=UTC))
    fallen = replace(SOUND, gpus=SOUND.gpus[:1], kernel_log=f"{FALLEN}\n")
    at_work = bent(inactive_nvlinks=2, copy_gib_per_s=1.0)
    reached = "169.254.169.254 answers users with 200"

    for seen, opened, unfit in (
        (fallen, "", ["1 of 2 GPUs", f"Xid 79 on {BUS}"]),
        (at_work, "", []),
        (SOUND, reached, [f"aws: {reached}"]),
    ):
        monkeypatch.setattr(gate, "_probe", Mock(return_value=seen))
        monkeypatch.setattr(gate, "opened", f"{{}}: {opened}".format if opened else Mock(return_value=""))

        assert gate.main(["health"]) == 0
        assert capsys.readouterr().out.splitlines() == unfit


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_the_gate_expects_what_the_instances_own_type_has(cloud, run_dir, monkeypatch):
    """The two clouds keep the type under different paths of their metadata."""
    text = INSTANCE_TOML.replace('"aws"', f'"{cloud}"') + '[expected."big"]\ngpus = 8\n'
    (run_dir / "instance.toml").write_text(text)
    path = {"aws": "instance-type", "alicloud": "instance/instance-type"}[cloud]

    with metadata_server(cloud) as service:
        service.says(path, "big")
        monkeypatch.setenv(SERVICES[cloud][0], service.base)
        status = gate.main()

    report = json.loads((run_dir / "ready.json").read_text())
    assert status == 1
    assert report["checks"]["gpu_count"]["detail"].startswith("0 of 8 GPUs")


NO_DRIVER = FakeNvml()
NO_DRIVER.fail("nvmlInit", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


def rdma_device(sys, name, driver, state=None):
    device = sys / "class/infiniband" / name
    (device / "device").mkdir(parents=True)
    (device / "device/driver").symlink_to(sys / "drivers" / driver)
    if state:
        (device / "ports/1").mkdir(parents=True)
        (device / "ports/1/state").write_text(f"{state}\n")


def test_rdma_devices_are_counted_by_their_driver_while_they_are_up(tmp_path):
    rdma_device(tmp_path, "rdmap0", "efa", "4: ACTIVE")
    rdma_device(tmp_path, "rdmap1", "efa", "1: DOWN")
    rdma_device(tmp_path, "rdmap2", "efa")
    rdma_device(tmp_path, "mlx5_0", "mlx5_core", "4: ACTIVE")

    seen = probes.probe(NO_DRIVER, sys=tmp_path)

    assert (seen.efa_interfaces, seen.erdma_interfaces) == (2, 0)
    assert seen.driver_problem == "Driver Not Loaded"


def pci_device(sys, name, vendor, kind):
    device = sys / "bus/pci/devices" / name
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")


def test_a_driver_that_does_not_answer_is_waited_for_where_its_gpus_are_on_the_bus(tmp_path):
    pci_device(tmp_path, "0000:00:01.0", "0x10de", "0x068000")  # an NVSwitch
    pci_device(tmp_path, "0000:00:03.0", "0x1d0f", "0x030000")  # a screen
    for on_the_bus in (1, 2):
        pci_device(tmp_path, f"0000:10:1{on_the_bus}.0", "0x10de", "0x030200")

        found = checks.gpu_count(EXPECTED, probes.probe(NO_DRIVER, sys=tmp_path))

        assert (found.ok, found.waiting) == (False, on_the_bus == EXPECTED.gpus)


def test_the_peak_of_a_memory_is_that_of_its_data_sheet_and_what_holds_a_gpu_back_is_named(tmp_path):
    whole, cut = FakeNvml(), FakeNvml(mig_instances=[])
    whole.gpus[0].clock_events = pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown

    (gpu,), (piece,) = (probes.probe(nvml, sys=tmp_path).gpus for nvml in (whole, cut))

    assert gpu.peak_gib_per_s * probes.GIB / 1e9 == pytest.approx(600, rel=0.001)  # NVIDIA A10G
    assert (gpu.slowed_by, piece.slowed_by, piece.peak_gib_per_s) == (("power brake",), (), None)


# state and status of NVML -> what is to come, what has failed
FABRIC = {
    ("NOT_SUPPORTED", 0): ("", ""),
    ("NOT_STARTED", 0): ("fabric not started", ""),
    ("IN_PROGRESS", 0): ("fabric in progress", ""),
    ("COMPLETED", 0): ("", ""),
    ("COMPLETED", pynvml.NVML_ERROR_UNKNOWN): ("", "fabric failed: NVML error 999"),
}


def test_the_state_of_the_fabric_is_read(tmp_path):
    def read(state, status):
        nvml = FakeNvml()
        nvml.gpus[0].fabric = (getattr(pynvml, f"NVML_GPU_FABRIC_STATE_{state}"), status)
        (gpu,) = probes.probe(nvml, sys=tmp_path).gpus
        return gpu.fabric_to_come, gpu.fabric_problem

    assert {given: read(*given) for given in FABRIC} == FABRIC


def test_a_gpu_that_cuda_cannot_use_is_a_finding_and_not_a_crash(tmp_path, monkeypatch):
    """As torch behaves without a fabric manager: it counts no GPU, and fails where it is used."""

    def refuse(_):
        raise RuntimeError(f"{NO_CUDA}\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", refuse)

    seen = probes.probe(FakeNvml(), lambda count: [*map(copies.copied, range(count))], tmp_path)

    assert failed(seen, A10G) == {"cuda": f"GPU 0 (00:1e.0): {NO_CUDA}"}


def test_what_an_environment_answers_is_told_from_one_that_is_not_there_yet_or_not_whole(tmp_path):
    """A sound instance that cannot reach PyPI, say, and was rebooted: it is not to be replaced for that."""

    def checks_failed(name, program, *, complete=True):
        python = tmp_path / name / "venv/bin/python"
        executable(python, f'#!/bin/sh\nexec {program} "$@"\n')
        if complete:
            executable(tmp_path / name / "venv/lib/python3.12/site-packages/gpu-fleet.pth", "")
        seen = probes.probe(FakeNvml(), lambda count: probes.measured(count, python), tmp_path)
        return failed(seen, A10G).keys()

    assert probes.measured(2, tmp_path / "venv/bin/python") == [(None, ""), (None, "")]
    assert checks_failed("silent", "/bin/true") == {"cuda"}
    assert checks_failed("in part", "/bin/false", complete=False) == set()
    if torch.version.cuda is None:  # it measures nothing
        assert checks_failed("whole", sys.executable) == set()


def test_the_recipe_says_last_that_the_environment_is_complete():
    step = (Path(probes.__file__).parents[2] / "recipe/steps/70-trainer.sh").read_text()
    marker = Path(probes.COMPLETE).name

    assert step.count(marker) == 1
    assert step.index("venv --clear") < step.index('"${pip[@]}" check') < step.index(marker)


def test_an_image_without_a_driver_is_named_as_one(tmp_path):
    seen = probes.probe(pynvml, sys=tmp_path)

    if not seen.driver_problem.startswith("no NVIDIA driver"):
        pytest.skip(f"this computer has a driver: {seen.driver_problem}")
    assert failed(seen, Expected(gpus=1)) == {
        "gpu_count": "0 of 1 GPUs: no NVIDIA driver on this image (NVML Shared Library Not Found); "
        "choose a base with a driver, see image.mode"
    }


# waiting

LATE = replace(SOUND, efa_interfaces=3)
TRAINING = bent(fabric_to_come="fabric in progress", inactive_nvlinks=18)
OPEN = replace(SOUND, metadata_problem="169.254.169.254 answers users with 401")
NO_SESSION = replace(SOUND, credentials_problem="http://127.0.0.1:823/credentials: 503 AccessDenied")
NOT_READY = bent(copy_gib_per_s=None, cuda_problem=NO_CUDA)
BROKEN = bent(uncorrected_ecc_errors=3)


class Instance:
    """Shows one thing after another, the last one for ever, on a clock of its own."""

    def __init__(self, *shows, copied=SOUND):
        self.shows, self.copied, self.copies, self.reports, self.clock_s = list(shows), copied, 0, [], 0.0

    def see(self, copies):
        if copies:
            self.copies += 1
            return self.copied
        return self.shows.pop(0) if len(self.shows) > 1 else self.shows[0]

    def wait(self, seconds):
        self.clock_s += seconds

    def judged(self):
        found = gate.awaited(EXPECTED, self.see, self.reports.append, self.wait, lambda: self.clock_s)
        return {finding.check: finding.detail for finding in found if not finding.ok}


TO_COME = ProbedInstance(gpus_to_come=2, efa_interfaces=4)
LOST = bent(copy_gib_per_s=None, cuda_problem="Error 46: all CUDA-capable devices are busy")
NO_FABRIC = bent(fabric_problem="fabric failed: NVML error 999")
ONCE, AT_ONCE, GIVEN_UP = 2 * gate.LOOK_EVERY_S, 0, gate.MAY_TAKE_S
# what the instance shows, and the copies on it -> (what fails, seconds, copies that were made)
WAITS = {
    "cards that come": (([LATE, LATE, SOUND], SOUND), set(), ONCE, 1),
    "a fabric that comes": (([TRAINING, TRAINING, SOUND], SOUND), set(), ONCE, 1),
    "GPUs that come": (([TO_COME, TO_COME, SOUND], SOUND), set(), ONCE, 1),
    "cards that do not": (([LATE], SOUND), {"fabric"}, GIVEN_UP, 0),
    "a fabric that does not": (([TRAINING], SOUND), {"nvswitch", "nvlink"}, GIVEN_UP, 0),
    "an open metadata service": (([OPEN], SOUND), {"metadata"}, GIVEN_UP, 0),
    "no session for users": (([NO_SESSION], SOUND), {"user_credentials"}, GIVEN_UP, 0),
    "CUDA that is not ready": (([SOUND], NOT_READY), {"cuda"}, GIVEN_UP, 61),
    "CUDA that fails otherwise": (([SOUND], LOST), {"cuda"}, AT_ONCE, 1),
    "a broken GPU": (([BROKEN], SOUND), {"ecc"}, AT_ONCE, 0),
    "a broken GPU, whatever else would come": (
        *(([replace(BROKEN, efa_interfaces=0)], SOUND), {"ecc", "fabric"}, AT_ONCE, 0),
    ),
    "a broken fabric": (([NO_FABRIC], SOUND), {"nvswitch"}, AT_ONCE, 0),
}


@pytest.mark.parametrize("case", WAITS)
def test_what_may_come_is_waited_for_and_what_never_does_or_is_broken_fails_and_says_so(case):
    (shows, copied), fails, seconds, copies = WAITS[case]
    instance = Instance(*shows, copied=copied)

    found = instance.judged()

    assert (found.keys(), instance.clock_s, instance.copies) == (fails, seconds, copies)
    assert len(instance.reports) == seconds / gate.LOOK_EVERY_S
    late = [detail.endswith("; still so after 300 s") for detail in found.values()]
    assert late == [seconds == GIVEN_UP] * len(found)


# the report


def finding(ok, *, waiting=False):
    return [CheckResult("fabric", ok=ok, detail="as found", waiting=waiting)]


def test_only_a_gate_that_passed_lets_trainers_start_and_no_second_look_stops_them_while_it_waits(run_dir):
    """The agent knows of no verdict meanwhile."""
    waits, passes, fails = finding(ok=False, waiting=True), finding(ok=True), finding(ok=False)
    seen = []
    for result in (waits, passes, waits, fails):
        gate.report(result)
        report = json.loads((run_dir / "ready.json").read_text())
        agents = publish.passed(run_dir / "ready.json")
        seen.append(((run_dir / "ready").exists(), agents, report["waiting_for"]))

    assert seen == [(False, None, ["fabric"]), (True, True, []), (True, None, ["fabric"]), (False, False, [])]


def test_a_gate_that_its_unit_had_to_kill_is_a_failed_one(run_dir):
    gate.report(finding(ok=False, waiting=True))

    assert gate.main([gate.TIMED_OUT]) == 1

    assert publish.passed(run_dir / "ready.json") is False
    assert "hangs" in (run_dir / "ready.json").read_text()


def test_the_trainers_unit_wants_the_file_that_the_gate_writes():
    unit = (Path(gate.__file__).parents[2] / "recipe/rootfs/etc/systemd/system/trainer@.service").read_text()

    assert f"AssertPathExists={paths.passed_file()}\n" in unit


def test_the_report_says_what_failed_and_leaves_no_half_file(tmp_path):
    findings = (
        CheckResult("gpu_count", ok=False, detail="0 of 8 GPUs"),
        CheckResult("xid", ok=True, detail="none"),
    )

    ready = gate.write_report(findings, tmp_path / "ready.json", datetime(2026, 11, 21, tzinfo=UTC))

    report = json.loads((tmp_path / "ready.json").read_text())
    assert not ready
    assert not report["ready"]
    assert report["checks"]["gpu_count"] == {"ok": False, "detail": "0 of 8 GPUs"}
    assert [file.name for file in tmp_path.iterdir()] == ["ready.json"]


@pytest.mark.parametrize(("missing", "said"), [("instance.toml", "instance.toml"), ("x", "event=no-report")])
def test_a_missing_instance_file_and_a_report_that_cannot_be_written_are_one_line(
    missing, said, run_dir, monkeypatch, caplog
):
    (run_dir / missing).unlink(missing_ok=True)
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(run_dir / "missing"))
    monkeypatch.setattr(gate.Metadata, "get", lambda *_: None)

    assert gate.main() == 1
    assert said in caplog.text
    assert "Traceback" not in caplog.text


def test_the_gate_calls_no_service():
    """It reports to the agent by its file; whom the sweep replaces is the sweep's affair."""
    sources = [path.read_text() for path in Path(gate.__file__).parent.glob("*.py")]

    assert not any("boto3" in source or "alicloud.session" in source for source in sources)

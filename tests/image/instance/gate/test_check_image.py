"""What a built image must show on an instance with GPUs: the driver has each, and all of them add up."""

import shutil
import sys
from pathlib import Path

import pytest

from gpu_fleet_image.recipe import build_requirements, payload
from tests.ran import executable, ran

CHECK = payload.PROJECT / "image/gpu_fleet_image/recipe/rootfs/usr/libexec/gpu-fleet/check-image"


# The gate's own judgement, of as many GPUs as would answer it; every other module says yes.
GATE = """
import sys
sys.path[:0] = ["{top}", *{path}]
if sys.argv[1] == "gpu_fleet_image.instance.gate":
    from gpu_fleet_image.instance.gate import __main__ as gate
    from gpu_fleet_image.instance.gate.checks import ProbedGpu, ProbedInstance
    gpus = tuple(ProbedGpu(str(number), 24) for number in range({gpus}))
    gate._probe = lambda copies: ProbedInstance(gpus)
    sys.exit(gate.main())
"""
# What a sound image answers to all else that is looked at.
OTHERS = {
    "dpkg-query": "echo nvidia-graphics-drivers-580 580.95.05 installed",
    "systemctl": "true",
    "find": 'case "$*" in *nvidia.ko*) echo nvidia.ko ;; /lib/modules*) echo 6.8.0 ;; '
    '*) exec /usr/bin/find "$@" ;; esac',
}


@pytest.fixture
def check(tmp_path):
    """Runs check-image where the bus and the driver are made up; gives what it says of the GPUs."""
    if build_requirements.hindrance() is not None or shutil.which("unshare") is None:
        pytest.skip("made-up devices are mounts, which need root and unshare")
    if not Path("/sys/bus/pci/devices").is_dir():
        pytest.skip("no PCI bus on this computer")

    def run(bus, driven, when, status=0, answering=None, *, manifest="{}"):
        for folder in ("bus", "driver", *(f"driver/nvidia/gpus/{number}" for number in range(driven))):
            (tmp_path / folder).mkdir(parents=True)
        gpus = driven if answering is None else answering
        files = {f"share/gpu-fleet/{name}": manifest for name in ("manifest.json", "sbom.cdx.json")} | {
            "opt/gpu-fleet/bin/run": GATE.format(gpus=gpus, top=payload.PROJECT, path=sys.path),
            "opt/gpu-fleet/venv/bin/python": f'#!/bin/bash\necho "$*" >>"{tmp_path}/calls"\nexit {status}\n',
            **{f"bin/{name}": f"#!/bin/bash\n{body}\n" for name, body in OTHERS.items()},
        }
        for number, (vendor, kind) in enumerate(bus):
            device = f"bus/0000:00:{number:02}.0"
            files |= {f"{device}/vendor": f"{vendor}\n", f"{device}/class": f"{kind}\n"}
        for name, text in files.items():
            executable(tmp_path / name, text)
        (tmp_path / "calls").touch()
        mounts = {
            "bus": "/sys/bus/pci/devices",
            "driver": "/proc/driver",
            "opt": "/opt",
            "share": "/usr/share",
        }
        lines = [f"mount --bind {tmp_path}/{name} {place}" for name, place in mounts.items()]
        script = "\n".join([*lines, f"PATH={tmp_path}/bin:$PATH exec bash {CHECK} {when}"])
        done = ran(["unshare", "--mount", "bash", "-e", "-c", script])
        run.status, run.output = done.returncode, done.stdout + done.stderr
        calls = (tmp_path / "calls").read_text().splitlines()
        said = [line for line in done.stdout.splitlines() if "name=gpus " in line]
        return said, [line for line in calls if "torch.distributed.run" in line]

    return run


GPU, SWITCH, CARD = ("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x1d0f", "0x020000")


def test_a_clouds_image_without_the_users_tools_fails_the_build(check):
    check([CARD], 0, "booted", manifest='{"target": "aws"}')

    assert check.status == 1
    assert {f"name={tool} ok=false" in check.output for tool in ("notebook", "uv", "micromamba")} == {True}


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_a_valid_image_passes_as_a_whole(check, gpus):
    check([GPU] * gpus, gpus, "booted")

    assert check.status == 0, check.output
    assert "name=gate ok=true" in check.output


def test_a_gate_that_sees_fewer_gpus_than_the_bus_fails_the_build(check):
    check([GPU, GPU], 2, "booted", answering=1)

    assert check.status == 1
    assert "name=gate ok=false" in check.output


FOUND, LACKING = "event=check name=gpus ok=true", "event=check name=gpus ok=false"
# the bus, how many the driver has, when, the launcher's status; what is said, and the ranks that add up
ASKED = {
    "no GPU": ([CARD], 0, "booted", 0, [], []),
    "a rank for each GPU and none for a switch": (
        *([GPU, GPU, SWITCH, CARD], 2, "booted", 0),
        *([FOUND], ["--nproc-per-node 2 -m gpu_fleet_image.instance.gate.all_reduce nccl"]),
    ),
    "a GPU alone is tried by two": (
        *([GPU], 1, "booted", 0),
        *([FOUND], ["--nproc-per-node 2 -m gpu_fleet_image.instance.gate.all_reduce gloo"]),
    ),
    "one that the driver lacks": (
        *([GPU, GPU], 1, "booted", 0),
        *([f"{LACKING} detail='2 GPUs on the bus, 1 in the driver'"], []),
    ),
    "the builder itself is not asked": ([GPU], 1, "built", 0, [], []),
}


@pytest.mark.parametrize("case", ASKED)
def test_every_gpu_of_the_bus_is_in_the_driver_and_adds_up(check, case):
    *given, said, ranks = ASKED[case]

    found, calls = check(*given)

    assert found == said
    assert [call.partition("--standalone ")[2] for call in calls] == ranks


def test_a_failed_all_reduce_fails_the_build(check):
    (said,), _ = check([GPU, GPU], 2, "booted", status=1)

    assert said.startswith(LACKING)


def test_ranks_add_up_by_gloo(forked):
    launched = ran(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *("-m", "gpu_fleet_image.instance.gate.all_reduce", "gloo"),
        ],
        cwd=payload.PROJECT,
        timeout=120,
    )

    assert launched.returncode == 0, launched.stderr

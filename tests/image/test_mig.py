"""The program behind the MIG units, with an nvidia-smi that writes down what it was told."""

import os
import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "image/rootfs/usr/libexec/gpu-fleet/mig"
# Three instances of 2g.10gb fit on an A100 of 40 GB; the fourth is refused, as by the real one.
NVIDIA_SMI = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$*" in
    *--list-gpu-instance-profiles*) printf '|  0  MIG 1g.5gb  |\\n|  0  MIG 2g.10gb  |\\n' ;;
    *--create-gpu-instance*) [ "$(grep -c -e --create-gpu-instance "$CALLS")" -le 3 ] || exit 19 ;;
    *--destroy*) exit 6 ;;
esac
"""


@pytest.fixture
def mig(tmp_path):
    """Runs the program; gives its exit status, what it said, and the calls it made."""
    fake = tmp_path / "bin/nvidia-smi"
    fake.parent.mkdir()
    fake.write_text(NVIDIA_SMI)
    fake.chmod(0o755)
    calls, file = tmp_path / "calls", tmp_path / "instance.toml"
    calls.touch()

    def run(*arguments, instance_file='mig_profile = ""'):
        file.write_text(instance_file)
        done = subprocess.run(
            ["bash", str(PROGRAM), *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": f"{fake.parent}:{os.environ['PATH']}",
                "CALLS": str(calls),
                "GPU_FLEET_INSTANCE_FILE": str(file),
            },
        )
        return done.returncode, done.stdout + done.stderr, calls.read_text().splitlines()

    return run


def test_the_profile_of_the_instance_file_fills_the_gpus(mig):
    status, _, calls = mig("declared", instance_file='mig_profile = "2g.10gb"')

    assert status == 0
    assert calls.index("--multi-instance-gpu=1") < calls.index(
        "mig --create-gpu-instance 2g.10gb --default-compute-instance"
    )
    assert calls[-1] == "--list-gpus"


def test_without_a_profile_the_gpus_stay_whole(mig):
    for instance_file in ('mig_profile = ""', "schema_version = 1"):
        status, said, calls = mig("declared", instance_file=instance_file)

        assert (status, calls) == (0, [])
        assert "event=whole-gpus" in said


def test_a_profile_that_the_gpus_do_not_know_cuts_nothing(mig):
    status, said, calls = mig("declared", instance_file='mig_profile = "1g.18gb"')

    assert status == 1
    assert "error: MIG profile '1g.18gb': these GPUs have 1g.5gb 2g.10gb" in said
    assert "--multi-instance-gpu=1" not in calls


def test_removing_makes_the_gpus_whole_again(mig):
    status, _, calls = mig("remove")

    assert status == 0
    assert calls[-1] == "--multi-instance-gpu=0"


def test_anything_else_says_how_it_is_used(mig):
    status, said, _ = mig("cut")

    assert status == 2
    assert said.startswith("usage: mig create PROFILE")

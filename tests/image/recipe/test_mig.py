"""The program behind the MIG units, with an nvidia-smi that writes down what it was told."""

import os
import re

import pytest

from tests.image.recipe.recipe import LIBEXEC
from tests.ran import executable, ran

PROGRAM = LIBEXEC / "mig"
# Three instances of 2g.10gb fit on an A100 of 40 GB; the fourth is refused, as by the real one.
NVIDIA_SMI = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$*" in
    *--list-gpu-instance-profiles*)
        [ -z "$NO_MIG" ] || exit 6
        printf '|  0  MIG 1g.5gb  |\\n|  0  MIG 2g.10gb  |\\n' ;;
    --multi-instance-gpu=1) exit "${MODE_STATUS:-0}" ;;
    *--create-gpu-instance*)
        [ -z "$HELD" ] || exit 6
        [ "$(grep -c -e --create-gpu-instance "$CALLS")" -le 3 ] || exit 19 ;;
    *--destroy*) exit 6 ;;
esac
"""


@pytest.fixture
def mig(tmp_path):
    """Runs the program; gives its exit status, what it said, and the calls it made."""
    fake = tmp_path / "bin/nvidia-smi"
    executable(fake, NVIDIA_SMI)
    calls, file = tmp_path / "calls", tmp_path / "instance.toml"
    calls.touch()

    def run(*arguments, instance_file='mig_profile = ""', **gpus):
        file.write_text(instance_file)
        done = ran(
            ["bash", str(PROGRAM), *arguments],
            env={
                "PATH": f"{fake.parent}:{os.environ['PATH']}",
                "CALLS": str(calls),
                "GPU_FLEET_INSTANCE_FILE": str(file),
                **gpus,
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


@pytest.mark.parametrize(
    ("profile", "gpus", "message"),
    [
        ("1g.18gb", {}, "error: MIG profile '1g.18gb': these GPUs have 1g.5gb 2g.10gb"),
        ("1g.5gb", {"NO_MIG": "yes"}, "error: MIG profile '1g.5gb': these GPUs have none"),
        ("2g.10gb", {"HELD": "yes"}, "no instance could be made; does a program hold a GPU?"),
    ],
)
def test_what_cannot_be_cut_is_said_and_not_said_to_be_cut(mig, profile, gpus, message):
    status, said, calls = mig("declared", instance_file=f'mig_profile = "{profile}"', **gpus)

    assert status == 1
    assert message in said
    assert ("--multi-instance-gpu=1" in calls) is ("HELD" in gpus)


@pytest.mark.parametrize(
    ("words", "last"), [(("create", "2g.10gb"), "--list-gpus"), (("remove",), "--multi-instance-gpu=0")]
)
def test_gpus_whose_mode_is_on_since_before_a_reboot_are_cut_again_and_made_whole_again(mig, words, last):
    status, _, calls = mig(*words, MODE_STATUS="1")

    assert status == 0
    assert calls[-1] == last


def test_no_process_holds_a_gpu_before_it_is_partitioned():
    unit = (PROGRAM.parents[3] / "etc/systemd/system/mig.service").read_text()

    before = re.search("^Before=(.*)$", unit, flags=re.MULTILINE).group(1).split()

    assert {"nvidia-dcgm.service", "nvidia-dcgm-exporter.service"} <= set(before)
    assert {"gpu-ready.service", "gpu-reaper.service"} <= set(before)


def test_anything_else_says_how_it_is_used(mig):
    status, said, _ = mig("cut")

    assert status == 2
    assert said.startswith("usage: mig create PROFILE")

"""An instance becomes a node: GPUs by the boot gate, munge's key, slurmd's command."""

import json
import os
import stat
import subprocess

import pytest

from gpu_fleet_image.core import queue_file
from gpu_fleet_image.core.queue_errors import NotReadyError, QueueFileError
from gpu_fleet_image.instance.slurm import node
from gpu_fleet_image.slurm import configuration, munge
from tests.image.slurm.fake_slurm import HEALTH, LIBEXEC, health_says
from tests.ran import executable

COUNTED = {"gpu_count": {"ok": True, "count": 8}}
GOOD = {"role": "node", "address": "10.0.0.4", "secret": "munge"}


def report(tmp_path, **content):
    file = tmp_path / "ready.json"
    file.write_text(json.dumps(content))
    return file


def test_the_gpus_are_those_that_the_gate_counted(tmp_path):
    assert node.counted_gpus(report(tmp_path, ready=True, checks=COUNTED)) == 8


@pytest.mark.parametrize(
    ("ready", "checks", "why"),
    [(False, COUNTED, "boot check"), (None, COUNTED, "boot check"), (True, {}, r"ready\.json")],
    ids=["failed", "not yet", "without a count"],
)
def test_an_instance_whose_gate_has_not_passed_is_no_node(tmp_path, ready, checks, why):
    with pytest.raises(NotReadyError, match=why):
        node.counted_gpus(report(tmp_path, ready=ready, checks=checks))


def test_slurmd_starts_under_the_instances_id_with_its_pool_and_gpus():
    command = configuration.node_command("i-1", "train", 8, "10.0.0.4")
    without = configuration.node_command("i-1", "train", 0, "10.0.0.4")

    assert command[3:5] == ["-N", "i-1"]
    assert "Feature=train Gres=gpu:8" in command
    assert "Feature=train" in without
    assert command[-2:] == ["--conf-server", "10.0.0.4:6817"]
    assert configuration.node_gpus(8) == "Name=gpu File=/dev/nvidia[0-7]\n"
    assert configuration.node_gpus(0) == ""


def test_the_key_is_readable_by_munge_alone(tmp_path):
    owners = []
    file = tmp_path / "etc" / "munge.key"

    for key in (b"k", b"l"):
        munge.lay(key, file, lambda path, *who: owners.append(who))

    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"l", 0o400)
    assert owners == [("munge", "munge")] * 2


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[]", "allowed: an object"),
        (json.dumps(GOOD | {"role": "login"}), "allowed: controller, node"),
        (json.dumps(GOOD | {"secret": ""}), "secret = ''"),
    ],
)
def test_a_queue_file_that_is_wrong_or_missing_says_what(tmp_path, content, says):
    file = tmp_path / "queue.json"
    if content is not None:
        file.write_text(content)

    with pytest.raises(QueueFileError, match=r"queue\.json") as caught:
        queue_file.load(file)
    assert says in str(caught.value)


def test_a_queue_file_is_read(tmp_path):
    file = tmp_path / "queue.json"
    file.write_text(json.dumps(GOOD))

    assert queue_file.load(file) == queue_file.QueueFile(queue_file.QueueRole.NODE, "10.0.0.4", "munge")


READY = frozenset({"ready"})
SILENT = (
    "update",
    "nodename=NODE",
    "state=drain",
    "reason=gpu-fleet: the GPUs or their driver do not answer",
)


def test_a_node_whose_gpu_broke_or_hangs_is_drained_until_it_is_whole():
    health = (LIBEXEC / "queue-health").read_text()

    drained = health_says(health, READY | {"broken"}, "State=MIXED Reason=")
    resumed = health_says(health, READY, "x State=IDLE+DRAIN Reason=gpu-fleet: broken")
    hung = health_says(health.replace(HEALTH, "false"), READY, "State=IDLE Reason=")

    assert drained == (("update", "nodename=NODE", "state=drain", "reason=gpu-fleet: broken"),)
    assert resumed == (("update", "nodename=NODE", "state=resume"),)
    assert hung == (SILENT,)


def test_a_look_at_the_gpus_that_nothing_ends_drains_the_node_and_is_begun_once(tmp_path):
    """As in a driver that hangs: the process stays through SIGKILL."""
    end, begun = tmp_path / "end", tmp_path / "begun"
    os.mkfifo(end)
    stuck = f"sh -c 'echo >>{begun}; read _ <{end}'"
    text = (LIBEXEC / "queue-health").read_text().replace(HEALTH, stuck).replace("-w 27", "-w 0.2")
    text = text.replace("$run/health", f"{tmp_path}/health")

    looks = [health_says(f"{text}# {look}", READY, "State=IDLE Reason=") for look in range(2)]
    end.write_text("\n")

    assert looks == [(SILENT,)] * 2
    assert begun.read_text() == "\n"


as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="prolog and epilog run as root, which gives folders away"
)


def around_job(tmp_path, name, job="17", uid="12345"):
    """Run prolog or epilog with folders of the test in the place of the instance's; return its status."""
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run/ready").touch()
    (tmp_path / "scratch").mkdir(exist_ok=True)
    text = (LIBEXEC / name).read_text().replace("/run/gpu-fleet", str(tmp_path / "run"))
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    environment = {"PATH": path, "SLURM_JOB_ID": job, "SLURM_JOB_UID": uid}
    script = text.replace("/scratch", str(tmp_path / "scratch"))
    return subprocess.run(["sh", "-c", script], env=environment, check=False, timeout=10).returncode


@as_root
def test_a_job_has_a_folder_of_its_own_from_prolog_to_epilog(tmp_path):
    passed = around_job(tmp_path, "queue-prolog")
    folder = (tmp_path / "scratch/17").stat()
    ended = around_job(tmp_path, "queue-epilog")

    assert (passed, ended) == (0, 0)
    assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (12345, 0o700)
    assert list((tmp_path / "scratch").iterdir()) == []


@as_root
def test_what_another_user_laid_at_a_jobs_name_is_neither_given_away_nor_deleted(tmp_path):
    own = tmp_path / "others"
    own.mkdir()
    (own / "work").touch()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch/17").symlink_to(own)

    around_job(tmp_path, "queue-prolog")
    around_job(tmp_path, "queue-epilog")

    assert (own / "work").exists()
    assert own.stat().st_uid == os.geteuid()
    assert [path.readlink() for path in (tmp_path / "scratch").iterdir()] == [own]


@as_root
@pytest.mark.parametrize("program", ["mkdir", "mktemp", "chown"])
def test_a_folder_that_another_user_lays_while_the_prolog_runs_is_not_the_jobs(tmp_path, program):
    trap = tmp_path / "scratch/17"
    lay = f"mkdir {trap} && touch {trap}/trap"
    executable(tmp_path / "bin" / program, f'#!/bin/sh\nPATH=/usr/bin:/bin\n{lay}\n{program} "$@"\n')

    around_job(tmp_path, "queue-prolog")

    assert (trap.stat().st_uid, list(trap.iterdir())) == (12345, [])


@as_root
def test_a_job_whose_folder_cannot_be_made_starts_without_one_but_not_with_another_users(tmp_path):
    executable(tmp_path / "bin/mktemp", "#!/bin/sh\nexit 1\n")
    statuses = [around_job(tmp_path, "queue-prolog")]
    (tmp_path / "scratch/17").mkdir()
    statuses.append(around_job(tmp_path, "queue-prolog"))

    assert statuses == [0, 1]

"""Who is logged in, and which command lines are work."""

import pytest

from image.reaper.agent.sample import Session
from image.reaper.agent.sessions import Process, sessions, terminal_user
from image.reaper.agent.watch_list import is_jupyter_kernel, is_watched


def process(*command, pid=7):
    return Process(pid, command)


@pytest.mark.parametrize("title", ["sshd: bob@pts/3", "sshd-session: bob@pts/3"])
def test_openssh_of_any_age_tells_user_and_terminal(title):
    assert terminal_user(process(title)) == ("pts/3", "bob")


@pytest.mark.parametrize("title", ["sshd: bob [priv]", "sshd: /usr/sbin/sshd -D", "vim sshd: bob@pts/3"])
def test_the_daemon_and_others_are_no_session(title):
    assert terminal_user(process(title)) is None
    assert list(sessions([process(title)])) == []


def test_a_session_without_a_terminal_counts_while_it_is_open():
    assert list(sessions([process("sshd: bob@notty")])) == [Session("ssh", "bob without a terminal (7)")]


def test_a_session_of_session_manager_is_told_by_its_id():
    worker = process("/usr/bin/ssm-session-worker", "bob-0123456789abcdef0")

    assert list(sessions([worker])) == [Session("session-manager", "bob-0123456789abcdef0")]


WORK = [
    "torchrun --nproc-per-node 8 train.py",
    "/opt/gpu-fleet/venv/bin/python3 /opt/gpu-fleet/venv/bin/torchrun train.py",
    "python -m torch.distributed.run train.py",
    "rsync -a /data/ /scratch/data/",
    "docker build -t x .",
    "docker buildx build .",
    "docker --context far build .",
    "buildctl build --frontend dockerfile.v0",
]
NO_WORK = [
    "",
    "rsync --daemon --no-detach",
    "docker ps",
    "dockerd -H fd://",
    "docker run --name build-box ubuntu sleep build",
    "python train.py",
    "vim torchrun.md",
    "buildkitd",
]


@pytest.mark.parametrize("line", WORK)
def test_work_is_on_the_watch_list(line):
    assert is_watched(line.split())


@pytest.mark.parametrize("line", NO_WORK)
def test_what_only_waits_or_merely_looks_alike_is_not(line):
    assert not is_watched(line.split())


def test_a_notebook_s_kernel_is_known_by_its_launcher():
    assert is_jupyter_kernel(["/opt/venv/bin/python", "-m", "ipykernel_launcher", "-f", "kernel-1.json"])
    assert not is_jupyter_kernel(["jupyter", "lab"])

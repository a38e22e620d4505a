"""Pods find each other by the scheduler's variables, in any order, and after pod 0 was replaced."""

import signal
import socket

import pytest
from click.testing import CliRunner

from gpu_fleet import cli
from gpu_fleet.core import exit_codes
from gpu_fleet.core.errors import LaunchError
from gpu_fleet_jobs.launch import rendezvous
from gpu_fleet_jobs.launch.rendezvous import JOIN_TIMEOUT_S, Assignment, assignment, join
from tests.training.programs import DIGITS, started

VARIABLES = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "run-0.run",
    "PET_MASTER_PORT": "29400",
    "PET_NPROC_PER_NODE": "8",
}


class Clock:
    """Time that passes only in pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def test_the_variables_of_torchrun_are_the_assignment():
    assert assignment(VARIABLES) == Assignment(2, 1, "run-0.run", 29400, 8)
    assert assignment({}) is None


@pytest.mark.parametrize("word", ["auto", "gpu"])
def test_kubeflow_may_leave_the_number_of_processes_open(word):
    found = assignment(VARIABLES | {"PET_NPROC_PER_NODE": word})

    assert found.processes is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PET_NNODES", "two", "PET_NNODES = 'two': must be a whole number from 1"),
        ("PET_NNODES", "0", "PET_NNODES = '0': must be a whole number from 1"),
        ("PET_NODE_RANK", "2", "PET_NODE_RANK = 2: must be below PET_NNODES = 2"),
        ("PET_MASTER_ADDR", "", "PET_MASTER_ADDR = '': must name pod 0"),
        ("PET_MASTER_PORT", "x", "PET_MASTER_PORT = 'x': must be a whole number"),
    ],
)
def test_a_wrong_variable_is_named(name, value, message):
    with pytest.raises(LaunchError, match=message):
        assignment(VARIABLES | {name: value})


def test_a_pod_waits_until_pod_0_is_there():
    clock, refusals = Clock(), [OSError("refused")] * 70

    def address(_: Assignment) -> str:
        if refusals:
            raise refusals.pop()
        return "10.0.0.2"

    found = join(Assignment(2, 1, "run-0.run", 29400, 1), address=address, clock=clock, pause=clock.pause)

    assert (found.own_address, found.is_host, found.host) == ("10.0.0.2", False, "run-0.run")
    assert clock.now == 70


def test_a_pod_does_not_wait_for_ever():
    clock = Clock()

    def address(_: Assignment) -> str:
        raise OSError("Name or service not known")

    with pytest.raises(LaunchError, match="not reached in 900 s: Name or service not known"):
        join(Assignment(2, 1, "run-0.run", 29400, 1), address=address, clock=clock, pause=clock.pause)
    assert clock.now == JOIN_TIMEOUT_S


def test_pod_0_takes_its_name_only_once_it_stands_for_this_pod():
    assert rendezvous._own_name(Assignment(2, 0, "127.0.0.1", 29400, 1)) == "127.0.0.1"
    with pytest.raises(OSError, match="assign requested address"):  # of the pod that was here before
        rendezvous._own_name(Assignment(2, 0, "192.0.2.1", 29400, 1))


def test_the_others_take_the_address_that_reaches_pod_0():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert rendezvous._towards_host(Assignment(2, 1, "127.0.0.1", port, 1)) == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        rendezvous._towards_host(Assignment(2, 1, "127.0.0.1", port, 1))


def test_a_run_of_one_pod_meets_no_peer():
    assert join(Assignment(1, 0, "", 29400, 1)) is None


def test_a_launch_in_a_pod_follows_the_variables(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)

    said = (
        CliRunner().invoke(cli.main, ["launch", str(DIGITS), "--dry-run", "--interrupt.save_s", "200"]).output
    )

    assert "--nproc-per-node=8" in said
    assert "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=run-0.run:29400" in said
    assert "is_host=false" in said
    assert "--shutdown-timeout=200" in said


def test_a_pod_that_is_stopped_while_it_waits_is_run_again():
    alone = VARIABLES | {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "1"}

    with started("gpu_fleet", "launch", DIGITS, environment=alone) as program:
        program.wait_for("event=waiting-for-pod-0")
        program.process.send_signal(signal.SIGTERM)
        status = program.finish()

    assert status == exit_codes.STOPPED, program.said

"""Pods find each other by the scheduler's variables, in any order, and after pod 0 was replaced."""

import signal
import socket
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from gpu_fleet import cli
from gpu_fleet.core import exit_codes
from gpu_fleet.core.errors import LaunchError
from gpu_fleet_jobs.launch import rendezvous
from gpu_fleet_jobs.launch.rendezvous import JOIN_TIMEOUT_S, Assignment, Rendezvous, assignment, join
from tests.training.programs import DIGITS, started

VARIABLES = {
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "run-0.run",
    "PET_MASTER_PORT": "29400",
    "PET_NPROC_PER_NODE": "8",
}


def test_the_variables_of_torchrun_are_the_assignment():
    assert assignment(VARIABLES) == Assignment(2, 1, "run-0.run", 29400, 8)
    assert assignment({}) is None
    for word in ("auto", "gpu"):  # Kubeflow may leave the number of processes open
        found = assignment(VARIABLES | {"PET_NPROC_PER_NODE": word})
        assert found == Assignment(2, 1, "run-0.run", 29400, None)


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


@pytest.fixture
def joined() -> Callable[[int], tuple[Rendezvous | LaunchError, float]]:
    """Return a function to what a pod joins after so many refusals, and the seconds, which pass in pauses."""

    def join_after(refusals: int) -> tuple[Rendezvous | LaunchError, float]:
        now, left = [0.0], iter([OSError("Name or service not known")] * refusals)

        def address(_: Assignment) -> str:
            for refusal in left:
                raise refusal
            return "10.0.0.2"

        def pause(seconds: float) -> None:
            now[0] += seconds

        pod = Assignment(2, 1, "run-0.run", 29400, 1)
        try:
            return join(pod, address=address, clock=lambda: now[0], pause=pause), now[0]
        except LaunchError as error:
            return error, now[0]

    return join_after


def test_a_pod_waits_until_pod_0_is_there_but_not_for_ever(joined):
    found, after_s = joined(70)
    refused, waited_s = joined(10**6)

    assert (found.own_address, found.is_host, found.host) == ("10.0.0.2", False, "run-0.run")
    assert "not reached in 900 s: Name or service not known" in str(refused)
    assert (after_s, waited_s) == (70, JOIN_TIMEOUT_S)


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

"""How much the rehearsal's monitor adds to the AWS calls it makes: ``python -m tests.bench.bench_stacks``.

The same boto3 calls, with the same parameters and in the same order, are made by the ``aws-prod`` program
under the monitor and then by a bare loop, each against an empty moto whose identifiers follow from one seed,
so that the parameters of the loop name what the loop itself has made. Clients are new in every round; imports
and service descriptions are read before the first one.
"""

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from botocore import xform_name

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed, run_program
from tests.bench.entries import entry

STACK, REGION = "aws-prod", "us-east-1"
ROUNDS = 5
COMMAND = "python -m tests.bench.bench_stacks"
GOAL_RATIO = 1.3  # of the whole program, the Pulumi SDK's own work among it, to the loop
GOAL_SECONDS = 3.0  # for the whole program


@dataclass(frozen=True)
class Call:
    """One AWS call as boto3 was asked to make it."""

    service: str
    operation: str
    parameters: dict[str, Any]


@contextmanager
def fresh() -> Iterator[RegionClients]:
    """An empty moto and clients that were never used."""
    with moto_server(REGION):
        clients = RegionClients(REGION)
        yield clients
        clients.pool.close()


def under_the_monitor() -> tuple[float, Rehearsed, list[Call]]:
    """Seconds of the whole program, what it left, and the calls it made."""
    with fresh() as clients:
        calls: list[Call] = []

        def note(params: dict[str, Any], model: Any, **_: Any) -> None:
            calls.append(Call(model.service_model.service_name, model.name, dict(params)))

        clients.pool.session.events.register("provide-client-params", note)
        started = time.perf_counter()
        rehearsed = run_program(STACK, clients=clients)
        return time.perf_counter() - started, rehearsed, calls


def in_a_bare_loop(calls: list[Call]) -> float:
    """Seconds of the same calls, one after the other."""
    with fresh() as clients:
        started = time.perf_counter()
        for call in calls:
            getattr(clients(call.service), xform_name(call.operation))(**call.parameters)
        return time.perf_counter() - started


def stack_seconds() -> dict[str, dict[str, Any]]:
    """The entries of this bench."""
    under_the_monitor()  # warms: moto's backends, boto3's service descriptions, the provider's SDK
    with_monitor, bare = [], []
    for _ in range(ROUNDS):
        seconds, rehearsed, calls = under_the_monitor()
        with_monitor.append(seconds)
        bare.append(in_a_bare_loop(calls))
    count = len(rehearsed.resources)
    value, peer = statistics.median(with_monitor) / count, statistics.median(bare) / count
    whole = statistics.median(with_monitor)
    return {
        "stack_seconds_per_resource": entry(value, "s", peer, GOAL_RATIO, command=COMMAND),
        "stack_program_seconds": entry(whole, "s", None, GOAL_SECONDS, command=COMMAND),
    }


if __name__ == "__main__":
    print(json.dumps(stack_seconds(), indent=2))  # noqa: T201 - its output is its result

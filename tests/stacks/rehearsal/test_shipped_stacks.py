"""The shipped stacks, each run whole under the rehearsal's monitor."""

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from gpu_fleet_stacks.rehearsal.aws_resources import CREATORS
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed, run_program
from gpu_fleet_stacks.rehearsal.recorded_outputs import LACKING
from gpu_fleet_stacks.rehearsal.registrations import RegistrationOutcome
from tests.stacks.rehearsal.api_limits import violations
from tests.stacks.rehearsal.examples import AWS_STACKS, REGION, STACKS
from tests.stacks.rehearsal.provider_schema import problems

# Modules of the SDK whose resources belong to a service of another name.
ENDPOINTS = {
    "cloudwatch/logGroup": "logs",
    **dict.fromkeys(("cloudwatch/eventRule", "cloudwatch/eventTarget"), "events"),
    **dict.fromkeys(("vpc/securityGroupEgressRule", "vpc/securityGroupIngressRule"), "ec2"),
}


@dataclass(frozen=True)
class Seen:
    """A run, what it asked of AWS against the API's limits, and what boto3 then saw in moto."""

    run: Rehearsed
    refusable: set[str]
    instances: list[dict[str, Any]]


@cache
def seen(stack: str) -> Seen:
    refusable: set[str] = set()

    def look(params: dict[str, Any], model: Any, **_: Any) -> None:
        refusable.update(violations(model, params))

    with moto_server(REGION):
        clients = RegionClients(REGION)
        clients.pool.session.events.register("before-parameter-build", look)
        run, ec2 = run_program(stack, clients=clients), clients("ec2")
        reservations = ec2.describe_instances()["Reservations"]
        clients.pool.close()
    instances = [instance for reservation in reservations for instance in reservation["Instances"]]
    return Seen(run, refusable, instances)


def rehearsed(stack: str) -> Rehearsed:
    return seen(stack).run


def refused_of(stack: str) -> list[str]:
    """What is amiss in the run of any stack."""
    run = rehearsed(stack)
    components = {made.urn for made in run.registrations if made.outcome is RegistrationOutcome.GROUPED}
    return [
        *(f"{name} has no value" for name, value in run.outputs.items() if value is None),
        *(problem for registration in run.registrations for problem in problems(registration)),
        *(f"{made.urn} has no provider" for made in run.resources if not made.provider),
        *(f"{made.urn} stands in no component" for made in run.resources if made.parent not in components),
    ]


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_comes_up_by_inputs_that_the_provider_knows_in_components_and_exports_values(stack):
    assert rehearsed(stack).resources
    assert rehearsed(stack).outputs
    assert refused_of(stack) == []


@pytest.mark.parametrize("stack", AWS_STACKS)
def test_moto_creates_what_it_can_is_asked_nothing_that_the_api_refuses_and_starts_the_instances(stack):
    resources = rehearsed(stack).resources
    recorded = {made.type for made in resources if made.outcome is RegistrationOutcome.RECORDED}
    groups = rehearsed(stack).of_type("aws:autoscaling/group:Group")

    assert {made.type for made in resources} - CREATORS.keys() - LACKING.keys() == set()
    assert recorded <= LACKING.keys()
    assert seen(stack).refusable == set()
    assert len(seen(stack).instances) == sum(group.inputs["desiredCapacity"] for group in groups)


def test_the_emulator_of_the_local_stack_answers_for_every_service_it_uses():
    (provider,) = rehearsed("local").of_type("pulumi:providers:aws")

    modules = {resource.type.split(":")[1] for resource in rehearsed("local").resources}
    used = {ENDPOINTS.get(module, module.partition("/")[0]) for module in modules}
    assert used - json.loads(provider.inputs["endpoints"])[0].keys() == set()


def test_the_same_stack_gives_the_same_resources_twice():
    def made_by(run: Rehearsed) -> set[tuple[str, str, RegistrationOutcome]]:
        return {(made.type, made.name, made.outcome) for made in run.registrations}

    with moto_server(REGION):
        second = run_program("local")

    assert made_by(rehearsed("local")) == made_by(second)

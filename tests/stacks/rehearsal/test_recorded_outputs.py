"""Resources that moto lacks."""

import pulumi

from gpu_fleet_stacks.rehearsal import sdk
from gpu_fleet_stacks.rehearsal.aws_resources import CREATORS
from gpu_fleet_stacks.rehearsal.program import run_program
from gpu_fleet_stacks.rehearsal.recorded_outputs import LACKING, reason, recorded
from gpu_fleet_stacks.rehearsal.registrations import RegistrationOutcome

PLACE = {"name": "mine", "strategy": "cluster"}
ARN = {"arn": "arn:aws:ec2:us-east-1:123456789012:placement-group/mine"}
# a type, its inputs, and what is recorded of it: its id, and outputs of their types that name it
PROMISED = (
    ("aws:ec2/placementGroup:PlacementGroup", PLACE, "mine", PLACE | ARN),
    (
        "alicloud:nas/mountTarget:MountTarget",
        {"fileSystemId": "fs-1"},
        "recorded-it",
        {"fileSystemId": "fs-1", "mountTargetDomain": "recorded-it-mount-target-domain"},
    ),
    (
        "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate",
        {},
        "recorded-it",
        {"latestVersionNumber": 1, "autoRenew": False},
    ),
    ("other:index/thing:Thing", {"size": 1}, "recorded-it", {"size": 1}),
)


def test_what_is_recorded_has_the_outputs_that_the_provider_promises(clients):
    for kind, inputs, expected, promised in PROMISED:
        identifier, outputs = recorded(clients, kind, "it", inputs)
        assert identifier == expected
        assert outputs.items() >= promised.items(), kind


def test_the_reason_is_reported():
    assert reason("aws:ec2/placementGroup:PlacementGroup") == "moto has no CreatePlacementGroup"
    assert reason("alicloud:vpc/network:Network") == "moto answers for AWS alone"
    assert reason("aws:route53/zone:Zone") == "the rehearsal has no creator for it"


def test_every_type_named_here_is_one_of_the_sdk_and_either_created_or_lacking():
    assert not CREATORS.keys() & LACKING.keys()
    assert [token for token in (*CREATORS, *LACKING) if sdk.resource_class(token) is None] == []


def test_a_program_runs_on_with_what_was_recorded(clients):
    def program():
        for token in LACKING:
            made = pulumi.CustomResource(token, f"it-{token}", {"fileSystemId": "fs-1"})
            pulumi.export(token, made.id)

    rehearsed = run_program("test", program=program, config={})

    outcomes = {registration.type: registration.outcome for registration in rehearsed.registrations}
    assert outcomes == dict.fromkeys(LACKING, RegistrationOutcome.RECORDED)
    assert [token for token in LACKING if not rehearsed.outputs[token]] == []

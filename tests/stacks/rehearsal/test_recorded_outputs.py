"""Resources that moto lacks."""

import pulumi

from gpu_fleet_stacks.rehearsal import sdk
from gpu_fleet_stacks.rehearsal.aws_resources import CREATORS
from gpu_fleet_stacks.rehearsal.program import run_program
from gpu_fleet_stacks.rehearsal.recorded_outputs import LACKING, reason, recorded
from gpu_fleet_stacks.rehearsal.registrations import RegistrationOutcome


def test_a_placement_group_is_its_name(clients):
    identifier, outputs = recorded(
        clients, "aws:ec2/placementGroup:PlacementGroup", "close", {"name": "mine", "strategy": "cluster"}
    )

    assert (identifier, outputs["name"], outputs["strategy"]) == ("mine", "mine", "cluster")
    assert outputs["arn"] == "arn:aws:ec2:us-east-1:123456789012:placement-group/mine"


def test_promised_outputs_have_a_value_that_names_the_resource(clients):
    _, outputs = recorded(clients, "alicloud:nas/mountTarget:MountTarget", "home", {"fileSystemId": "fs-1"})

    assert outputs["fileSystemId"] == "fs-1"
    assert outputs["mountTargetDomain"] == "recorded-home-mount-target-domain"


def test_promised_outputs_have_their_types(clients):
    token = "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"

    _, outputs = recorded(clients, token, "instances", {})

    assert (outputs["latestVersionNumber"], outputs["autoRenew"]) == (1, False)


def test_a_type_that_no_sdk_knows_returns_its_inputs(clients):
    identifier, outputs = recorded(clients, "other:index/thing:Thing", "it", {"size": 1})

    assert (identifier, outputs["size"]) == ("recorded-it", 1)


def test_the_reason_is_reported():
    assert reason("aws:ec2/placementGroup:PlacementGroup") == "moto has no CreatePlacementGroup"
    assert reason("alicloud:vpc/network:Network") == "moto answers for AWS alone"
    assert reason("aws:route53/zone:Zone") == "the rehearsal has no creator for it"


def test_no_type_is_both_created_and_lacking():
    assert not CREATORS.keys() & LACKING.keys()


def test_every_type_named_here_is_one_of_the_sdk():
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

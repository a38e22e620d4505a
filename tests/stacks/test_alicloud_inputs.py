"""Every registered resource against the installed SDK and what the provider checks before any call."""

import re

import pytest

from stacks.rehearsal.registrations import RegistrationOutcome
from tests.rehearsal.provider_schema import problems
from tests.stacks.alicloud_limits import ALLOWED, BETWEEN, CONFLICTS, PATTERNS
from tests.stacks.alicloud_programs import STACKS, programs, shipped


@pytest.fixture(scope="module")
def resources():
    return [resource for rehearsed in programs().values() for resource in rehearsed.resources]


def values(inputs, path):
    """What stands at a path such as ``networkInterfaces[].instanceType``, if anything does."""
    head, _, rest = path.partition(".")
    many = head.endswith("[]")
    found = inputs.get(head.removesuffix("[]"))
    items = found if many else [found]
    for item in items or []:
        if item is not None:
            yield from values(item, rest) if rest else [item]


def test_both_shipped_stacks_are_looked_at():
    assert STACKS == ["alicloud-dev", "alicloud-prod"]


def test_all_of_it_is_recorded_and_nothing_created(resources):
    assert resources
    assert {resource.outcome for resource in resources} == {RegistrationOutcome.RECORDED}


def test_the_installed_sdk_knows_every_input_and_misses_none(resources):
    found = [problem for resource in resources for problem in problems(resource)]

    assert found == []


@pytest.mark.parametrize(("where", "allowed"), ALLOWED.items(), ids=map(str, ALLOWED))
def test_a_value_is_one_that_the_provider_takes(resources, where, allowed):
    token, path = where

    found = {
        value for resource in resources if resource.type == token for value in values(resource.inputs, path)
    }

    assert found, f"nothing registers {path} of {token}"
    assert found <= allowed


@pytest.mark.parametrize(("where", "bounds"), BETWEEN.items(), ids=map(str, BETWEEN))
def test_a_number_is_within_what_the_provider_takes(resources, where, bounds):
    (token, path), (low, high) = where, bounds

    found = [
        value for resource in resources if resource.type == token for value in values(resource.inputs, path)
    ]

    assert found, f"nothing registers {path} of {token}"
    assert [value for value in found if not low <= value <= high] == []


@pytest.mark.parametrize(("where", "pattern"), PATTERNS.items(), ids=map(str, PATTERNS))
def test_a_name_is_one_that_the_provider_takes(resources, where, pattern):
    token, key = where

    found = [resource.inputs[key] for resource in resources if resource.type == token]

    assert found, f"nothing registers {key} of {token}"
    assert [text for text in found if not re.fullmatch(pattern, text)] == []


@pytest.mark.parametrize(("token", "pairs"), CONFLICTS.items(), ids=map(str, CONFLICTS))
def test_inputs_that_the_provider_refuses_together_never_meet(resources, token, pairs):
    found = [resource for resource in resources if resource.type == token]

    assert found, f"nothing registers {token}"
    for first, second in pairs:
        assert [
            resource.name for resource in found if first in resource.inputs and second in resource.inputs
        ] == []


def test_options_of_cost_optimized_groups_stand_there_alone(resources):
    """Its note: valid only if multi_az_policy is COST_OPTIMIZED (alicloud_ess_scaling_group)."""
    options = {"onDemandBaseCapacity", "onDemandPercentageAboveBaseCapacity", "spotInstancePools"}
    groups = [
        resource.inputs for resource in resources if resource.type == "alicloud:ess/scalingGroup:ScalingGroup"
    ]

    for group in groups:
        assert bool(options & group.keys()) is (group["multiAzPolicy"] == "COST_OPTIMIZED")


def test_a_standard_or_extreme_file_system_names_no_network(resources):
    """Set there, they would replace it on every update (alicloud_nas_file_system, vswitch_id)."""
    systems = [
        resource.inputs for resource in resources if resource.type == "alicloud:nas/fileSystem:FileSystem"
    ]

    for system in systems:
        needed = system["fileSystemType"] == "cpfs"
        assert ("vswitchId" in system) is ("vpcId" in system) is needed


@pytest.mark.parametrize("name", STACKS)
def test_no_two_resources_of_a_stack_are_called_the_same(name):
    """The engine refuses a second resource of one URN; the rehearsal's monitor takes it."""
    urns = [registration.urn for registration in shipped(name).registrations]

    assert len(set(urns)) == len(urns)


@pytest.mark.parametrize(
    ("token", "key"), [where for where in PATTERNS if where[1].endswith("Name")], ids=str
)
def test_no_two_resources_of_a_kind_want_the_same_name_of_the_cloud(token, key):
    named = [
        [resource.inputs[key] for resource in rehearsed.of_type(token)] for rehearsed in programs().values()
    ]

    assert any(named)
    assert all(len(set(names)) == len(names) for names in named)

"""Every registered resource fits the installed SDK, and the provider's checks before any call."""

import re
from collections import Counter

import pytest

from gpu_fleet_stacks.rehearsal.registrations import RegistrationOutcome
from tests.stacks.alicloud.alicloud_limits import ALLOWED, BETWEEN, CONFLICTS, PATTERNS
from tests.stacks.alicloud_programs import STACKS, programs, shipped
from tests.stacks.rehearsal.provider_schema import problems


@pytest.fixture(scope="module")
def resources():
    return [resource for rehearsed in programs().values() for resource in rehearsed.resources]


def values(inputs, path):
    """Yield the values at a path such as ``networkInterfaces[].instanceType``, if there are any."""
    head, _, rest = path.partition(".")
    many = head.endswith("[]")
    found = inputs.get(head.removesuffix("[]"))
    items = found if many else [found]
    for item in items or []:
        if item is not None:
            yield from values(item, rest) if rest else [item]


def test_all_of_it_is_recorded_and_nothing_created(resources):
    assert resources
    assert {resource.outcome for resource in resources} == {RegistrationOutcome.RECORDED}


def test_the_installed_sdk_knows_every_input_and_misses_none(resources):
    found = [problem for resource in resources for problem in problems(resource)]

    assert found == []


def registered(resources, token, path):
    """Return every value at a path of a type; fail without one, as nothing would be checked."""
    found = [value for each in resources if each.type == token for value in values(each.inputs, path)]
    assert found, f"nothing registers {path} of {token}"
    return found


def test_a_value_is_one_that_the_provider_takes(resources):
    assert [
        f"{where}: {value!r} is none of {sorted(allowed)}"
        for where, allowed in ALLOWED.items()
        for value in registered(resources, *where)
        if value not in allowed
    ] == []


def test_a_number_is_within_what_the_provider_takes(resources):
    assert [
        f"{where}: {value} is not from {low} to {high}"
        for where, (low, high) in BETWEEN.items()
        for value in registered(resources, *where)
        if not low <= value <= high
    ] == []


def test_a_name_is_one_that_the_provider_takes(resources):
    assert [
        f"{where}: {text!r} is not {pattern}"
        for where, pattern in PATTERNS.items()
        for text in registered(resources, *where)
        if not re.fullmatch(pattern, text)
    ] == []


def test_inputs_that_the_provider_refuses_together_never_meet(resources):
    assert CONFLICTS.keys() <= {resource.type for resource in resources}
    assert [
        f"{resource.name}: {first} with {second}"
        for resource in resources
        for first, second in CONFLICTS.get(resource.type, ())
        if first in resource.inputs and second in resource.inputs
    ] == []


def test_options_of_cost_optimized_groups_stand_there_alone(resources):
    """By its note they are valid only if multi_az_policy is COST_OPTIMIZED (alicloud_ess_scaling_group)."""
    options = {"onDemandBaseCapacity", "onDemandPercentageAboveBaseCapacity", "spotInstancePools"}
    groups = [made.inputs for made in resources if made.type == "alicloud:ess/scalingGroup:ScalingGroup"]

    for group in groups:
        assert bool(options & group.keys()) is (group["multiAzPolicy"] == "COST_OPTIMIZED")


def test_a_standard_or_extreme_file_system_names_no_network(resources):
    """A network would replace it on every update (alicloud_nas_file_system, vswitch_id)."""
    systems = [made.inputs for made in resources if made.type == "alicloud:nas/fileSystem:FileSystem"]

    for system in systems:
        needed = system["fileSystemType"] == "cpfs"
        assert ("vswitchId" in system) is ("vpcId" in system) is needed


def repeated(names):
    return [name for name, times in Counter(names).items() if times > 1]


def test_no_two_resources_of_a_stack_are_called_the_same():
    """The engine refuses a second resource of one URN; the rehearsal's monitor accepts it."""
    urns = {name: [registration.urn for registration in shipped(name).registrations] for name in STACKS}

    assert {name: repeated(found) for name, found in urns.items() if repeated(found)} == {}


def test_no_two_resources_of_a_kind_want_the_same_name_of_the_cloud():
    named = {
        (program, token): [resource.inputs[key] for resource in rehearsed.of_type(token)]
        for program, rehearsed in programs().items()
        for token, key in PATTERNS
        if key.endswith("Name")
    }

    assert {token for (_, token), names in named.items() if names} == {token for _, token in named}
    assert {where: repeated(names) for where, names in named.items() if repeated(names)} == {}

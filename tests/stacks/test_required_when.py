"""What is required only under a condition, held against all that the Alibaba Cloud programs register."""

import pytest

from tests.stacks.alicloud_programs import STACKS, VARIANTS, programs
from tests.stacks.required_when import RULES, UNCONDITIONAL


def broken(rule, inputs):
    return rule.when(inputs) and not rule.holds(inputs)


@pytest.mark.parametrize("program", [*STACKS, *VARIANTS, "everything"])
def test_no_program_breaks_a_documented_condition(program):
    found = programs()[program]

    assert [
        f"{resource.name} ({resource.type}): {rule.says}; see {rule.link}"
        for rule in RULES
        for resource in found.of_type(rule.type)
        if broken(rule, resource.inputs)
    ] == []


@pytest.mark.parametrize("rule", RULES, ids=[f"{rule.type.split(':')[-1]}: {rule.says}" for rule in RULES])
def test_every_condition_applies_to_something_that_is_registered(rule):
    """A rule that applies to nothing holds nothing."""
    found = [resource for program in programs().values() for resource in program.of_type(rule.type)]

    assert any(rule.when(resource.inputs) for resource in found)


def test_every_registered_type_was_looked_up():
    """A type that comes to a program must be read about: has it a condition, or none?"""
    registered = {resource.type for program in programs().values() for resource in program.resources}
    ruled = {rule.type for rule in RULES}

    assert sorted(registered - ruled - UNCONDITIONAL) == []
    assert sorted(ruled & UNCONDITIONAL) == []


def rule_of(says):
    (found,) = [rule for rule in RULES if says in rule.says]
    return found


def test_it_catches_the_endpoint_without_a_policy_that_once_came_up_nowhere():
    endpoint = {"serviceName": "com.aliyun.cn-shenzhen.oss", "vpcId": "vpc-1"}

    assert broken(rule_of("policy_document is required"), endpoint)


@pytest.mark.parametrize("group", [{}, {"cloudMonitorGroupId": 0}])
def test_it_catches_the_alarm_without_an_application_group(group):
    alarm = {"metricType": "custom", "metricName": "GpuMemoryUsedPercent", **group}

    assert broken(rule_of("GroupId is required"), alarm)

"""What is required only under a condition, held against all that the Alibaba Cloud programs register."""

from tests.stacks.alicloud_programs import programs
from tests.stacks.required_when import RULES, UNCONDITIONAL


def broken(rule, inputs):
    return rule.when(inputs) and not rule.holds(inputs)


def test_no_program_breaks_a_documented_condition():
    assert [
        f"{program}: {resource.name} ({resource.type}): {rule.says}; see {rule.link}"
        for program, found in programs().items()
        for rule in RULES
        for resource in found.of_type(rule.type)
        if broken(rule, resource.inputs)
    ] == []


def test_every_condition_applies_to_something_that_is_registered():
    """A rule that applies to nothing holds nothing."""
    found = [resource for program in programs().values() for resource in program.resources]

    assert [
        f"{rule.type}: {rule.says}"
        for rule in RULES
        if not any(resource.type == rule.type and rule.when(resource.inputs) for resource in found)
    ] == []


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


def test_it_catches_the_alarm_without_an_application_group():
    alarm = {"metricType": "custom", "metricName": "GpuMemoryUsedPercent"}

    assert broken(rule_of("GroupId is required"), alarm)
    assert broken(rule_of("GroupId is required"), alarm | {"cloudMonitorGroupId": 0})

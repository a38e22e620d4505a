"""Conditional requirements, checked on all registrations of the Alibaba Cloud programs."""

from tests.stacks.alicloud.required_when import RULES, UNCONDITIONAL
from tests.stacks.alicloud_programs import programs


def test_no_program_breaks_a_documented_condition():
    assert [
        f"{program}: {resource.name} ({resource.type}): see {rule.link}"
        for program, found in programs().items()
        for rule in RULES
        for resource in found.of_type(rule.type)
        if rule.broken(resource.inputs)
    ] == []


def test_every_condition_applies_to_something_that_is_registered():
    """A rule that applies to no resource checks nothing."""
    found = [resource for program in programs().values() for resource in program.resources]

    assert [
        (rule.type, rule.link)
        for rule in RULES
        if not any(resource.type == rule.type and rule.when(resource.inputs) for resource in found)
    ] == []


def test_every_registered_type_was_looked_up():
    """A new type in a program needs a look-up whether it has a condition."""
    registered = {resource.type for program in programs().values() for resource in program.resources}
    ruled = {rule.type for rule in RULES}

    assert sorted(registered - ruled - UNCONDITIONAL) == []
    assert sorted(ruled & UNCONDITIONAL) == []


def breaks_one(kind, **inputs):
    return any(rule.broken(inputs) for rule in RULES if rule.kind == kind)


def test_it_catches_what_once_came_up_nowhere():
    alarm = {"metricType": "custom", "metricName": "GpuMemoryUsedPercent", "dimensions": {"pool": "dev"}}

    assert breaks_one("vpc/gatewayEndpoint", serviceName="com.aliyun.cn-shenzhen.oss", vpcId="vpc-1")
    assert breaks_one("ess/alarm", **alarm)
    assert breaks_one("ess/alarm", **alarm, cloudMonitorGroupId=0)
    assert not breaks_one("ess/alarm", **alarm, cloudMonitorGroupId=7)

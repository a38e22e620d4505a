"""Pools on either cloud: the sizes of their groups, the alarms on their load, and protection."""

import pytest
from hypothesis import given

from gpu_fleet_stacks.settings import Cloud
from gpu_fleet_stacks.settings.pools import group_plans
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks import alicloud_examples, examples
from tests.stacks.alicloud_shapes import stack_files_of_any_shape
from tests.stacks.clouds import WORDS
from tests.stacks.registered import TEMPLATES
from tests.stacks.registrations import declared

CLOUDS = {Cloud.AWS: examples, Cloud.ALICLOUD: alicloud_examples}
ALARMS = {Cloud.AWS: "aws:cloudwatch/metricAlarm:MetricAlarm", Cloud.ALICLOUD: "alicloud:ess/alarm:Alarm"}


@pytest.fixture(params=CLOUDS)
def cloud(request) -> Cloud:
    return request.param


def alarms_of(found, cloud: Cloud, label: str) -> list[dict]:
    """Return the inputs of the pools' alarms with a label."""
    made = found.of_type(ALARMS[cloud])
    return [alarm.inputs for alarm in made if alarm.name.endswith(label) and "-dev-" in alarm.name]


def test_an_interactive_pool_watches_its_load_with_the_same_numbers_on_both_clouds(cloud):
    found, periods = declared(CLOUDS[cloud].stack()), ("evaluationPeriods", "evaluationCount")
    above, below = {
        Cloud.AWS: ({"GreaterThanThreshold", "GreaterThanOrEqualToThreshold"}, {"LessThanThreshold"}),
        Cloud.ALICLOUD: ({">"}, {"<"}),
    }[cloud]

    for label, threshold, seconds, way in (
        ("-cpu-high", 80, 300, above),
        ("-gpu-high", 80, 300, above),
        ("-cpu-low", 30, 600, below),
    ):
        (alarm,) = alarms_of(found, cloud, label)
        many = next(alarm[key] for key in periods if key in alarm)
        assert (int(alarm["threshold"]), alarm["period"] * many) == (threshold, seconds)
        assert alarm["comparisonOperator"] in way


IDLE = {  # each key with another value than its own, but for action: the types have local disks
    "after_hours": 3,
    "grace_minutes": 5,
    "min_uptime_minutes": 7,
    "coverage_percent": 80,
    "terminate_stopped_after_days": 3,
    "quiet_weekends": True,
    "quiet_hours": [{"start": "01:00", "end": "02:00"}],
    "watch": ["blender"],
    "limits": {"cpu_cores": 0.3},
    "command": ["/usr/local/bin/busy"],
    "command_timeout_s": 9,
}


def test_no_edit_of_idle_makes_a_new_launch_template(cloud):
    """It used to be in instance.toml, where nobody read it: each edit replaced the template."""
    made = CLOUDS[cloud]
    stacks = [made.stack(pools=[made.pool(idle=idle)]) for idle in ({}, IDLE)]

    first, second = (
        [each.inputs for kind in TEMPLATES for each in declared(it).of_type(kind)] for it in stacks
    )

    assert first == second != []


def test_a_training_pool_does_not_scale_by_load(cloud):
    made = CLOUDS[cloud]
    found = declared(made.stack(pools=[made.pool(purpose="training")]))

    assert [alarms_of(found, cloud, label) for label in ("-cpu-high", "-gpu-high")] == [[], []]


def test_computing_gpus_of_a_pool_start_one_instance_however_many_groups_it_has(cloud):
    """The metric is the pool's, so an alarm on each group would start one in every zone."""
    made = CLOUDS[cloud]
    found = declared(made.stack(pools=[made.pool(groups="per_zone")]))

    first, second = found.of_type(WORDS[cloud].group)
    (full,) = alarms_of(found, cloud, "-gpu-high")
    if cloud is Cloud.AWS:
        assert full["name"] == "gpu-fleet-test-dev-us-east-1a-gpu-high"
    else:
        assert full["scalingGroupId"] == first.id
        for label in ("-cpu-high", "-cpu-low"):  # each group watches its own processors
            own = {alarm["scalingGroupId"] for alarm in alarms_of(found, cloud, label)}
            assert own == {first.id, second.id}


DRAINED = {"min": 0, "desired": 0, "max": 0}


def test_a_pool_that_drains_keeps_the_limits_and_the_rules_of_its_groups(cloud):
    """A limit below what runs would have the group end it; nodes of a job still talk to one another."""
    made = CLOUDS[cloud]
    found, full = (
        declared(made.stack(pools=[made.pool(size=size)])) for size in (DRAINED, {"min": 0, "max": 2})
    )

    def named(stack):
        return {each.name for each in stack.resources}

    held = [
        {"maxSize", "max_size"} & {*group.ignored_changes} != set()
        for stack in (found, full)
        for group in stack.of_type(WORDS[cloud].group)
    ]
    assert held == [True, False]
    assert named(full) == named(found)


def test_a_protected_stack_protects_what_holds_data(cloud):
    kms = {"kms_instance_id": "kst-szh0000000000000000", "redundancy": "ZRS"}
    own = {Cloud.AWS: {"scratch_gib": 1200}, Cloud.ALICLOUD: {"scratch_gib": 3600, **kms}}
    storage = {"home": True, **own[cloud]}
    found, words = declared(CLOUDS[cloud].stack(protected=True, storage=storage)), WORDS[cloud]
    stateful = {words.key, words.bucket, words.file_system}
    stateful |= {"aws:fsx/lustreFileSystem:LustreFileSystem"} if cloud is Cloud.AWS else set()
    made = [resource for resource in found.resources if resource.type in stateful]

    assert {resource.type for resource in made} == stateful
    assert [resource.name for resource in made if not resource.protected] == []
    if cloud is Cloud.ALICLOUD:
        keys, groups = ([one.inputs for one in found.of_type(kind)] for kind in (words.key, words.group))
        assert [key["deletionProtection"] for key in keys] == ["Enabled"]
        assert all(group["groupDeletionProtection"] for group in groups)


@pytest.mark.parametrize(
    ("shapes", "read"),
    [(examples.stack_files(), from_mapping), (stack_files_of_any_shape(), alicloud_examples.priced)],
    ids=["aws", "alicloud"],
)
def test_the_groups_of_a_pool_hold_its_size_once(shapes, read):
    @given(content=shapes)
    def hold(content):
        stack = read("test", content)
        for pool in stack.pools:
            plans = group_plans(stack, pool)
            assert sum(plan.size.desired for plan in plans) == pool.size.desired
            assert sum(plan.size.min for plan in plans) == pool.size.min
            assert {zone for plan in plans for zone in plan.zones} == set(stack.zones_of(pool))

    hold()

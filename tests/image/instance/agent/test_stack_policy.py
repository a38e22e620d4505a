"""The stack's policy decides what counts as activity, and reaches a running agent."""

from unittest.mock import Mock

import pytest

from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent.idle_detection import Limits
from gpu_fleet_image.instance.agent.sensors.busy_command import BusyCommand
from gpu_fleet_image.instance.agent.sensors.poll import SensorOptions
from gpu_fleet_image.instance.agent.stack_policy import (
    READ_EVERY_S,
    TRY_AGAIN_AFTER_S,
    StackPolicy,
    sensors_in,
)

OWN = {
    "watch": ["blender"],
    "command": ["/usr/local/bin/busy", "-q"],
    "command_timeout_s": 3,
    "cpu_cores": 0.5,
    "disk_kib_per_s": 1000,
    "network_kib_per_s": 200,
}


def document(**values):
    return {"schema_version": 9, "pools": {"dev": {"sensors": OWN | values, "newer_key": 1}}}


def policy_of(*contents):
    """Return a policy that is read from these, one after another, with its bucket and its clock."""
    bucket, seconds = Mock(side_effect=contents), [0.0]
    return StackPolicy(bucket, "dev", lambda: sum(seconds)), bucket, seconds


def test_the_stack_s_programs_command_and_limits_count():
    policy, _, _ = policy_of(document())

    asked = policy.asked()
    limits = policy.limits()

    command = BusyCommand(("/usr/local/bin/busy", "-q"), 3.0)
    assert asked == SensorOptions(frozenset({"blender"}), command)
    assert limits == Limits(cpu_cores=0.5, disk_bytes_per_s=1_024_000, network_bytes_per_s=204_800)


def test_users_read_when_their_pool_is_marked_as_far_as_the_policy_says_it():
    terms = {"idle_after_hours": 2, "coverage_percent": 90, "action": "stop", "grace_minutes": 30}

    def rule(**said):
        content = document()
        content["pools"]["dev"] |= said
        policy, _, _ = policy_of(content)
        policy.asked()
        return policy.rule

    assert rule(**terms) == "pool dev: marked after 2.0 h idle with 90 % of the heartbeats, stop 30 min later"
    assert rule(**terms | {"idle_after_hours": "soon"}) == rule() == ""


def test_a_change_reaches_a_running_agent_and_what_was_read_last_holds_while_the_bucket_is_silent():
    read = document(), document(watch=["maya"]), CloudError("SlowDown"), document(watch=[])
    policy, bucket, seconds = policy_of(*read)
    watched = []

    for later_s in (0.0, 0.0, READ_EVERY_S, READ_EVERY_S, 0.0, TRY_AGAIN_AFTER_S):
        seconds.append(later_s)
        watched.append([*policy.asked().watch])

    assert watched == [["blender"], ["blender"], ["maya"], ["maya"], ["maya"], []]
    assert bucket.call_count == len(read)


def test_before_it_was_read_once_the_instance_is_unknown():
    silent, _, _ = policy_of(CloudError("AccessDenied"))

    assert silent.asked() == SensorOptions(problem="policy of the stack: AccessDenied")
    assert silent.limits().cpu_cores == 0.1


NOT_VALID = [
    (None, r"policy\.json is not there"),
    ({"pools": {}}, "has no pool 'dev'"),
    ({"pools": {"dev": {"market": "spot"}}}, r"pools\.dev\.sensors = None; allowed: an object"),
    (document(cpu_cores=0), r"pools\.dev\.sensors\.cpu_cores = 0; allowed: a number from 0\.01 to 64"),
    (document(watch="blender"), r"sensors\.watch = 'blender'; allowed: a list"),
    (document(wacht=[]), "wacht"),
]


def test_a_policy_that_says_nothing_valid_is_an_error_that_names_it():
    for content, message in NOT_VALID:
        with pytest.raises(CloudError, match=message):
            sensors_in(content, "dev")

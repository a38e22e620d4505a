"""The stack's policy decides what counts as activity, and reaches a running agent."""

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


class Bucket:
    def __init__(self, content=None):
        self.content = content
        self.now_s = 0.0
        self.reads = 0

    def read(self):
        self.reads += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content

    def policy(self):
        return StackPolicy(self.read, "dev", lambda: self.now_s)


def test_the_stack_s_programs_command_and_limits_count():
    policy = Bucket(document()).policy()

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
        policy = Bucket(content).policy()
        policy.asked()
        return policy.rule

    assert rule(**terms) == "pool dev: marked after 2.0 h idle with 90 % of the heartbeats, stop 30 min later"
    assert rule(**terms | {"idle_after_hours": "soon"}) == rule() == ""


def test_a_change_reaches_a_running_agent_and_what_was_read_last_holds_while_the_bucket_is_silent():
    bucket = Bucket(document())
    policy, watched = bucket.policy(), []
    policy.asked()

    for content, later_s in (
        *((document(watch=["maya"]), 0.0), (document(watch=["maya"]), READ_EVERY_S)),
        *(
            (CloudError("SlowDown"), READ_EVERY_S),
            (document(watch=[]), 0.0),
            (document(watch=[]), TRY_AGAIN_AFTER_S),
        ),
    ):
        bucket.content = content
        bucket.now_s += later_s
        watched.append([*policy.asked().watch])

    assert watched == [["blender"], ["maya"], ["maya"], ["maya"], []]
    assert bucket.reads == 4


def test_before_it_was_read_once_the_instance_is_unknown():
    silent = Bucket(CloudError("AccessDenied")).policy()

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

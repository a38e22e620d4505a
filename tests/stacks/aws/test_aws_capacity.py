"""Rights of the mover and of its users on AWS, judged by the evaluator of policies."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from tests.stacks.conftest import AWS_STACKS
from tests.stacks.judges import DENIED, MAY, MAY_NOT, SELF, AwsJudge, Right, judge_of

TAKEN = "2026-11-22/users/{}/100000Z-0a"


def of_the_mover(judge: AwsJudge) -> Iterator[Right]:
    mover, name = partial(Right, "capacity"), judge.pools[0]
    group, instance, tags = judge.group(name), judge.instance(SELF), judge.tags(name)
    raises = ["autoscaling:SetDesiredCapacity"]
    yield mover("raises its stack's groups", MAY, raises, group, tags)
    yield mover("raises no other's", MAY_NOT, raises, group, judge.tags(name, stack="another"))
    yield Right("reaper", "raises none", MAY_NOT, raises, group, tags)
    changes = ("DetachInstances", "UpdateAutoScalingGroup", "TerminateInstanceInAutoScalingGroup")
    shrinks = [f"autoscaling:{change}" for change in changes]
    yield mover("shrinks nothing even if another policy let it", DENIED, shrinks, group, tags)
    yield mover("ends nothing even if another policy let it", DENIED, judge.sweeps, instance, tags)
    for keys, verdicts in {
        ("owner", "taken", "taken-at"): MAY,
        ("managed",): MAY_NOT,
        ("owner", "reap-after"): MAY_NOT,
    }.items():
        marks = tags | {"aws:TagKeys": [f"gpu-fleet:{key}" for key in keys]}
        yield mover("says who took an instance alone", verdicts, ["ec2:CreateTags"], instance, marks)


def of_a_person(judge: AwsJudge) -> Iterator[Right]:
    """Yield the rights of ada, a user, and of ada in a session of a role, which has no user name."""
    user = {"aws:username": "ada", "aws:userid": "AIDA1"}
    person = partial(Right, "people")
    puts, asks = ["s3:PutObject"], "reaper/capacity/requests/2026-11-22"
    own = {
        "users/ada": (user, MAY),
        **dict.fromkeys(("users/bob", "sessions/ada", "sessions/AIDA1"), (user, MAY_NOT)),
        "sessions/AROA1:ada": ({"aws:userid": "AROA1:ada"}, MAY),
        "sessions/AROA1:bob": ({"aws:userid": "AROA1:ada"}, MAY_NOT),
    }
    for whose, (me, verdicts) in own.items():
        where = judge.bucket("records", f"{asks}/{whose}/100000Z-0a.json")
        yield person("asks under their own name alone", verdicts, puts, where, me)
    for key in ("ledger/2026/11/22/x.json", "state.json"):
        where = judge.bucket("records", f"reaper/capacity/{key}")
        yield person("writes neither ledger nor state", MAY_NOT, puts, where, user)
    shared = judge.bucket("data", "shared/digits/a")
    adds = ("GetObject", "PutObject", "AbortMultipartUpload")
    yield person("reads and adds shared data", MAY, judge.stores(*adds), shared, user)
    yield person(
        "deletes none of it", MAY_NOT, judge.stores("DeleteObject", "DeleteObjectVersion"), shared, user
    )
    yield person("lists data", MAY, ["s3:ListBucket"], judge.bucket("data"), user)
    for place in (judge.bucket("data", key) for key in ("dev/a", "sharedly/a", "a")):
        yield person("adds nothing elsewhere", MAY_NOT, puts, place, user)


def of_what_was_taken(judge: AwsJudge) -> Iterator[Right]:
    person, name = partial(Right, "people"), judge.pools[0]
    user, session = {"aws:username": "ada", "aws:userid": "AIDA1"}, {"aws:userid": "AROA1:ada"}
    group, instance = judge.group(name), judge.instance(SELF)
    for who, taken, verdicts in (
        (user, TAKEN.format("ada"), MAY),
        (user, TAKEN.format("bob"), MAY_NOT),
        (session, "2026-11-22/sessions/AROA1:ada/100000Z-0a", MAY),
    ):
        mine = who | judge.tags(name, taken=taken)
        yield person("reaches what they took alone", verdicts, ["ssm:StartSession"], instance, mine)
        gives = mine | {"aws:TagKeys": ["gpu-fleet:give-back"]}
        yield person("gives back what they took alone", verdicts, ["ec2:CreateTags"], instance, gives)
        takes = mine | {"aws:TagKeys": ["gpu-fleet:taken"]}
        yield person("makes nothing theirs", MAY_NOT, ["ec2:CreateTags"], instance, takes)
        yield person("ends nothing", MAY_NOT, ["ec2:TerminateInstances"], instance, mine)
        yield person("raises nothing", MAY_NOT, ["autoscaling:SetDesiredCapacity"], group, mine)
    for document in ("SSM-SessionManagerRunShell", f"gpu-fleet-{judge.settings.name}-forward"):
        where = judge.arn("ssm", f"document/{document}")
        yield person("opens a shell and a port by Session Manager", MAY, ["ssm:StartSession"], where, user)
    channel = judge.arn("ssm", "session/ada-0123")
    yield person("speaks in their session", MAY, ["ssmmessages:OpenDataChannel"], channel, user)


@pytest.mark.parametrize("name", AWS_STACKS)
@pytest.mark.parametrize("rights", [of_the_mover, of_a_person, of_what_was_taken])
def test_the_mover_and_its_users_may_do_what_is_said_of_them_and_no_more(rights, name):
    judge = judge_of(name)

    assert [*judge.wrong(rights(judge))] == []


def test_each_statement_for_callers_knows_one_kind_of_them(declared):
    """A variable that a caller lacks could make the whole statement void."""
    stated = json.loads(declared.rehearsed.outputs["people_policy"])["Statement"]

    both = [
        statement["Sid"]
        for statement in stated
        if "${aws:username}" in str(statement) and "${aws:userid}" in str(statement)
    ]
    assert both == []


def test_the_mover_is_woken_each_minute_and_at_each_failed_launch(declared):
    rules = declared.of_type("aws:cloudwatch/eventRule:EventRule")
    (rule,) = [each_rule for each_rule in rules if each_rule.name.endswith("-capacity-failed")]
    schedules = declared.of_type("aws:scheduler/schedule:Schedule")
    (schedule,) = [each_schedule for each_schedule in schedules if each_schedule.name.endswith("-capacity")]
    (permission,) = declared.of_type("aws:lambda/permission:Permission")

    pattern = json.loads(rule.inputs["eventPattern"])
    assert pattern["detail-type"] == ["EC2 Instance Launch Unsuccessful"]
    prefix = pattern["detail"]["AutoScalingGroupName"][0]["prefix"]
    assert prefix == f"gpu-fleet-{declared.settings.name}-"
    assert permission.inputs["sourceArn"] == rule.outputs["arn"]
    assert schedule.inputs["scheduleExpression"] == "rate(1 minute)"

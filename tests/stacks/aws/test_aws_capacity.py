"""Rights of the mover and of its users on AWS, judged by the evaluator of policies."""

import json

import pytest

from tests.stacks.iam import Request, Verdict, decide

GROUP = "arn:aws:autoscaling:{region}:{account}:autoScalingGroup:1:autoScalingGroupName/gpu-fleet-{stack}-x"
INSTANCE = "arn:aws:ec2:{region}:{account}:instance/i-0123456789abcdef0"
KEY = "2026-11-22/users/ada/100000Z-0a"


def texts(declared) -> dict[str, str]:
    """Return role -> its policy, of mover and sweep."""
    found = declared.of_type("aws:iam/rolePolicy:RolePolicy")
    named = {resource.name.rpartition("-")[2]: resource.inputs["policy"] for resource in found}
    return {name: named[name] for name in ("capacity", "reaper")}


def arn(declared, pattern: str) -> str:
    settings = declared.settings
    return pattern.format(region=settings.region, account=settings.account_id, stack=settings.name)


def own(declared, **more: str) -> dict[str, str]:
    tags = {"stack": declared.settings.name, "managed": "true"} | more
    return {f"aws:ResourceTag/gpu-fleet:{key}": value for key, value in tags.items()}


def test_the_mover_alone_raises_groups_and_those_of_its_stack_alone(declared):
    raising = "autoscaling:SetDesiredCapacity"
    group, context = arn(declared, GROUP), own(declared)
    foreign = context | {"aws:ResourceTag/gpu-fleet:stack": "another"}

    def judged(role, tags):
        return decide(Request(raising, group, context=tags), identity=[texts(declared)[role]])

    assert judged("capacity", context) is Verdict.ALLOWED
    assert judged("capacity", foreign) is Verdict.NOT_ALLOWED
    assert judged("reaper", context) is Verdict.NOT_ALLOWED


def test_the_mover_deletes_nothing_even_if_another_policy_let_it(declared):
    everything = json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
    changes = ("DetachInstances", "UpdateAutoScalingGroup", "TerminateInstanceInAutoScalingGroup")
    deletes = {"ec2:TerminateInstances": INSTANCE, "ec2:StopInstances": INSTANCE}
    deletes |= {f"autoscaling:{change}": GROUP for change in changes}
    both = [texts(declared)["capacity"], everything]

    def judged(action, pattern):
        return decide(Request(action, arn(declared, pattern), context=own(declared)), identity=both)

    verdicts = {action: judged(action, pattern) for action, pattern in deletes.items()}
    assert verdicts == dict.fromkeys(deletes, Verdict.DENIED)


def test_the_mover_writes_who_took_an_instance_and_no_other_tag(declared):
    def writes(*keys):
        context = own(declared) | {"aws:TagKeys": [f"gpu-fleet:{key}" for key in keys]}
        asked = Request("ec2:CreateTags", arn(declared, INSTANCE), context=context)
        return decide(asked, identity=[texts(declared)["capacity"]])

    assert writes("owner", "taken", "taken-at") is Verdict.ALLOWED
    assert writes("managed") is Verdict.NOT_ALLOWED
    assert writes("owner", "reap-after") is Verdict.NOT_ALLOWED


def person(declared, action: str, resource: str, **context) -> Verdict:
    """Judge a call of ada, a user, by the policy that the stack exports for users."""
    me = {"aws:username": "ada", "aws:userid": "AIDA1"} | context
    return decide(
        Request(action, resource, context=me), identity=[declared.rehearsed.outputs["people_policy"]]
    )


def requests(declared, whose: str) -> str:
    bucket = next(
        resource.outputs["arn"]
        for resource in declared.of_type("aws:s3/bucket:Bucket")
        if resource.name.endswith("-records")
    )
    return f"{bucket}/reaper/capacity/requests/2026-11-22/{whose}/100000Z-0a.json"


def test_a_user_asks_under_their_own_name_alone_and_writes_neither_ledger_nor_state(declared):
    place = requests(declared, "x").partition("/requests/")[0]
    others = [requests(declared, whose) for whose in ("users/bob", "sessions/ada", "sessions/AIDA1")]
    others += [f"{place}/{name}" for name in ("ledger/2026/11/22/x.json", "state.json")]

    assert person(declared, "s3:PutObject", requests(declared, "users/ada")) is Verdict.ALLOWED
    verdicts = {other: person(declared, "s3:PutObject", other) for other in others}
    assert verdicts == dict.fromkeys(others, Verdict.NOT_ALLOWED)


def test_a_user_reads_and_adds_shared_data_and_deletes_nothing(declared):
    data = requests(declared, "x").partition("-records")[0] + "-data"

    actions = "GetObject", "PutObject", "AbortMultipartUpload", "DeleteObject", "DeleteObjectVersion"
    may = {action: person(declared, f"s3:{action}", f"{data}/shared/digits/a") for action in actions}
    elsewhere = [person(declared, "s3:PutObject", f"{data}{place}/a") for place in ("/dev", "/sharedly", "")]

    assert [action for action, verdict in may.items() if verdict is Verdict.ALLOWED] == [
        "GetObject",
        "PutObject",
        "AbortMultipartUpload",
    ]
    assert person(declared, "s3:ListBucket", data) is Verdict.ALLOWED
    assert elsewhere == [Verdict.NOT_ALLOWED] * 3


@pytest.mark.parametrize(
    ("taken", "verdict"), [(KEY, Verdict.ALLOWED), (KEY.replace("ada", "bob"), Verdict.NOT_ALLOWED)]
)
def test_a_user_reaches_and_gives_back_what_they_took_alone(declared, taken, verdict):
    instance, context = arn(declared, INSTANCE), own(declared, taken=taken)

    assert person(declared, "ssm:StartSession", instance, **context) is verdict
    context |= {"aws:TagKeys": ["gpu-fleet:give-back"]}
    assert person(declared, "ec2:CreateTags", instance, **context) is verdict


def session(declared, action: str, resource: str, **context) -> Verdict:
    """Judge a call of ada in a session of a role, which has no user name."""
    me = {"aws:userid": "AROA1:ada"} | context
    policy = declared.rehearsed.outputs["people_policy"]
    return decide(Request(action, resource, context=me), identity=[policy])


def test_a_session_of_a_role_asks_connects_and_gives_back_as_a_user_does(declared):
    instance = arn(declared, INSTANCE)
    mine = own(declared, taken="2026-11-22/sessions/AROA1:ada/100000Z-0a")

    assert session(declared, "s3:PutObject", requests(declared, "sessions/AROA1:ada")) is Verdict.ALLOWED
    assert session(declared, "s3:PutObject", requests(declared, "sessions/AROA1:bob")) is Verdict.NOT_ALLOWED
    assert session(declared, "ssm:StartSession", instance, **mine) is Verdict.ALLOWED


def test_each_statement_for_callers_knows_one_kind_of_them(declared):
    """A variable that a caller lacks could make the whole statement void."""
    stated = json.loads(declared.rehearsed.outputs["people_policy"])["Statement"]

    both = [
        statement["Sid"]
        for statement in stated
        if "${aws:username}" in str(statement) and "${aws:userid}" in str(statement)
    ]
    assert both == []


@pytest.mark.parametrize("document", ["SSM-SessionManagerRunShell", "gpu-fleet-{}-forward"])
def test_a_shell_and_a_port_open_through_session_manager(declared, document):
    settings = declared.settings
    place = f"arn:aws:ssm:{settings.region}:{settings.account_id}:document/{document.format(settings.name)}"
    channel = f"arn:aws:ssm:{settings.region}:{settings.account_id}:session/ada-0123"

    assert person(declared, "ssm:StartSession", place) is Verdict.ALLOWED
    assert person(declared, "ssmmessages:OpenDataChannel", channel) is Verdict.ALLOWED


def test_a_user_ends_and_raises_nothing_and_makes_nothing_theirs(declared):
    mine = own(declared, taken=KEY)
    taking = mine | {"aws:TagKeys": ["gpu-fleet:taken"]}

    assert person(declared, "ec2:TerminateInstances", arn(declared, INSTANCE), **mine) is Verdict.NOT_ALLOWED
    assert (
        person(declared, "autoscaling:SetDesiredCapacity", arn(declared, GROUP), **mine)
        is Verdict.NOT_ALLOWED
    )
    assert person(declared, "ec2:CreateTags", arn(declared, INSTANCE), **taking) is Verdict.NOT_ALLOWED


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

"""Rights to start a run, by account and place, in the stacks' policies for users."""

import base64
import json
import re

import pytest

from gpu_fleet_image.console.runs import alicloud, aws
from gpu_fleet_image.core import runs as model
from gpu_fleet_stacks.core import naming
from tests.stacks import ram
from tests.stacks.alicloud_examples import stack as alicloud_stack
from tests.stacks.examples import stack
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.registrations import declared, stood

PEOPLE = {"ada": {"uid": 5001}, "bob": {"uid": 5002}}
NAMED, NOBODY = stack(access={"people": PEOPLE}), stack()
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBUYHkd0jd5yF1xIMu2nsW1SxNTgF2mIf8vY0wd1cmtp ada@laptop"
ON_ALICLOUD = alicloud_stack(
    access={
        "people": {name: {**account, "keys": [KEY]} for name, account in list(PEOPLE.items())[:1]},
        "ssh_from": {"office": "192.168.4.0/24"},
    }
)
JOB = model.Job(
    run="digits-20261122-210405-3f9a",
    account="ada",
    stack="test",
    pool="dev",
    instances=tuple(model.Member(f"i-{number}123456789abcdef0", f"10.0.0.{number}") for number in (0, 1)),
    arguments=("digits.toml", "--run.steps", "7"),
    directory="runs/digits",
    archive_sha256="0" * 64,
    by="users/ada",
    at="2026-11-22T21:04:05Z",
)


@pytest.fixture
def named():
    return stood(NAMED)


@pytest.fixture
def assistant():
    return declared(ON_ALICLOUD)


def documents(found):
    stated = found.of_type("aws:ssm/document:Document")
    return [resource.inputs for resource in stated if resource.inputs["documentType"] == "Command"]


def test_the_document_takes_three_parameters_and_holds_each_to_a_pattern_that_no_shell_word_passes(named):
    (document,) = documents(named)
    content = json.loads(document["content"])

    assert document["name"] == aws.document_name(NAMED.name)
    assert document["targetType"] == "/AWS::EC2::Instance"
    assert content["schemaVersion"] == "2.2"
    patterns = {key: parameter["allowedPattern"] for key, parameter in content["parameters"].items()}
    assert patterns == {
        "Account": f"^{model.ACCOUNT.pattern}$",
        "Run": f"^{model.RUN.pattern}$",
        "Sha256": f"^{model.SHA256.pattern}$",
    }
    assert patterns.keys() == set(model.parameters(JOB)) == set(naming.RUN_PARAMETERS)
    assert all(re.search(patterns[key], value) for key, value in model.parameters(JOB).items())
    words = "ada; id", "ada\nid", "$(id)", "`id`", "a'b", "-a", "../a", "", "{{ Run }}", "root\\"
    passing = [word for word in words for pattern in patterns.values() if re.fullmatch(pattern, word)]
    assert passing == []


def test_a_stack_without_accounts_has_no_document_and_lets_no_user_send_one():
    nobody = stood(NOBODY)

    assert documents(nobody) == []
    assert "ssm:SendCommand" not in nobody.outputs["people_policy"]


def may(found, action, resource, **context):
    me = {"aws:username": "ada", "aws:userid": "AIDA1", "aws:PrincipalTag/SSMSessionRunAs": "ada"} | context
    given = {key: value for key, value in me.items() if value is not None}
    request = Request(action, resource, context=given)
    return decide(request, identity=[found.outputs["people_policy"]]) is Verdict.ALLOWED


INSTANCE = f"arn:aws:ec2:{NAMED.region}:{NAMED.account_id}:instance/i-0123456789abcdef0"
TAGS = {
    "aws:ResourceTag/gpu-fleet:stack": "test",
    "aws:ResourceTag/gpu-fleet:managed": "true",
    "aws:ResourceTag/gpu-fleet:taken": "2026-11-22/users/ada/100000Z-0a",
}
TAKEN = "aws:ResourceTag/gpu-fleet:taken"


def test_a_user_and_a_session_of_a_role_send_this_document_alone_and_to_what_they_took_alone(named):
    place = f"arn:aws:ssm:{NAMED.region}:{NAMED.account_id}:document"
    session = {"aws:username": None, "aws:userid": "AROA1:ada"}
    asked = {
        "own": TAGS,
        "the session's own": TAGS | session | {TAKEN: "2026-11-22/sessions/AROA1:ada/100000Z-0a"},
        "the user's, by the session": TAGS | session,
        "taken by bob": TAGS | {TAKEN: "2026-11-22/users/bob/100000Z-0a"},
        "elsewhere": TAGS | {"aws:ResourceTag/gpu-fleet:stack": "another"},
        "without tags": {},
    }

    sent = [what for what, context in asked.items() if may(named, "ssm:SendCommand", INSTANCE, **context)]
    assert sent == ["own", "the session's own"]
    assert may(named, "ssm:SendCommand", f"{place}/gpu-fleet-test-run")
    for other in ("AWS-RunShellScript", "gpu-fleet-other-run", "gpu-fleet-test-session"):
        assert not may(named, "ssm:SendCommand", f"{place}/{other}")
        assert not may(named, "ssm:SendCommand", f"arn:aws:ssm:{NAMED.region}::document/{other}")


def test_a_user_submits_and_reads_as_the_account_of_their_tag_and_as_no_other(named):
    buckets = named.of_type("aws:s3/bucket:Bucket")
    records = next(made.outputs["arn"] for made in buckets if made.name.endswith("-records"))
    words, nameless = "runs/words/{}/dev/digits-1/i-0", {"aws:PrincipalTag/SSMSessionRunAs": None}
    own = {
        "s3:PutObject": f"{records}/runs/jobs/ada/digits-1/job.json",
        "s3:GetObject": f"{records}/{words.format('ada')}/log/0.txt",
    }
    others = [
        ("s3:PutObject", "runs/jobs/bob/digits-1/job.json"),
        ("s3:PutObject", f"{words.format('ada')}/state.json"),
        ("s3:PutObject", "reaper/anything"),
        ("s3:GetObject", f"{words.format('bob')}/log/0.txt"),
        ("s3:GetObject", "reaper/roster.json"),
    ]

    assert all(may(named, *each) for each in own.items())
    assert not may(named, "s3:PutObject", own["s3:PutObject"], **nameless)
    assert [each for each in others if may(named, each[0], f"{records}/{each[1]}")] == []


def test_cloud_assistants_command_takes_what_the_console_sends_and_calls_sudo(assistant):
    (command,) = assistant.of_type("alicloud:ecs/command:Command")
    script = base64.b64decode(command.inputs["commandContent"]).decode()
    sent = alicloud.request(JOB)

    assert command.inputs["name"] == alicloud.command_name(ON_ALICLOUD.name)
    assert (command.inputs["type"], command.inputs["enableParameter"]) == ("RunShellScript", True)
    assert set(re.findall(r"\{\{(\w+)\}\}", script)) == set(json.loads(sent["Parameters"]))
    assert sent["Username"] == "ada"
    assert script.splitlines()[-1].startswith("exec sudo --non-interactive /usr/libexec/gpu-fleet/start-run ")


def ram_may(found, account, action, resource, **context):
    asked = Request(action, resource, context=context)
    return ram.decide(asked, [found.outputs["submit_policies"][account]]) is Verdict.ALLOWED


def test_on_alibaba_cloud_a_shell_which_may_be_roots_is_for_operators_alone(assistant):
    """StartTerminalSession accepts any account, and RAM has no condition for it."""
    instance = f"acs:ecs:{ON_ALICLOUD.region}:{ON_ALICLOUD.account_id}:instance/i-1"

    def opens(policy, stack=ON_ALICLOUD.name):
        tags = {"acs:ResourceTag/gpu-fleet:stack": stack}
        asked = Request("ecs:StartTerminalSession", instance, context=tags)
        return ram.decide(asked, [policy]) is Verdict.ALLOWED

    users = [assistant.outputs["people_policy"], *assistant.outputs["submit_policies"].values()]
    assert not any(map(opens, users))
    assert opens(assistant.outputs["operator_policy"])
    assert not opens(assistant.outputs["operator_policy"], "another")


def test_on_alibaba_cloud_a_user_starts_runs_as_their_own_account_and_never_as_root(assistant):
    own = f"{ON_ALICLOUD.region}:{ON_ALICLOUD.account_id}"
    (command,) = assistant.of_type("alicloud:ecs/command:Command")
    instance, theirs = f"acs:ecs:{own}:instance/i-1", f"acs:ecs:{own}:command/{command.id}"
    tags = {"acs:ResourceTag/gpu-fleet:stack": ON_ALICLOUD.name}

    def starts(resource, account, **more):
        more |= {"ecs:CommandRunAs": account}
        return ram_may(assistant, "ada", "ecs:InvokeCommand", resource, **more)

    assert starts(theirs, "ada")
    assert starts(instance, "ada", **tags)
    for account in ("root", "bob", "Ada"):
        assert not starts(theirs, account)
        assert not starts(instance, account, **tags)
    assert not starts(f"acs:ecs:{own}:command/c-other", "ada")
    assert not starts(instance, "ada", **{"acs:ResourceTag/gpu-fleet:stack": "another"})
    assert not ram_may(assistant, "ada", "ecs:RunCommand", instance, **{"ecs:CommandRunAs": "ada", **tags})


def test_on_alibaba_cloud_a_user_submits_and_reads_below_their_own_account_alone(assistant):
    own = ON_ALICLOUD.account_id
    records = f"acs:oss:oss-{ON_ALICLOUD.region}:{own}:gpu-fleet-{ON_ALICLOUD.name}-records-{own}"
    asked = {
        ("oss:PutObject", "runs/jobs/ada/digits-1/job.json"): True,
        ("oss:PutObject", "runs/jobs/bob/digits-1/job.json"): False,
        ("oss:GetObject", "runs/words/ada/dev/digits-1/i-0/state.json"): True,
        ("oss:GetObject", "reaper/roster.json"): False,
    }

    assert {(act, key): ram_may(assistant, "ada", act, f"{records}/{key}") for act, key in asked} == asked

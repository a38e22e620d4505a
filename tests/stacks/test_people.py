"""Accounts of users: their keys in a stack file, their distribution, and their rights."""

import base64
import json
import re
import struct

import pytest

from gpu_fleet_image.console.users import connect
from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws.sessions import document_content
from gpu_fleet_stacks.settings import people, people_rules
from tests.stacks import examples
from tests.stacks.alicloud_examples import stack as alicloud_stack
from tests.stacks.alicloud_examples import stack_file as alicloud_file
from tests.stacks.alicloud_programs import role_statements
from tests.stacks.examples import stack, stack_file
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.registrations import ROOT, declared, stood

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBUYHkd0jd5yF1xIMu2nsW1SxNTgF2mIf8vY0wd1cmtp ada@laptop"
PEOPLE = {"ada": {"uid": 5001, "keys": [KEY], "team": "vision", "admin": True}, "bob": {"uid": 5002}}
NAMED = stack(access={"people": PEOPLE})


def refusal(given, **changes) -> str:
    return examples.refusal(stack_file(access={"people": given}, **changes))


def key_of(*parts: bytes) -> str:
    content = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return base64.b64encode(content).decode()


SHORT_RSA = f"ssh-rsa {key_of(b'ssh-rsa', b'', (1 << 1023).to_bytes(128, 'big'))}"
REFUSED = {
    "root's number": (
        {"ada": {"uid": 0}},
        "access.people.ada.uid = 0: must be greater than or equal to 2000",
    ),
    "a truth value for a number": ({"ada": {"uid": True}}, "access.people.ada.uid = true"),
    "one number for two": (
        {"ada": {"uid": 5001}, "bob": {"uid": 5001}},
        "access.people.bob.uid = 5001: is the number of ada and bob",
    ),
    "an account of the system": (
        {"ubuntu": {"uid": 5001}},
        "access.people = 'ubuntu': is an account or group of the system",
    ),
    "an account of the queue's database": ({"mysql": {"uid": 5001}}, "'mysql': is an account or group"),
    "an account of the mounts": ({"statd": {"uid": 5001}}, "'statd': is an account or group"),
    "an account of the driver": ({"nvidia-persistenced": {"uid": 5001}}, "is an account or group of the"),
    "a team of those who reach DCGM, which is root": (
        {"ada": {"uid": 5001, "team": "nvidia-dcgm"}},
        "or of a group of the system",
    ),
    "an account of ours": ({"gpu-fleet-x": {"uid": 5001}}, "access.people = 'gpu-fleet-x': is an account"),
    "an option for a name": ({"-ada": {"uid": 5001}}, "must be a login name"),
    "a private key": (
        {"ada": {"uid": 5001, "keys": ["-----BEGIN OPENSSH PRIVATE KEY-----"]}},
        "must be one line of a public key file",
    ),
    "a key that is cut off": (
        {"ada": {"uid": 5001, "keys": [KEY.split(maxsplit=1)[0] + " " + KEY.split()[1][:-8]]}},
        "access.people.ada.keys[0] = 'ssh-ed25519 ",
    ),
    "a key under another type's name": (
        {"ada": {"uid": 5001, "keys": [KEY.replace("ssh-ed25519 ", "ssh-rsa ")]}},
        "is no key of type ssh-rsa",
    ),
    "a short key": ({"ada": {"uid": 5001, "keys": [SHORT_RSA]}}, "is shorter than 2048 bits"),
    "one key for two": (
        {
            "ada": {"uid": 5001, "keys": [KEY]},
            "bob": {"uid": 5002, "keys": [KEY.removesuffix(" ada@laptop")]},
        },
        "is a key of ada and bob; each key once",
    ),
    "a team named as a person": (
        {"ada": {"uid": 5001, "team": "bob"}, "bob": {"uid": 5002}},
        "access.people.ada.team = 'bob': is the name of a user",
    ),
    "a team of those who read all logs": (
        {"ada": {"uid": 5001, "team": "systemd-journal"}},
        "or of a group of the system",
    ),
    "an account of the network's": ({"rdma": {"uid": 5001}}, "'rdma': is an account or group"),
    "two teams whose names give one number": (
        {"ada": {"uid": 5001, "team": "team37"}, "bob": {"uid": 5002, "team": "team255"}},
        "access.people = 'team37': gets the same group number as 'team255'",
    ),
    "a team of those who may become root": (
        {"ada": {"uid": 5001, "team": "sudo"}},
        "or of a group of the system",
    ),
}


def test_what_accounts_may_not_be_is_one_message():
    said = {case: refusal(given) for case, (given, _) in REFUSED.items()}

    assert {case: said[case] for case, row in REFUSED.items() if row[1] not in said[case]} == {}


def test_no_user_and_no_team_has_a_name_that_a_unit_of_the_image_has():
    units = (ROOT / "image/gpu_fleet_image/recipe/rootfs/etc/systemd").rglob("*.*")
    named = re.compile(r"^(?:Socket|Supplementary)?(?:User|Groups?)=([a-z].*)$", re.MULTILINE)
    names = {name for unit in units if unit.is_file() for name in named.findall(unit.read_text())}

    assert "nvidia-dcgm" in names
    assert [name for name in sorted(names) if not people_rules._is_taken(name)] == []


def test_a_private_key_is_refused_and_not_repeated():
    secret = "-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXktdjEAAAAABG5vbmU"

    assert "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU" not in refusal({"ada": {"uid": 5001, "keys": [secret]}})


def test_users_need_instances_that_make_accounts():
    image = {"id": "ami-0123456789abcdef0", "mode": "none"}

    assert "image.mode is none" in refusal({"ada": {"uid": 5001}}, image=image)


def test_on_alibaba_cloud_users_log_in_by_ssh_or_not_at_all():
    said = examples.refusal(alicloud_file(access={"people": {"bob": {"uid": 5002}}}))

    assert "access.ssh_from = {}: needs a network that users come from" in said
    assert "access.people.bob.keys = []: needs a key" in said


def test_a_teams_number_follows_from_its_name_alone():
    other = stack(name="another", access={"people": {"carol": {"uid": 5003, "team": "vision"}}})

    (first,) = {entry["team_gid"] for entry in entries(NAMED) if entry["team"]}
    (second,) = {entry["team_gid"] for entry in entries(other)}
    assert first == second == people.team_number("vision")


def entries(settings):
    return json.loads(people.roster_text(settings))["users"]


@pytest.fixture
def named():
    return stood(NAMED)


@pytest.fixture
def nobody():
    return stood(stack())


def objects(declared):
    return {
        resource.inputs["key"]: resource.inputs
        for resource in declared.of_type("aws:s3/bucketObjectv2:BucketObjectv2")
    }


def test_the_roster_lies_encrypted_in_the_records_and_nowhere_else(named):
    stored = objects(named)[keys.stored(keys.ACCOUNTS)]

    assert [user["name"] for user in json.loads(stored["content"])["users"]] == ["ada", "bob"]
    assert stored["serverSideEncryption"] == "aws:kms"
    for template in named.of_type("aws:ec2/launchTemplate:LaunchTemplate"):
        user_data = base64.b64decode(template.inputs["userData"]).decode("utf-8", "replace")
        assert "vision" not in user_data
        assert KEY.split()[1] not in user_data


def test_a_stack_whose_users_were_removed_says_so_to_its_instances(nobody):
    assert json.loads(objects(nobody)[keys.stored(keys.ACCOUNTS)]["content"])["users"] == []


def test_instances_read_the_roster_and_no_role_of_theirs_writes_it(named):
    (bucket,) = [
        resource.outputs["arn"]
        for resource in named.of_type("aws:s3/bucket:Bucket")
        if resource.name.endswith("-records")
    ]
    roles = [
        resource.inputs["policy"]
        for resource in named.of_type("aws:iam/rolePolicy:RolePolicy")
        if resource.name.endswith("-instance")
    ]
    place = f"{bucket}/{keys.stored(keys.ACCOUNTS)}"

    def may(action, policy):
        me = {"aws:userid": "AROA1:i-0123456789abcdef0"}
        return decide(Request(action, place, context=me), identity=[policy]) is Verdict.ALLOWED

    assert roles
    assert all(may("s3:GetObject", policy) for policy in roles)
    assert not any(may(action, policy) for policy in roles for action in ("s3:PutObject", "s3:DeleteObject"))


def session_content(found, name):
    stored = [each.inputs for each in found.of_type("aws:ssm/document:Document")]
    (document,) = [each for each in stored if (each["documentType"], each["name"]) == ("Session", name)]
    return json.loads(document["content"])


@pytest.mark.parametrize("who", ["named", "nobody"])
def test_a_session_reaches_the_ports_that_the_console_takes_and_none_that_believes_root(request, who):
    content = session_content(request.getfixturevalue(who), "gpu-fleet-test-forward")
    pattern = re.compile(content["parameters"]["portNumber"]["allowedPattern"])

    wrong = [port for port in range(70_000) if bool(pattern.search(str(port))) != connect.is_users(port)]

    assert content["sessionType"] == "Port"
    assert content["properties"]["portNumber"] == "{{ portNumber }}"
    assert wrong == []
    assert [word for word in ("022", "0823", "22\n", "22 823", "", "8888;") if pattern.fullmatch(word)] == []


def test_a_shell_opens_as_the_callers_own_account_and_is_refused_without_one(named):
    content = session_content(named, "gpu-fleet-test-session")

    assert content == document_content(NAMED)
    assert content["inputs"]["runAsEnabled"] is True
    assert content["inputs"]["runAsDefaultUser"] == ""


MINE = {
    "aws:username": "ada",
    "aws:userid": "AIDA1",
    "aws:ResourceTag/gpu-fleet:stack": "test",
    "aws:ResourceTag/gpu-fleet:managed": "true",
    "aws:ResourceTag/gpu-fleet:taken": "2026-11-22/users/ada/100000Z-0a",
}


def starts(declared, resource, **more):
    asked = Request("ssm:StartSession", resource, context={**MINE, **more})
    return decide(asked, identity=[declared.outputs["people_policy"]]) is Verdict.ALLOWED


def test_users_open_no_session_by_the_default_document_whose_account_may_become_root(named, nobody):
    documents = f"arn:aws:ssm:{NAMED.region}:{NAMED.account_id}:document"
    instance = f"arn:aws:ec2:{NAMED.region}:{NAMED.account_id}:instance/i-0123456789abcdef0"

    assert starts(named, f"{documents}/gpu-fleet-test-session")
    assert not starts(named, f"{documents}/SSM-SessionManagerRunShell")
    assert starts(nobody, f"{documents}/SSM-SessionManagerRunShell")
    assert starts(named, instance, **{"ssm:SessionDocumentAccessCheck": "true"})
    assert not starts(named, instance, **{"ssm:SessionDocumentAccessCheck": "false"})


@pytest.mark.parametrize(
    "document",
    [
        f"arn:aws:ssm:us-east-1:{NAMED.account_id}:document/SSM-SessionManagerRunShell",
        "arn:aws:ssm:us-east-1::document/AWS-StartInteractiveCommand",
        "arn:aws:ssm:us-east-1::document/AWS-StartNonInteractiveCommand",
        "arn:aws:ssm:us-east-1::document/AWS-StartPortForwardingSession",
        "arn:aws:ssm:us-east-1::document/AWS-StartPortForwardingSessionToRemoteHost",
        "arn:aws:ssm:us-east-1::document/AWS-StartSSHSession",
    ],
)
def test_no_other_policy_of_a_user_opens_a_shell_or_any_port_as_the_agents_account(named, document):
    wide = json.dumps({"Statement": [{"Effect": "Allow", "Action": "ssm:*", "Resource": "*"}]})
    asked = Request("ssm:StartSession", document, context=MINE)

    assert decide(asked, identity=[wide]) is Verdict.ALLOWED
    assert decide(asked, identity=[wide, named.outputs["people_policy"]]) is not Verdict.ALLOWED


def test_the_published_policy_names_the_document_only_where_there_is_one(named, nobody):
    said = {
        name: json.loads(value.outputs["policy"])
        for name, value in {"named": named, "nobody": nobody}.items()
    }

    assert said["named"]["session_document"] == "gpu-fleet-test-session"
    assert "session_document" not in said["nobody"]


def test_alibaba_clouds_instances_read_the_roster_and_write_no_word_of_it():
    network = {"office": "192.168.4.0/24"}
    access = {"people": {"ada": PEOPLE["ada"]}, "ssh_from": network}
    settings = alicloud_stack(access=access)

    found = declared(settings)

    (stored,) = [
        resource.inputs
        for resource in found.of_type("alicloud:oss/bucketObject:BucketObject")
        if resource.inputs["key"] == keys.stored(keys.ACCOUNTS)
    ]
    assert [user["name"] for user in json.loads(stored["content"])["users"]] == ["ada"]
    stated = role_statements(found, "dev-instance")
    touching = [
        statement for statement in stated if keys.stored(keys.ACCOUNTS) in json.dumps(statement["Resource"])
    ]
    assert [statement["Action"] for statement in touching] == [["oss:GetObject"]]
    assert not any("reaper/*" in json.dumps(statement["Resource"]) for statement in stated)

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
from tests.stacks.alicloud_programs import inputs
from tests.stacks.examples import stack, stack_file
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.judges import EVERYTHING
from tests.stacks.registrations import ROOT, declared, stood

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBUYHkd0jd5yF1xIMu2nsW1SxNTgF2mIf8vY0wd1cmtp ada@laptop"
PEOPLE = {"ada": {"uid": 5001, "keys": [KEY], "team": "vision", "admin": True}, "bob": {"uid": 5002}}
NAMED = stack(access={"people": PEOPLE})


def ada(**more):
    return {"ada": {"uid": 5001, **more}}


def key_of(*parts: bytes) -> str:
    content = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return base64.b64encode(content).decode()


SHORT_RSA = f"ssh-rsa {key_of(b'ssh-rsa', b'', (1 << 1023).to_bytes(128, 'big'))}"
TAKEN = "is an account or group of the system"
SECRET = "-----BEGIN OPENSSH PRIVATE KEY----- b3BlbnNzaC1rZXktdjEAAAAABG5vbmU"
BOB = {"bob": {"uid": 5002}}
UNNAMED = KEY.removesuffix(" ada@laptop")
REFUSED = {
    "access.people.ada.uid = 0: must be greater than or equal to 2000": {"ada": {"uid": 0}},
    "access.people.ada.uid = true": {"ada": {"uid": True}},
    "access.people.bob.uid = 5001: is the number of ada and bob": ada() | {"bob": {"uid": 5001}},
    # of the system, the queue's database, the mounts, the driver, the network, and ours
    **{
        f"access.people = '{name}': {TAKEN}": {name: {"uid": 5001}}
        for name in ("ubuntu", "mysql", "statd", "nvidia-persistenced", "rdma", "gpu-fleet-x")
    },
    # may become root, read all logs, and reach DCGM, which is root
    **{
        f"ada.team = '{team}': is the name of a user, or of a group of the system": ada(team=team)
        for team in ("sudo", "systemd-journal", "nvidia-dcgm")
    },
    "must be a login name": {"-ada": {"uid": 5001}},
    "must be one line of a public key file": ada(keys=[SECRET]),
    "keys[0] = 'ssh-ed25519 ": ada(keys=[UNNAMED[:-8]]),
    "is no key of type ssh-rsa": ada(keys=[KEY.replace("ssh-ed25519 ", "ssh-rsa ")]),
    "is shorter than 2048 bits": ada(keys=[SHORT_RSA]),
    "is a key of ada and bob; each key once": ada(keys=[KEY]) | {"bob": {"uid": 5002, "keys": [UNNAMED]}},
    "access.people.ada.team = 'bob': is the name of a user": ada(team="bob") | BOB,
    "'team37': gets the same group number as 'team255'": ada(team="team37")
    | {"bob": {"uid": 5002, "team": "team255"}},
}
MINIMAL = {"id": "ami-0123456789abcdef0", "mode": "none"}
ON_ALICLOUD = alicloud_file(access={"people": BOB})


def test_what_accounts_may_not_be_is_one_message_that_repeats_no_private_key():
    files = [(stack_file(access={"people": given}), says) for says, given in REFUSED.items()]
    files += [
        (stack_file(access={"people": ada()}, image=MINIMAL), "image.mode is none"),
        (ON_ALICLOUD, "access.ssh_from = {}: needs a network that users come from"),
        (ON_ALICLOUD, "access.people.bob.keys = []: needs a key"),
    ]

    said = [(says, examples.refusal(file)) for file, says in files]
    assert [row for row in said if row[0] not in row[1]] == []
    assert [row for row in said if SECRET.rsplit(maxsplit=1)[-1] in row[1]] == []


def test_no_user_and_no_team_has_a_name_that_a_unit_of_the_image_has():
    units = (ROOT / "image/gpu_fleet_image/recipe/rootfs/etc/systemd").rglob("*.*")
    named = re.compile(r"^(?:Socket|Supplementary)?(?:User|Groups?)=([a-z].*)$", re.MULTILINE)
    names = {name for unit in units if unit.is_file() for name in named.findall(unit.read_text())}

    assert "nvidia-dcgm" in names
    assert [name for name in sorted(names) if not people_rules._is_taken(name)] == []


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


def test_the_roster_lies_encrypted_in_the_records_and_nowhere_else_also_without_users(named, nobody):
    stored = objects(named)[keys.stored(keys.ACCOUNTS)]

    assert [user["name"] for user in json.loads(stored["content"])["users"]] == ["ada", "bob"]
    assert stored["serverSideEncryption"] == "aws:kms"
    for template in named.of_type("aws:ec2/launchTemplate:LaunchTemplate"):
        user_data = base64.b64decode(template.inputs["userData"]).decode("utf-8", "replace")
        assert "vision" not in user_data
        assert KEY.split()[1] not in user_data
    assert json.loads(objects(nobody)[keys.stored(keys.ACCOUNTS)]["content"])["users"] == []


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


OTHER_DOCUMENTS = [
    f"arn:aws:ssm:us-east-1:{NAMED.account_id}:document/SSM-SessionManagerRunShell",
    *(
        f"arn:aws:ssm:us-east-1::document/AWS-Start{what}"
        for what in ("InteractiveCommand", "NonInteractiveCommand", "PortForwardingSession")
    ),
    "arn:aws:ssm:us-east-1::document/AWS-StartPortForwardingSessionToRemoteHost",
    "arn:aws:ssm:us-east-1::document/AWS-StartSSHSession",
]


def test_no_other_policy_of_a_user_opens_a_shell_or_any_port_as_the_agents_account(named):
    for document in OTHER_DOCUMENTS:
        asked = Request("ssm:StartSession", document, context=MINE)
        assert decide(asked, identity=[EVERYTHING]) is Verdict.ALLOWED
        assert decide(asked, identity=[EVERYTHING, named.outputs["people_policy"]]) is Verdict.DENIED, (
            document
        )


def test_the_published_policy_names_the_document_only_where_there_is_one(named, nobody):
    said = {
        name: json.loads(value.outputs["policy"]) for name, value in (("named", named), ("nobody", nobody))
    }

    assert said["named"]["session_document"] == "gpu-fleet-test-session"
    assert "session_document" not in said["nobody"]


def test_the_roster_lies_in_the_records_on_alibaba_cloud_too():
    access = {"people": {"ada": PEOPLE["ada"]}, "ssh_from": {"office": "192.168.4.0/24"}}
    found = declared(alicloud_stack(access=access))

    stored = {
        made["key"]: made.get("content") for made in inputs(found, "alicloud:oss/bucketObject:BucketObject")
    }

    accounts = json.loads(stored[keys.stored(keys.ACCOUNTS)])
    assert [user["name"] for user in accounts["users"]] == ["ada"]

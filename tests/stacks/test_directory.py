"""Groups as source of accounts: the stack's own function, from its archive, on either cloud."""

import base64
import json
import os
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from io import BytesIO

import boto3
import pytest
from botocore.exceptions import ClientError

from gpu_fleet_image.controllers.directory.aws import IdentityCenterGroups
from gpu_fleet_image.controllers.directory.directory import MemberProfile
from gpu_fleet_image.core import keys
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.slurm.accounting import TeamLimits, limits_of
from gpu_fleet_stacks.payload import sweep_archive
from gpu_fleet_stacks.rehearsal.archives import zip_bytes
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.settings.people import directory_text
from tests.image.alicloud_server import ENVIRON, RefusedError, serving
from tests.ran import ran
from tests.stacks import examples
from tests.stacks.alicloud_examples import stack as alicloud_stack
from tests.stacks.alicloud_examples import stack_file as alicloud_file
from tests.stacks.alicloud_programs import register, role_statements
from tests.stacks.examples import stack, stack_file
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.registered import named
from tests.stacks.registrations import declared, run
from tests.stacks.standing import standing

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBUYHkd0jd5yF1xIMu2nsW1SxNTgF2mIf8vY0wd1cmtp ada@laptop"
REGION, STORE = "us-east-1", "d-1234567890"
MAY = Verdict.ALLOWED
GROUP = "0123456789-01234567-89ab-cdef-0123-456789abcdef"
BUCKET = "gpu-fleet-test-records-123456789012"
SCRIPT = """
import importlib, json, sys
from datetime import datetime, timedelta
sys.path[:] = [sys.argv[1], *sys.path, sys.argv[2]]
module, _, function = sys.argv[3].rpartition(".")
reader = importlib.import_module(module)
assert callable(getattr(reader, function)) and reader.__file__.startswith(sys.argv[1])
now = datetime.fromisoformat(sys.argv[4])
reader.run(now + timedelta(minutes=1), now)
"""


def directory(group=GROUP, **changes):
    return {"identity_store": STORE, "teams": {"vision": {"group": group}}, **changes}


SAME = {name: {"group": GROUP} for name in ("vision", "speech")}
REFUSED = {
    "access.directory.identity_store = null: required": directory(identity_store=None),
    "must be an identity store's id": directory(identity_store="main"),
    "must be a group's id": directory(group="vision"),
    "region = 'us-east-\u0661': must be a region of AWS": directory(region="us-east-\u0661"),
    "access.directory.role = 'reader': must be a role's ARN": directory(role="reader"),
    "region = 'here': must be a region of AWS": directory(region="here"),
    "access.directory.teams = 'sudo'": directory(teams={"sudo": {"group": GROUP}}),
    "is the group of vision and speech": directory(teams=SAME),
    "access.directory.teams": directory(teams={}),
    "access.directory.keys.ada": directory(keys={"ada": [KEY[:70]]}),
}


def test_what_a_directory_may_not_be_is_one_message():
    made = [(stack_file(access={"directory": given}), says) for says, given in REFUSED.items()]
    named_twice = {"people": {"ada": {"uid": 5001}}, "directory": directory(keys={"ada": [KEY]})}
    on_alicloud = alicloud_file(access={"directory": directory(group="vision")})
    only_aws = f"access.directory.identity_store = '{STORE}': is only for IAM Identity Center on AWS"
    made += [
        (stack_file(access=named_twice), "access.directory.keys = 'ada': has an account in access.people"),
        (on_alicloud, only_aws),
        (on_alicloud, "access.ssh_from = {}: needs a network that users come from"),
    ]

    assert [f"{says}: {said}" for file, says in made if says not in (said := examples.refusal(file))] == []


class Reader:
    """A stack in moto, its directory, and its function as Lambda would run it."""

    def __init__(self, folder, runtime, group, rehearsed):
        self.group, self.rehearsed = group, rehearsed
        found = self.rehearsed.of_type("aws:lambda/function:Function")
        self.function = next(item for item in found if item.name.endswith("-people"))
        self.code, self.runtime = folder, runtime
        with zipfile.ZipFile(BytesIO(zip_bytes(self.function.inputs["code"]))) as archive:
            archive.extractall(self.code)

    @property
    def store(self):
        return boto3.client("identitystore", REGION)

    def add(self, name):
        names = {"UserName": name, "DisplayName": name, "Name": {"GivenName": name, "FamilyName": "x"}}
        member = {"UserId": self.store.create_user(IdentityStoreId=STORE, **names)["UserId"]}
        where = {"IdentityStoreId": STORE, "GroupId": self.group}
        return self.store.create_group_membership(**where, MemberId=member)["MembershipId"]

    def remove(self, membership):
        self.store.delete_group_membership(IdentityStoreId=STORE, MembershipId=membership)

    def run(self):
        environ = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
        environ |= self.function.inputs["environment"]["variables"]
        where = [str(self.code), str(self.runtime), self.function.inputs["handler"]]
        words = [*where, datetime.now(UTC).isoformat()]
        return ran([sys.executable, "-I", "-S", "-c", SCRIPT, *words], env=environ)

    def roster(self):
        body = boto3.client("s3", REGION).get_object(Bucket=BUCKET, Key=keys.stored(keys.ACCOUNTS))["Body"]
        return json.loads(body.read())

    def names(self):
        return [user["name"] for user in self.roster()["users"]]


def with_a_directory():
    """Create the directory's group; return it, and the registrations of a stack that reads it."""
    store = boto3.client("identitystore", REGION)
    group = store.create_group(IdentityStoreId=STORE, DisplayName="vision")["GroupId"]
    named = {"alice": {"uid": 5001, "team": "speech"}}
    rehearsed = run(stack(access={"people": named, "directory": directory(group)}))
    # moto holds denials of a bucket policy without their conditions, so that nobody could write at all
    boto3.client("s3", REGION).delete_bucket_policy(Bucket=BUCKET)
    return group, rehearsed


@pytest.fixture
def started(tmp_path, lambda_packages):
    """Yield a reader whose passes are separate interpreters."""
    with standing("directory", REGION, with_a_directory) as (group, rehearsed):
        yield Reader(tmp_path / "code", lambda_packages, group, rehearsed)


@pytest.fixture
def reader(started, forked_functions):
    """Return a reader whose passes are forked."""
    return started


def test_members_come_and_leave_by_the_functions_own_archive(started):
    reader = started
    membership = reader.add("ada")
    reader.add("Grace.Hopper")

    came = reader.run()
    first = {user["name"]: user for user in reader.roster()["users"]}
    reader.remove(membership)
    left = reader.run()
    gone = reader.names()
    again = reader.run()

    assert [done.returncode for done in (came, left, again)] == [0, 0, 0], came.stderr + left.stderr
    assert first.keys() == {"ada", "alice"}
    assert (first["ada"]["team"], first["ada"]["uid"] >= 20_000) == ("vision", True)
    assert gone == ["alice"]
    said = [json.loads(done.stdout)["written"] for done in (came, left, again)]
    assert said == [True, True, False]
    assert "is not a login name" in json.loads(came.stdout)["left_out"]["Grace.Hopper"]


def test_what_a_team_gets_of_the_queue_reaches_the_controller_with_the_members(reader):
    limits = {"vision": {"share": 3, "max_gpus": 8}}
    queue = {"queue": "slurm", "storage": {"home": True}, "teams": limits}
    says = stack(access={"directory": directory()}, **queue)
    written = json.loads(directory_text(says, says.access.directory, ()))
    file = reader.code / keys.DIRECTORY_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"queue_teams": written["queue_teams"]}))

    done = reader.run()

    assert done.returncode == 0, done.stderr
    assert reader.roster()["teams"] == limits
    assert limits_of(reader.roster()) == {"vision": TeamLimits(3, 8)}


def test_a_group_that_cannot_be_read_locks_no_account(reader):
    reader.add("eve")
    reader.run()
    before = reader.roster()
    policy_file = reader.code / keys.DIRECTORY_FILE
    said = json.loads(policy_file.read_text())
    said["teams"].append({"name": "lost", "gid": 31_000, "group": GROUP, "admin": False})
    policy_file.write_text(json.dumps(said))

    done = reader.run()

    assert done.returncode != 0
    assert "ResourceNotFoundException" in done.stderr
    assert reader.roster() == before


def test_a_half_written_roster_is_written_anew_and_a_damaged_book_stops_the_function(reader):
    s3 = boto3.client("s3", REGION)
    reader.run()
    whole, book_key = reader.roster(), keys.stored(keys.ACCOUNT_NUMBERS)

    s3.put_object(Bucket=BUCKET, Key=keys.stored(keys.ACCOUNTS), Body=b'{"schema_version": 1, "us')
    assert reader.run().returncode == 0
    assert reader.roster() == whole
    s3.put_object(Bucket=BUCKET, Key=book_key, Body=b'{"accounts": []}')
    done = reader.run()

    assert done.returncode != 0
    assert "UID registry is damaged" in done.stderr
    assert reader.roster() == whole


def test_no_update_of_the_stack_overwrites_the_roster_and_sessions_open_as_the_members_account(reader):
    kinds = ("aws:s3/bucketObjectv2:BucketObjectv2", "aws:ssm/document:Document")
    stored, documents = ([each.inputs for each in reader.rehearsed.of_type(kind)] for kind in kinds)
    names = {each["key"] for each in stored}

    assert keys.stored(keys.POLICY) in names
    assert keys.stored(keys.ACCOUNTS) not in names
    assert sorted(each["documentType"] for each in documents) == ["Command", "Session", "Session"]


def test_the_function_reads_its_groups_and_writes_the_roster_and_nothing_else(reader):
    role = named(reader.rehearsed, "aws:iam/rolePolicy:RolePolicy", "gpu-fleet-test-people")
    records, store = f"arn:aws:s3:::{BUCKET}", "arn:aws:identitystore:"
    identities = f"{store}:123456789012:identitystore/{STORE}"
    accounts, roster = (f"{records}/{keys.stored(key)}" for key in (keys.ACCOUNTS, keys.ROSTER))
    may = {
        "identitystore:ListGroupMemberships": f"{store}::group/{reader.group}",
        "identitystore:DescribeUser": identities,
        "s3:PutObject": accounts,
    }
    may_not = {
        "identitystore:ListGroupMemberships": f"{store}::group/{GROUP}",
        "identitystore:ListUsers": identities,
        "identitystore:CreateGroupMembership": f"{store}::group/{reader.group}",
        "sts:AssumeRole": "arn:aws:iam::999999999999:role/any",
        "s3:PutObject": f"{records}/{keys.stored(keys.POLICY)}",
        "s3:GetObject": roster,
        "s3:DeleteObject": accounts,
    }

    def allowed(asked):
        return [each for each in asked.items() if decide(Request(*each), [role.inputs["policy"]]) is MAY]

    assert (allowed(may), allowed(may_not)) == ([*may.items()], [])


def test_a_directory_of_another_account_is_read_by_its_role_alone():
    role = "arn:aws:iam::999999999999:role/reads-the-identity-store"
    rehearsed = declared(stack(access={"directory": directory(role=role)}))

    policy = named(rehearsed, "aws:iam/rolePolicy:RolePolicy", "gpu-fleet-test-people").inputs["policy"]
    actions = [action for statement in json.loads(policy)["Statement"] for action in statement["Action"]]
    assert "sts:AssumeRole" in actions
    assert not [action for action in actions if action.startswith("identitystore:")]


class IdentityStore:
    """Fake of the parts that moto lacks: pages, disabled users, and deleted users."""

    def __init__(self, pages=(), users=None):
        self.pages, self.users = list(pages), users or {}

    def list_group_memberships(self, **asked):
        place = int(asked.get("NextToken", 0))
        listed = [{"MemberId": {"UserId": member}} for member in self.pages[place]]
        more = {"NextToken": str(place + 1)} if place + 1 < len(self.pages) else {}
        return {"GroupMemberships": listed, **more}

    def describe_user(self, **asked):
        if asked["UserId"] not in self.users:
            raise ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "DescribeUser")
        return self.users[asked["UserId"]]


def groups(store, login="UserName"):
    return IdentityCenterGroups(store, Calls(lambda: datetime.now(UTC)), STORE, login)


def test_every_page_of_a_group_is_read():
    assert list(groups(IdentityStore([["1", "2"], ["3"], ["4"]])).members(GROUP)) == ["1", "2", "3", "4"]


def test_a_disabled_user_is_let_in_no_more_and_one_who_is_gone_neither():
    store = IdentityStore(
        users={
            "1": {"UserName": "ada", "UserStatus": "DISABLED"},
            "2": {"UserName": "b@x", "NickName": "bob", "UserStatus": "ENABLED"},
        }
    )

    assert groups(store).profile("1") == MemberProfile("ada", enabled=False)
    assert groups(store, "NickName").profile("2") == MemberProfile("bob")
    assert groups(store).profile("3") is None


ACCESS = {
    "ssh_from": {"office": "198.51.100.0/24"},
    "directory": {"teams": {"vision": {"group": "Vision"}}, "keys": {"ada": [KEY]}},
}
CALL = """
import sys
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
import index
print(index.handler(b"{}", SimpleNamespace(request_id="1", function=SimpleNamespace(timeout=55))))
"""


class Ims:
    """Fake of RAM user groups: two pages, or no such group."""

    def __init__(self):
        self.missing = False

    def list_users_for_group(self, asked):
        if self.missing or asked["GroupName"] != "Vision":
            raise RefusedError("EntityNotExist.Group", 404)
        first = "Marker" not in asked
        name, number = ("ada", "201") if first else ("Bob.B", "202")
        user = {"UserId": number, "UserPrincipalName": f"{name}@example.onaliyun.com", "DisplayName": name}
        rest = {"IsTruncated": True, "Marker": "second"} if first else {"IsTruncated": False}
        return {"Users": {"User": [user]}, **rest}


@pytest.fixture(scope="module")
def ram(tmp_path_factory):
    """Return the registered function's unpacked archive, and its stack."""
    found = register(alicloud_stack(access=ACCESS))
    function = named(found, "alicloud:fc/v3Function:V3Function", "gpu-fleet-test-people").inputs
    folder = tmp_path_factory.mktemp("function")
    with zipfile.ZipFile(BytesIO(base64.b64decode(function["code"]["zipFile"]))) as archive:
        archive.extractall(folder)
    return found, function, folder


def test_on_alibaba_cloud_members_of_a_ram_group_have_accounts_and_a_lost_group_locks_none(ram, tmp_path):
    _, function, folder = ram
    variables = function["environmentVariables"]
    bucket = variables["GPU_FLEET_LEDGER_URI"].removeprefix("oss://").partition("/")[0]
    ims = Ims()
    with moto_server(REGION) as moto, serving(ims) as server:
        s3 = boto3.client("s3", REGION)
        s3.create_bucket(Bucket=bucket)
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        endpoint = os.environ.get("AWS_ENDPOINT_URL", str(moto))
        led = {"GPU_FLEET_ALICLOUD_ENDPOINT": server.url, "GPU_FLEET_ALICLOUD_OSS_ENDPOINT": endpoint}
        call, environ = [sys.executable, "-I", "-S", "-c", CALL, str(folder)], {**variables, **ENVIRON, **led}

        came = ran(call, env=environ)
        body = s3.get_object(Bucket=bucket, Key=keys.stored(keys.ACCOUNTS))["Body"].read()
        ims.missing = True
        lost = ran(call, env=environ)
        after = s3.get_object(Bucket=bucket, Key=keys.stored(keys.ACCOUNTS))["Body"].read()

    assert came.returncode == 0, came.stderr
    (ada,) = json.loads(body)["users"]
    assert (ada["name"], ada["team"], ada["keys"]) == ("ada", "vision", [KEY])
    assert "Bob.B" in json.loads(body)["left_out"]
    assert lost.returncode != 0
    assert "EntityNotExist.Group" in lost.stderr
    assert after == body


def test_on_alibaba_cloud_the_function_lists_its_groups_and_writes_the_roster_alone(ram):
    found, _, _ = ram

    stated = role_statements(found, "test-people")
    (listing,) = [each for each in stated if "ram:ListUsersForGroup" in each["Action"]]
    writing = [each["Resource"] for each in stated if "oss:PutObject" in each["Action"]]

    assert listing["Resource"] == ["acs:ram::1234567890123456:group/Vision"]
    assert len([each for each in stated if any(action.startswith("ram:") for action in each["Action"])]) == 1
    assert [place.partition("/")[2] for place in writing[0]] == ["reaper/accounts/*", "reaper/accounts.json"]


def test_leavers_are_out_within_five_minutes_of_the_directorys_word():
    """It takes a minute until the function reads, and then the timer of the instances."""
    unit = sweep_archive.ROOT / "gpu_fleet_image/recipe/rootfs/etc/systemd/system/gpu-accounts.timer"
    lines = unit.read_text().splitlines()
    waits = dict(line.split("=", 1) for line in lines if line.startswith(("On", "Acc", "Rand")))

    assert waits == {"OnUnitInactiveSec": "3min", "AccuracySec": "10s", "RandomizedDelaySec": "20s"}
    assert timedelta(minutes=1 + 3, seconds=10 + 20) < timedelta(minutes=5)

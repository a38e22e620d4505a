"""The user role of a pool: the rights of users, judged as both clouds judge them, and its callers."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from gpu_fleet_image.core import runs as model
from gpu_fleet_stacks.aws.submit import ACCOUNT_TAG
from tests.stacks import alicloud_examples, examples
from tests.stacks.alicloud_programs import statements
from tests.stacks.iam import Request, decide
from tests.stacks.judges import (
    ALICLOUD_ACCOUNTS,
    ALICLOUD_QUEUED,
    AWS_ACCOUNTS,
    AWS_QUEUED,
    EVERYTHING,
    MAY,
    MAY_NOT,
    NEIGHBOUR,
    SELF,
    AlicloudJudge,
    AwsJudge,
    Judge,
    Right,
    judge_of,
)
from tests.stacks.registered import instance_files
from tests.stacks.registrations import declared, stood

QUEUED = (AWS_QUEUED.name, ALICLOUD_QUEUED.name)
ACCOUNTS = (*AWS_ACCOUNTS, *ALICLOUD_ACCOUNTS, *QUEUED)
WRITES = ("PutObject", "DeleteObject", "AbortMultipartUpload")
READS_AND_WRITES = ("GetObject", "PutObject", "DeleteObject")
USER = "AROAUSER"
ROLE, RAM_ROLE = "aws:iam/role:Role", "alicloud:ram/role:Role"
Rights = Iterator[Right]


def session(account: str) -> dict[str, object]:
    """Return the condition keys of a user's session, as the instance's service opens it."""
    tags = {f"aws:PrincipalTag/{ACCOUNT_TAG}": account, "aws:userid": f"{USER}:{account}@{SELF}"}
    return {**tags, "account": account}  # by which Alibaba Cloud's session has its policy


def of_users(judge: Judge, name: str) -> Rights:
    """Yield the rights of a pool's users on either cloud."""
    own = partial(Right, f"{name}-user", context=session("ada"))
    stores, bucket = judge.stores, judge.bucket
    yield own("finds the instances of its group", MAY, judge.peers, "*")
    for kind in ("data", "checkpoints"):
        yield own("writes below its pool's prefix", MAY, stores(*WRITES), bucket(kind, f"{name}/run/1"))
        yield own("lists what is stored", MAY, stores(judge.listing), bucket(kind))
        for place in judge.pools:
            yield own("reads every pool's", MAY, stores("GetObject"), bucket(kind, f"{place}/run/1"))
        # of the data bucket, users of every pool add to shared/
        for place in {*judge.pools, "another", f"{name}-more", "keep"} - {name, "shared"}:
            yield own("writes below no other", MAY_NOT, stores(*WRITES), bucket(kind, f"{place}/run/1"))
        for resource in (bucket(kind), bucket(kind, f"{name}/file")):
            destroys = stores("DeleteObjectVersion", "PutBucketPolicy", "DeleteBucket")
            yield own("destroys no old version and changes no bucket", MAY_NOT, destroys, resource)
    shared = bucket("data", "shared/digits/a")
    yield own("adds to what all pools share", MAY, stores("GetObject", "PutObject"), shared)
    if name != "shared":  # a pool of this name owns the prefix
        yield own("and deletes nothing of it", MAY_NOT, stores("DeleteObject"), shared)
        saved = bucket("checkpoints", "shared/a")
        yield own("checkpoints are no such place", MAY_NOT, stores("PutObject"), saved)
    kept = bucket("data", f"{name}/keep/i-1/notes.txt")
    yield own("reads files that an instance saved", MAY, stores("GetObject"), kept)
    yield own("changes none that an instance saved", MAY_NOT, stores(*WRITES), kept)
    yield from of_runs(judge, name)
    yield from of_records(judge, own)
    yield from of_machines(judge, own, name)


def of_runs(judge: Judge, name: str) -> Rights:
    """Yield the rights to submitted runs: only to the account's own, whatever the role opens for all."""
    stores, records = judge.stores, partial(judge.bucket, "records")
    prefix = "s3:prefix" if judge.store == "s3" else "oss:Prefix"
    for caller, verdicts in {"ada": MAY, "bob": MAY_NOT, "ada2": MAY_NOT, "ad": MAY_NOT}.items():
        own = partial(Right, f"{name}-user", context=session(caller))
        job, words = model.job_prefix("ada", "r-1"), model.place_of(name, "ada", "r-1", SELF)
        for key in (f"{job}job.json", f"{job}files.zip", f"{words}state.json", f"{words}log/0.txt"):
            yield own("reads own runs alone", verdicts, stores("GetObject"), records(key))
        said = records(f"{words}state.json")
        yield own("speaks of own runs", verdicts, stores("PutObject"), said)
        elsewhere = records(f"{model.place_of('another', 'ada', 'r-1', SELF)}state.json")
        yield own("and in its pool", MAY_NOT, stores("PutObject"), elsewhere)
        yield own("submits none", MAY_NOT, stores("PutObject"), records(f"{job}job.json"))
        yield own("removes no word", MAY_NOT, stores("DeleteObject"), said)
        lists = partial(Right, f"{name}-user", actions=stores(judge.listing), resource=records())
        for place in (job, f"{words}log/", model.job_prefix("ada")):
            yield lists("finds own runs", verdicts, context=session(caller) | {prefix: place})
        for place in ("", "runs/", "runs/words/", "reaper/"):
            yield lists("and no others", MAY_NOT, context=session(caller) | {prefix: place})
    unnamed = {prefix: "reaper/"}
    yield Right(f"{name}-user", "lists runs alone", MAY_NOT, stores(judge.listing), records(), unnamed)


def of_records(judge: Judge, own: partial[Right]) -> Rights:
    """Yield the rights to the stack's records: only to those for users."""
    stores, records = judge.stores, partial(judge.bucket, "records")
    queue = MAY if judge.settings.queued else MAY_NOT
    said = {"policy": MAY, "accounts": queue, "queue/jobs": queue, "capacity/growth": queue}
    for key, verdicts in said.items():
        place = records(f"reaper/{key}.json")
        yield own("reads what users' commands read", verdicts, stores("GetObject"), place)
        yield own("changes nothing of it", MAY_NOT, stores("PutObject", "DeleteObject"), place)
    kept = ("lease", "ledger/2026/11/21/i-1", "roster", "meter", "capacity/queue", "queue/use/2026-11-21")
    whose = ("capacity/requests/1/users/ada/1", "users/dev/i-1")
    asking = (f"handshake/{who}/1/idle" for who in (f"{USER}:ada@{SELF}", f"AROA:{SELF}", "dev.i-1"))
    for key in (
        *(f"reaper/{name}.json" for name in (*kept, *whose, *asking)),
        *("image/payload/00.tar.gz", "image/wheels/torch.whl", "image/files/driver.run"),
    ):
        yield own("neither reads nor writes other records", MAY_NOT, stores(*READS_AND_WRITES), records(key))
    yield own("does not list the records", MAY_NOT, stores(judge.listing, "ListObjectVersions"), records())


def of_machines(judge: Judge, own: partial[Right], name: str) -> Rights:
    """Yield the missing rights: none over instances, and none in the name of agent or queue."""
    for target in (SELF, NEIGHBOUR):
        context = session("ada") | judge.on(target, name) | {"aws:TagKeys": ["gpu-fleet:keep-until"]}
        yield own("has no right over instances", MAY_NOT, judge.ends, judge.instance(target), context=context)
        for space in (f"GpuFleet/{judge.settings.name}", "GpuFleet/other", "Own"):
            asked = context | {"cloudwatch:namespace": space}
            for place in (judge.instance(target), judge.group(name), judge.secret, *logs_of(judge, name)):
                yield own("does nothing of the agent's", MAY_NOT, judge.of_agents, place, context=asked)
    group = session("ada") | judge.tags(name)
    changes = partial(own, "changes nothing about its group", MAY_NOT, judge.group_changes)
    yield changes(judge.group(name), context=group)
    yield own("neither ends nor lends the key", MAY_NOT, judge.key_ends, judge.key)
    for role in (f"{name}-instance", f"{name}-user"):
        yield own("takes no role", MAY_NOT, ["sts:AssumeRole", "sts:TagSession"], judge.role(role))


def logs_of(judge: Judge, name: str) -> list[str]:
    log = judge.settings.instance_log or "none"
    project, _, store = log.partition("/")
    return [
        judge.arn("logs", f"log-group:{log}:log-stream:{name}/i-1"),
        judge.arn("log", f"project/{project}/logstore/{store}"),
    ]


def of_aws_users(judge: AwsJudge, name: str) -> Rights:
    own = partial(Right, f"{name}-user")
    words = judge.bucket("records", f"{model.place_of(name, 'ada', 'r-1', SELF)}state.json")
    acts = ["s3:PutObject", "s3:GetObject"]
    yield own("has no runs under a pattern", MAY_NOT, acts, words, session("*"))
    yield own("without a name has none", MAY_NOT, acts, words)
    for service, verdicts in {"s3": MAY, "ec2": MAY_NOT, "secretsmanager": MAY_NOT}.items():
        through = {"kms:ViaService": f"{service}.{judge.settings.region}.amazonaws.com"}
        acts = ["kms:Decrypt", "kms:GenerateDataKey"]
        yield own("uses the key through S3 alone", verdicts, acts, judge.key, through)
    yield own("uses the key through S3 alone", MAY_NOT, ["kms:Decrypt", "kms:Encrypt"], judge.key)
    mover = judge.bucket("records", "reaper/capacity/state.json")
    reads = MAY if judge.settings.queued else MAY_NOT
    yield own("reads why no instance comes", reads, ["s3:GetObject"], mover)


def of_alicloud_users(judge: AlicloudJudge, name: str) -> Rights:
    own = partial(Right, f"{name}-user")
    (key,) = judge.found.of_type("alicloud:kms/key:Key")
    yield own("uses the key of objects", MAY, ["kms:Decrypt", "kms:GenerateDataKey"], key.outputs["arn"])


def wrong(judge: Judge) -> Iterator[str]:
    """Return the sentences that do not hold."""
    for name in judge.pools:
        yield from judge.wrong(of_users(judge, name))
        if isinstance(judge, AwsJudge):
            yield from judge.wrong(of_aws_users(judge, name))
        if isinstance(judge, AlicloudJudge):
            yield from judge.wrong(of_alicloud_users(judge, name))


@pytest.mark.parametrize("name", ACCOUNTS)
def test_users_may_do_what_is_said_of_them_and_no_more(name):
    assert [*wrong(judge_of(name))] == []


def test_where_nothing_of_ours_runs_the_instances_role_writes_for_its_users():
    """Without anything of ours on the image nobody gives users a role."""
    aws = examples.stack(image={"id": "ami-0123456789abcdef0", "mode": "none"})
    alicloud = alicloud_examples.stack(image={"id": "m-wz90000000000000000", "mode": "none"})

    for judge in (AwsJudge(aws, stood(aws)), AlicloudJudge(alicloud, declared(alicloud))):
        for kind in ("data", "checkpoints"):
            assert judge.may("dev-instance", *judge.stores("PutObject"), judge.bucket(kind, "dev/run/1"))


# what would be noticed


def altered(monkeypatch, judge, alter):
    """Return the judge with changed statements of the user roles."""
    known = type(judge).identity

    def identity(self, role):
        documents = [json.loads(text) for text in known(self, role)]
        return [json.dumps({**each, "Statement": alter(each["Statement"])}) for each in documents]

    monkeypatch.setattr(type(judge), "identity", identity)
    return judge


WIDER = {
    AWS_QUEUED.name: [
        *("secretsmanager:GetSecretValue", "cloudwatch:PutMetricData", "ec2:CreateTags", "logs:PutLogEvents"),
        *("autoscaling:CompleteLifecycleAction", "ssmmessages:OpenDataChannel", "sts:AssumeRole"),
        *("s3:GetObject", "s3:PutObject", "s3:ListBucket", "kms:Decrypt", "ec2:TerminateInstances"),
    ],
    ALICLOUD_QUEUED.name: [
        *("kms:GetSecretValue", "cms:PutCustomMetric", "ecs:TagResources", "log:PostLogStoreLogs"),
        *("ess:CompleteLifecycleAction", "ess:SetInstancesProtection", "sts:AssumeRole"),
        *("oss:GetObject", "oss:PutObject", "oss:ListObjects", "ecs:DeleteInstance"),
    ],
}


def alterations(judge: Judge) -> Iterator[tuple[str, Callable[[list[Any]], list[Any]]]]:
    """Yield what each statement less, each right too many, and the instances' rights make of a user's."""
    (text,), (of_instance,) = judge.identity("dev-user"), judge.identity("dev-instance")
    for number, _ in enumerate(json.loads(text)["Statement"]):
        yield f"without statement {number}", lambda them, it=number: them[:it] + them[it + 1 :]
    for action in WIDER[judge.settings.name]:
        more = {"Effect": "Allow", "Action": [action], "Resource": ["*"]}
        yield f"with {action}", lambda them, more=more: [*them, more]
    yield "as an instance", lambda _: json.loads(of_instance)["Statement"]


@pytest.mark.parametrize("name", WIDER)
def test_a_statement_less_and_a_right_too_many_are_noticed(name, monkeypatch):
    judge, unseen = judge_of(name), []

    assert not any(wrong(judge))
    for what, alter in [*alterations(judge)]:
        with monkeypatch.context() as patch:
            unseen += [] if any(wrong(altered(patch, judge, alter))) else [what]

    assert unseen == []


# who may assume it


def opens(judge: AwsJudge, principal: str, **asked: object) -> bool:
    """Return whether a caller whose own policies allow everything opens a session of pool dev's users."""
    context = {key: value for key, value in (SESSION | asked).items() if value is not None}
    (role,) = (each for each in judge.found.of_type(ROLE) if each.name.endswith("-dev-user"))
    trust, own = [role.inputs["assumeRolePolicy"]], judge.role("dev-user")
    requests = (Request(action, own, principal, context) for action in ("sts:AssumeRole", "sts:TagSession"))
    verdicts = {decide(request, [EVERYTHING], trust, resource_must_allow=True) for request in requests}
    return verdicts == MAY


SESSION = {
    "sts:RoleSessionName": f"ada@{SELF}",
    f"aws:RequestTag/{ACCOUNT_TAG}": "ada",
    "aws:TagKeys": [ACCOUNT_TAG],
}


def test_a_pools_instances_alone_open_sessions_of_its_users():
    judge = judge_of(AWS_QUEUED.name)
    account = judge.settings.account_id
    strangers = [
        *(judge.role(role) for role in ("dev-large-instance", "dev-user", "queue", "reaper")),
        *(f"arn:aws:iam::{account}:role/admin", f"arn:aws:iam::{account}:user/ada", "ec2.amazonaws.com"),
        "arn:aws:iam::999999999999:root",
    ]

    assert opens(judge, judge.role("dev-instance"))
    assert [each for each in strangers if opens(judge, each)] == []


OTHER_SESSIONS = {
    "another's name": {"sts:RoleSessionName": f"bob@{SELF}"},
    "no instance": {"sts:RoleSessionName": "ada"},
    "no instance's id": {"sts:RoleSessionName": "ada@laptop"},
    "another's tag": {f"aws:RequestTag/{ACCOUNT_TAG}": "bob"},
    "no tag": {f"aws:RequestTag/{ACCOUNT_TAG}": None, "aws:TagKeys": None},
    "a tag more": {"aws:TagKeys": [ACCOUNT_TAG, "team"]},
}


def test_a_session_is_named_after_the_account_of_its_tag_and_an_instance():
    judge = judge_of(AWS_QUEUED.name)
    instance = judge.role("dev-instance")

    assert [what for what, asked in OTHER_SESSIONS.items() if opens(judge, instance, **asked)] == []


@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_instance_assumes_its_own_pools_user_role_and_no_other(name):
    judge = judge_of(name)
    roles = [f"{pool}-{end}" for pool in judge.pools for end in ("instance", "user")]

    taken = {
        pool: [role for role in roles if judge.may(f"{pool}-instance", "sts:AssumeRole", judge.role(role))]
        for pool in judge.pools
    }

    assert taken == {pool: [f"{pool}-user"] for pool in judge.pools}


@pytest.mark.parametrize("name", [*ALICLOUD_ACCOUNTS, ALICLOUD_QUEUED.name])
def test_on_alibaba_cloud_a_pools_instances_alone_are_trusted(name):
    judge = judge_of(name)
    roles = {role.name: role for role in judge.found.of_type(RAM_ROLE)}

    for pool in judge.pools:
        stem = f"gpu-fleet-{judge.settings.name}-{pool}"
        (statement,) = statements(roles[f"{stem}-user"].inputs["assumeRolePolicyDocument"])
        instances = roles[f"{stem}-instance"].outputs["arn"]
        trusted = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"RAM": [instances]}}
        assert statement == trusted


@pytest.mark.parametrize("name", ACCOUNTS)
def test_every_instance_learns_its_pools_user_role(name):
    judge = judge_of(name)

    learned = {table["pool"]: table["user_role"] for table in instance_files(judge.found)}

    assert learned == {pool: judge.role(f"{pool}-user").replace("ram:*", "ram:") for pool in judge.pools}

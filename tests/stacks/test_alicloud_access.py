"""Who may do what, by the policies that the Alibaba Cloud stacks register, judged by ``ram.py``."""

import json
from dataclasses import dataclass
from functools import cache, partial

import pytest

from stacks.rehearsal.program import Rehearsed
from stacks.settings import Nat, Stack, stack_files
from tests.stacks import alicloud_programs as programs
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.iam import PolicyError, Request, Verdict
from tests.stacks.ram import decide

POLICY = "alicloud:ram/policy:Policy"
BUCKET_POLICY = "alicloud:oss/bucketPolicy:BucketPolicy"
ENDS = [
    "ecs:DeleteInstance",
    "ecs:DeleteInstances",
    "ecs:StopInstance",
    "ecs:StopInstances",
    "ecs:RebootInstance",
    "ecs:ModifyInstanceAttribute",
    "ecs:ModifyInstanceAutoReleaseTime",
    "ecs:TagResources",
    "ecs:UntagResources",
]
GROUP_CHANGES = [
    "ess:SetInstanceHealth",
    "ess:DetachInstances",
    "ess:RemoveInstances",
    "ess:EnterStandby",
    "ess:ModifyScalingGroup",
    "ess:SuspendProcesses",
    "ess:ExecuteScalingRule",
    "ess:CreateLifecycleHook",
    "ess:DeleteScalingGroup",
]
KEY_ENDS = ["kms:ScheduleKeyDeletion", "kms:DisableKey", "kms:SetKeyPolicy", "kms:SetDeletionProtection"]

PAIR = stack(
    pools=[pool(), pool(name="dev-large", purpose="training")],
    budget={
        "monthly": 40000,
        "currency": "CNY",
        "recipients": ["team@example.com"],
        "allow_overcommit": True,
        "on_exceeded": "freeze",
    },
    reaper={"leftovers": {"remove": True}},
    notify={
        "users": {"ada": "ada@example.com"},
        "sender": "fleet@mail.example.com",
        "webhooks": [{"kind": "dingtalk", "secret": "rooms/vision"}],
    },
)


@dataclass(frozen=True)
class Account:
    """What a stack registered, and what its callers may do by that."""

    settings: Stack
    found: Rehearsed

    def arn(self, service: str, rest: str) -> str:
        return f"acs:{service}:{self.settings.region}:{self.settings.account_id}:{rest}"

    def bucket(self, kind: str, key: str = "") -> str:
        account = self.settings.account_id
        name = f"gpu-fleet-{self.settings.name}-{kind}-{account}"
        return f"acs:oss:oss-{self.settings.region}:{account}:{name}" + (f"/{key}" if key else "")

    def identity(self, role: str) -> list[str]:
        name = f"gpu-fleet-{self.settings.name}-{role}"
        found = [
            resource.inputs["policyDocument"]
            for resource in self.found.of_type(POLICY)
            if resource.name == name
        ]
        assert found, name
        return found

    def verdict(self, role: str, action: str, resource: str, context: dict | None = None) -> Verdict:
        bucket = resource.rpartition(":")[2].partition("/")[0]
        policies = [
            each_resource.inputs["policy"]
            for each_resource in self.found.of_type(BUCKET_POLICY)
            if json.loads(each_resource.inputs["policy"])["Statement"][0]["Resource"][0].endswith(
                f":{bucket}"
            )
        ]
        assert resource.startswith("acs:oss:") is bool(policies)
        request = Request(action, resource, context={"acs:SecureTransport": "true"} | (context or {}))
        return decide(request, self.identity(role), policies)

    def may(self, role: str, action: str, resource: str, context: dict | None = None) -> bool:
        return self.verdict(role, action, resource, context) is Verdict.ALLOWED

    def tags(self, pool_name: str, **more: str) -> dict[str, str]:
        tags = {"stack": self.settings.name, "pool": pool_name, "managed": "true"} | more
        return {f"acs:ResourceTag/gpu-fleet:{key}": value for key, value in tags.items()}


@cache
def _pair() -> Rehearsed:
    return programs.register(PAIR)


def account_of(name: str) -> Account:
    if name == "pair":
        return Account(PAIR, _pair())
    if name == "everything":
        return Account(programs.EVERYTHING, programs.everything())
    return Account(stack_files.settings_of(name), programs.shipped(name))


@pytest.fixture(params=[*programs.STACKS, "everything", "pair"])
def account(request) -> Account:
    return account_of(request.param)


@pytest.fixture
def pair() -> Account:
    return account_of("pair")


def pools(account: Account) -> list[str]:
    return [pool.name for pool in account.settings.pools]


# an instance and its neighbours


@pytest.mark.parametrize("action", ENDS)
def test_an_instance_terminates_changes_and_marks_no_instance(account, action):
    for name in pools(account):
        resource = account.arn("ecs", "instance/i-1")
        assert not account.may(f"{name}-instance", action, resource, account.tags(name))


@pytest.mark.parametrize("action", GROUP_CHANGES)
def test_an_instance_changes_nothing_about_its_group(account, action):
    for name in pools(account):
        resource = account.arn("ess", "scalinggroup/asg-1")
        assert not account.may(f"{name}-instance", action, resource, account.tags(name))


@pytest.mark.parametrize("action", ["ess:CompleteLifecycleAction", "ess:RecordLifecycleActionHeartbeat"])
def test_an_instance_speaks_of_drains_in_its_own_pool_alone(account, action):
    for name in pools(account):
        ask = partial(account.may, f"{name}-instance", action, account.arn("ess", "scalinggroup/asg-1"))
        assert ask(account.tags(name))
        assert not ask(account.tags("another"))
        assert not ask(account.tags(name, stack="other"))


# an instance and what is stored


@pytest.mark.parametrize("kind", ["data", "checkpoints"])
def test_a_pool_writes_and_deletes_below_its_own_prefix_and_reads_every_pools(account, kind):
    for name in pools(account):
        role = f"{name}-instance"
        for action in ("oss:PutObject", "oss:DeleteObject", "oss:AbortMultipartUpload"):
            assert account.may(role, action, account.bucket(kind, f"{name}/run/step-1"))
            for place in {*pools(account), "another", f"{name}-more", "keep"} - {name}:
                assert not account.may(role, action, account.bucket(kind, f"{place}/run/step-1"))
        for place in pools(account):
            assert account.may(role, "oss:GetObject", account.bucket(kind, f"{place}/run/step-1"))
        assert account.may(role, "oss:ListObjects", account.bucket(kind))


@pytest.mark.parametrize("action", ["oss:DeleteObjectVersion", "oss:PutBucketPolicy", "oss:DeleteBucket"])
def test_an_instance_destroys_no_old_version_and_changes_no_bucket(account, action):
    for name in pools(account):
        for resource in (account.bucket("data"), account.bucket("data", f"{name}/file")):
            assert not account.may(f"{name}-instance", action, resource)


@pytest.mark.parametrize("action", ["oss:GetObject", "oss:PutObject", "oss:DeleteObject"])
def test_an_instance_reads_and_writes_no_ledger(account, action):
    for name in pools(account):
        for key in ("reaper/lease.json", "reaper/ledger/2026/11/21/i-1.json"):
            assert not account.may(f"{name}-instance", action, account.bucket("records", key))


@pytest.mark.parametrize("action", ["oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"])
def test_an_instance_answers_the_sweep_for_its_pool_alone(account, action):
    """RAM knows no variable for the caller: within the pool one instance can speak for another."""
    for name in pools(account):
        for place, may in {name: True, f"{name}-large": False, "another": False}.items():
            where = account.bucket("records", f"reaper/handshake/{place}.i-1/20261121T120000Z/idle.json")
            assert account.may(f"{name}-instance", action, where) is may
            assert not account.may(f"{name}-instance", "oss:DeleteObject", where)


def test_an_instance_lists_what_its_pool_said_and_nothing_else_of_the_records(account):
    for name in pools(account):
        ask = partial(account.may, f"{name}-instance", "oss:ListObjectVersions", account.bucket("records"))
        assert ask({"oss:Prefix": f"reaper/handshake/{name}.i-1/20261121T120000Z/decision.json"})
        for prefix in ("reaper/ledger/", "reaper/handshake/", "reaper/handshake/another.i-1/", ""):
            assert not ask({"oss:Prefix": prefix})
        assert not ask({})


def test_the_sweep_hears_what_instances_say_and_decides(account):
    said = account.bucket("records", "reaper/handshake/dev.i-1/20261121T120000Z/decision.json")
    for action in ("oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"):
        assert account.may("reaper", action, said)
    assert account.may("reaper", "oss:ListObjects", account.bucket("records"))


def test_an_instance_reads_the_policy_and_changes_it_not(account):
    policy = account.bucket("records", "reaper/policy.json")
    for name in pools(account):
        assert account.may(f"{name}-instance", "oss:GetObject", policy)
        assert not account.may(f"{name}-instance", "oss:PutObject", policy)
        assert not account.may(f"{name}-instance", "oss:DeleteObject", policy)


def test_an_instance_says_who_is_on_its_own_pools_instances_and_reads_no_roster(account):
    for name in pools(account):
        ask = partial(account.may, f"{name}-instance")
        assert ask("oss:PutObject", account.bucket("records", f"reaper/users/{name}/i-1.json"))
        assert not ask("oss:PutObject", account.bucket("records", f"reaper/users/{name}-more/i-1.json"))
        assert not ask("oss:GetObject", account.bucket("records", "reaper/roster.json"))
        assert not ask("oss:PutObject", account.bucket("records", "reaper/roster.json"))


def test_the_sweep_mails_and_reads_the_webhooks_that_the_settings_name(pair):
    ask = partial(pair.may, "reaper")

    assert ask("dm:SingleSendMail", "*")
    assert ask("oss:GetObject", pair.bucket("records", "reaper/roster.json"))
    assert ask("kms:GetSecretValue", pair.arn("kms", "secret/rooms/vision"))
    assert not ask("kms:GetSecretValue", pair.arn("kms", "secret/rooms/other"))


def test_the_sweep_of_a_stack_without_recipients_neither_mails_nor_reads_secrets():
    account = account_of("everything")
    assert not account.settings.notify.anybody

    assert not account.may("reaper", "dm:SingleSendMail", "*")
    assert not account.may("reaper", "kms:GetSecretValue", account.arn("kms", "secret/rooms/vision"))


def test_an_instance_reads_the_payload_it_boots_and_its_wheels_and_nothing_else_of_the_records(account):
    wheels = account.settings.network.nat is Nat.NONE
    readable = {
        "image/payload/00.tar.gz": True,
        "image/wheels/torch.whl": wheels,
        "image/00.tar": False,
        "image/payload-of-others/00.tar.gz": False,
        "meter.json": False,
    }
    for name in pools(account):
        for key, may in readable.items():
            assert account.may(f"{name}-instance", "oss:GetObject", account.bucket("records", key)) is may
        assert not account.may(f"{name}-instance", "oss:ListObjects", account.bucket("records"))


@pytest.mark.parametrize("action", ["oss:PutObject", "oss:DeleteObject"])
def test_an_instance_changes_no_payload(account, action):
    for name in pools(account):
        payload = account.bucket("records", "image/payload/00.tar.gz")
        assert not account.may(f"{name}-instance", action, payload)


@pytest.mark.parametrize("role", ["instance", "reaper"])
@pytest.mark.parametrize("action", KEY_ENDS)
def test_no_role_ends_the_key(account, role, action):
    for name in pools(account):
        own = f"{name}-instance" if role == "instance" else role
        assert not account.may(own, action, account.arn("kms", "key/1"))


@pytest.mark.parametrize("role", ["instance", "reaper"])
def test_no_caller_reads_a_bucket_by_plain_http(account, role):
    kind, own = ("data", f"{pools(account)[0]}-instance") if role == "instance" else ("records", "reaper")
    resource = account.bucket(kind, "reaper/x")
    verdict = partial(account.verdict, own, "oss:GetObject", resource)

    assert verdict({}) is Verdict.ALLOWED
    assert verdict({"acs:SecureTransport": "false"}) is Verdict.DENIED


# the sweep


@pytest.mark.parametrize("action", ["ecs:DeleteInstances", "ecs:StopInstances"])
def test_the_sweep_terminates_what_its_stack_licenses_and_nothing_else(account, action):
    ask = partial(account.may, "reaper", action, account.arn("ecs", "instance/i-1"))

    assert ask(account.tags("dev"))
    assert not ask(account.tags("dev", stack="other"))
    assert not ask(account.tags("dev", managed="false"))
    assert not ask(account.tags("dev", protected="true"))
    assert not ask(account.tags("dev", protected="by the auditors"))
    assert not ask(account.tags("dev", protected=""))
    assert not ask({})


def test_the_sweep_takes_instances_out_of_groups_of_its_own_stack_alone(account):
    ask = partial(account.may, "reaper", "ess:DetachInstances", account.arn("ess", "scalinggroup/asg-1"))

    assert ask(account.tags("dev"))
    assert not ask(account.tags("dev", stack="other"))


@pytest.mark.parametrize("action", ["ecs:ModifyInstanceAttribute", "ecs:RunInstances", "ram:PassRole"])
def test_the_sweep_starts_and_changes_no_instance(account, action):
    assert not account.may("reaper", action, account.arn("ecs", "instance/i-1"), account.tags("dev"))


def test_the_sweep_writes_its_ledger_and_deletes_none_of_it(account):
    ledger = account.bucket("records", "reaper/ledger/2026/11/21/i-1.json")

    assert account.may("reaper", "oss:PutObject", ledger)
    assert account.may("reaper", "oss:GetObject", ledger)
    for action in ("oss:DeleteObject", "oss:DeleteObjectVersion", "oss:PutBucketPolicy"):
        assert not account.may("reaper", action, ledger)


def test_the_sweep_neither_reads_what_users_store_nor_writes_what_instances_boot(account):
    for action in ("oss:GetObject", "oss:PutObject"):
        assert not account.may("reaper", action, account.bucket("data", "dev/keep/i-1/notes.txt"))
    assert not account.may("reaper", "oss:PutObject", account.bucket("records", "image/payload/00.tar.gz"))


def test_a_freeze_closes_groups_of_training_pools_alone(pair):
    ask = partial(pair.may, "reaper", "ess:SuspendProcesses", pair.arn("ess", "scalinggroup/asg-1"))

    assert ask(pair.tags("dev-large"))
    assert not ask(pair.tags("dev"))


def test_the_sweep_removes_unprotected_leftovers_of_its_own_stack(pair):
    ask = partial(pair.may, "reaper", "ecs:DeleteDisk", pair.arn("ecs", "disk/d-1"))

    assert ask(pair.tags("dev"))
    assert not ask(pair.tags("dev", stack="other"))
    assert not ask(pair.tags("dev", protected="yes"))
    assert not ask(pair.tags("dev", protected=""))


# the evaluator itself, by RAM's own examples (www.alibabacloud.com/help/en/ram/conditional-operator)


def judged(statements, action="ecs:StartInstance", resource="acs:ecs:cn-hangzhou:1:instance/i-1", **context):
    document = json.dumps({"Version": "1", "Statement": statements})
    return decide(Request(action, resource, context=context), [document])


TEAM = {
    "Effect": "Allow",
    "Action": "ecs:*",
    "Resource": "*",
    "Condition": {"StringEquals": {"acs:ResourceTag/team": ["dev"]}},
}


def test_a_tag_lets_in_whom_it_names_and_an_absent_tag_no_caller():
    assert judged([TEAM], **{"acs:ResourceTag/team": "dev"}) is Verdict.ALLOWED
    assert judged([TEAM], **{"acs:ResourceTag/team": "ops"}) is Verdict.NOT_ALLOWED
    assert judged([TEAM]) is Verdict.NOT_ALLOWED


def test_a_denial_takes_precedence():
    deny = {"Effect": "Deny", "Action": "ecs:StartInstance", "Resource": "*"}

    assert judged([TEAM, deny], **{"acs:ResourceTag/team": "dev"}) is Verdict.DENIED


@pytest.mark.parametrize(
    ("pattern", "verdict"),
    [
        ("acs:ecs:*:1:instance/*", Verdict.ALLOWED),
        ("acs:ecs:cn-hangzhou:*:instance/i-?", Verdict.ALLOWED),
        ("acs:ecs:cn-shanghai:1:instance/*", Verdict.NOT_ALLOWED),
        ("acs:ecs:*:2:instance/*", Verdict.NOT_ALLOWED),
    ],
)
def test_a_resource_matches_by_its_parts(pattern, verdict):
    assert judged([{"Effect": "Allow", "Action": "ecs:*", "Resource": [pattern]}]) is verdict


def test_what_the_reference_leaves_open_is_an_error_rather_than_a_guess():
    hanging = {
        "Effect": "Allow",
        "Action": "ecs:*",
        "Resource": "*",
        "Condition": {"StringNotEquals": {"acs:ResourceTag/team": ["ops"]}},
    }

    with pytest.raises(PolicyError, match="how RAM reads an absent key"):
        judged([hanging])


@pytest.mark.parametrize("operator", ["Null", "ArnLike", "StringEqualsIfExists", "ForAllValues:StringEquals"])
def test_an_operator_that_ram_does_not_name_is_refused(operator):
    with pytest.raises(PolicyError, match="is not judged here"):
        judged([TEAM | {"Condition": {operator: {"acs:ResourceTag/team": ["dev"]}}}])

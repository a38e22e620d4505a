"""Who may do what, by the policies that the shipped AWS stacks register, judged by ``iam.py``."""

import json
from dataclasses import dataclass
from functools import cache, partial

import pytest

from stacks.aws.stack import build
from stacks.rehearsal.moto_server import moto_server
from stacks.rehearsal.program import Rehearsed, run_program
from stacks.settings import Nat, Stack, stack_files
from tests.stacks.conftest import AWS_STACKS
from tests.stacks.examples import pool, stack
from tests.stacks.iam import Request, Verdict, decide

ROLE_POLICY = "aws:iam/rolePolicy:RolePolicy"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
SELF, NEIGHBOUR = "i-00000000000000001", "i-00000000000000002"
ENDS = [
    "ec2:TerminateInstances",
    "ec2:StopInstances",
    "ec2:RebootInstances",
    "ec2:ModifyInstanceAttribute",
    "ec2:ModifyInstanceMetadataOptions",
]
GROUP_CHANGES = [
    "autoscaling:SetInstanceHealth",
    "autoscaling:DetachInstances",
    "autoscaling:EnterStandby",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:SetInstanceProtection",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
    "autoscaling:UpdateAutoScalingGroup",
    "autoscaling:SuspendProcesses",
    "autoscaling:PutLifecycleHook",
    "autoscaling:DeleteAutoScalingGroup",
]
KEY_ENDS = ["kms:ScheduleKeyDeletion", "kms:DisableKey", "kms:PutKeyPolicy", "kms:CreateGrant"]

# Two pools, the name of one how that of the other begins, and every statement that a setting adds.
PAIR = stack(
    pools=[pool(), pool(name="dev-large", purpose="training")],
    budget={
        "monthly": 5000,
        "recipients": ["team@example.com"],
        "allow_overcommit": True,
        "on_exceeded": "freeze",
    },
    reaper={"leftovers": {"remove": True}},
    network={
        "cidr": "10.0.0.0/16",
        "zones": ["us-east-1a", "us-east-1b"],
        "interface_endpoints": True,
        "s3_buckets": ["our-datasets", "open-*"],
    },
    notify={
        "users": {"ada": "ada@example.com", "lovelace": "ada@example.com", "ops": "team@example.com"},
        "webhooks": [{"kind": "slack", "secret": "rooms/vision"}],
    },
)
MAILING = stack(
    name="mailing", notify={"users": {"ada": "ada@example.com"}, "sender": "fleet@mail.example.com"}
)


@dataclass(frozen=True)
class Account:
    """What a stack registered, and what its callers may do by that."""

    settings: Stack
    found: Rehearsed

    def arn(self, service: str, rest: str) -> str:
        return f"arn:aws:{service}:{self.settings.region}:{self.settings.account_id}:{rest}"

    def instance(self, key: str) -> str:
        return self.arn("ec2", f"instance/{key}")

    def group(self, pool_name: str) -> str:
        of_pool = {"key": "gpu-fleet:pool", "value": pool_name, "propagateAtLaunch": True}
        groups = self.found.of_type("aws:autoscaling/group:Group")
        name = next(
            each_group.outputs["name"] for each_group in groups if of_pool in each_group.inputs["tags"]
        )
        return self.arn("autoscaling", f"autoScalingGroup:0a1b:autoScalingGroupName/{name}")

    def bucket(self, kind: str, key: str = "") -> str:
        name = f"gpu-fleet-{self.settings.name}-{kind}-{self.settings.account_id}"
        return f"arn:aws:s3:::{name}" + (f"/{key}" if key else "")

    @property
    def key(self) -> str:
        (key,) = self.found.of_type("aws:kms/key:Key")
        return key.outputs["arn"]

    def identity(self, role: str) -> list[str]:
        """The policies of a role, by the end of its name: ``dev-instance`` or ``reaper``."""
        name = f"gpu-fleet-{self.settings.name}-{role}"
        found = [
            resource.inputs["policy"] for resource in self.found.of_type(ROLE_POLICY) if resource.name == name
        ]
        assert found, name
        return found

    def resource(self, arn: str) -> tuple[list[str], bool]:
        """The policies of a resource, and whether these must let the caller in."""
        if arn.startswith("arn:aws:kms:"):
            return [
                each_resource.inputs["policy"] for each_resource in self.found.of_type("aws:kms/key:Key")
            ], True
        policies = self.found.of_type("aws:s3/bucketPolicy:BucketPolicy")
        bucket = arn.removeprefix("arn:aws:s3:::").partition("/")[0]
        own = [policy.inputs["policy"] for policy in policies if policy.inputs["bucket"] == bucket]
        return own, False

    def endpoint(self, service: str) -> list[str]:
        named = f"com.amazonaws.{self.settings.region}.{service}"
        return [
            resource.inputs["policy"]
            for resource in self.found.of_type(ENDPOINT)
            if resource.inputs["serviceName"] == named
        ]

    def verdict(self, role: str, action: str, resource: str, **context) -> Verdict:
        """As the role, from inside the network: its policies, the resource's, the endpoint's on the way."""
        common = {
            "aws:PrincipalAccount": self.settings.account_id,
            "aws:SecureTransport": "true",
            "s3:TlsVersion": "1.3",
        }
        principal = f"arn:aws:iam::{self.settings.account_id}:role/gpu-fleet-{self.settings.name}-{role}"
        request = Request(action, resource, principal, common | context.pop("context", {}))
        own, must = self.resource(resource)
        inside = role != "reaper"  # the sweep's function is in no network of the stack
        return decide(
            request,
            self.identity(role),
            own,
            self.endpoint(action.partition(":")[0]) if inside else [],
            resource_must_allow=must,
        )

    def may(self, role: str, action: str, resource: str, context: dict | None = None) -> bool:
        return self.verdict(role, action, resource, context=context or {}) is Verdict.ALLOWED

    def tags(self, pool_name: str, **more: str) -> dict[str, str]:
        """The condition keys of an instance or a group of a pool."""
        tags = {"stack": self.settings.name, "pool": pool_name, "managed": "true"} | more
        prefixes = ("aws:ResourceTag", "ec2:ResourceTag")
        return {f"{prefix}/gpu-fleet:{key}": value for prefix in prefixes for key, value in tags.items()}

    def on(self, key: str, pool_name: str, **tags: str) -> dict[str, str]:
        """What EC2 hands over with a call of instance ``SELF`` on an instance."""
        return {
            "ec2:SourceInstanceARN": self.instance(SELF),
            "ec2:InstanceID": key,
            **self.tags(pool_name, **tags),
        }


@cache
def account_of(name: str) -> Account:
    """The account in which a stack stands, its ids given by moto."""
    own = {role.name: role for role in (PAIR, MAILING)}
    settings = own.get(name) or stack_files.settings_of(name)
    with moto_server(settings.region):
        if name in own:
            return Account(settings, run_program(name, program=lambda: build(settings), config={}))
        return Account(settings, run_program(name))


@pytest.fixture(params=[*AWS_STACKS, PAIR.name])
def account(request) -> Account:
    """Each shipped stack in turn, and one of two pools whose names begin alike."""
    return account_of(request.param)


@pytest.fixture
def pair() -> Account:
    return account_of(PAIR.name)


def pools(account: Account) -> list[str]:
    return [pool.name for pool in account.settings.pools]


def others(account: Account, name: str) -> list[str]:
    return [pool for pool in (*pools(account), "another") if pool != name]


# an instance and its neighbours


@pytest.mark.parametrize("action", ENDS)
@pytest.mark.parametrize("target", [SELF, NEIGHBOUR])
def test_an_instance_terminates_neither_its_neighbour_nor_itself(account, action, target):
    for name in pools(account):
        assert not account.may(f"{name}-instance", action, account.instance(target), account.on(target, name))


@pytest.mark.parametrize("action", GROUP_CHANGES)
def test_an_instance_changes_nothing_about_its_group(account, action):
    for name in pools(account):
        assert not account.may(f"{name}-instance", action, account.group(name), account.tags(name))


@pytest.mark.parametrize("action", ["CompleteLifecycleAction", "RecordLifecycleActionHeartbeat"])
def test_an_instance_speaks_of_drains_in_its_own_pool_alone(account, action):
    for name in pools(account):
        ask = partial(account.may, f"{name}-instance", f"autoscaling:{action}")
        assert ask(account.group(name), account.tags(name))
        for other in set(others(account, name)) & set(pools(account)):
            assert not ask(account.group(other), account.tags(other))
        assert not ask(account.group(name), account.tags(name, stack="other"))


KEEP = ["gpu-fleet:keep-until", "gpu-fleet:keep-reason", "gpu-fleet:users"]
WITHDRAWN = "gpu-fleet:withdrawn"


@pytest.mark.parametrize("action", ["ec2:CreateTags", "ec2:DeleteTags"])
def test_an_instance_keeps_and_releases_itself_alone(account, action):
    for name in pools(account):
        ask = partial(account.may, f"{name}-instance", action)
        assert ask(account.instance(SELF), account.on(SELF, name) | {"aws:TagKeys": KEEP})
        assert ask(account.instance(SELF), account.on(SELF, name) | {"aws:TagKeys": KEEP[:1]})
        assert not ask(account.instance(NEIGHBOUR), account.on(NEIGHBOUR, name) | {"aws:TagKeys": KEEP})


@pytest.mark.parametrize("action", ["ec2:CreateTags", "ec2:DeleteTags"])
@pytest.mark.parametrize(
    "tag", ["managed", "stack", "pool", "owner", "protected", "idle-since", "reap-after"]
)
def test_an_instance_changes_no_other_tag_of_itself(account, action, tag):
    for name in pools(account):
        for keys in ([f"gpu-fleet:{tag}"], [*KEEP, f"gpu-fleet:{tag}"]):
            context = account.on(SELF, name) | {"aws:TagKeys": keys}
            assert not account.may(f"{name}-instance", action, account.instance(SELF), context)


def test_an_instance_does_not_delete_all_its_tags_by_naming_none(account):
    for name in pools(account):
        context = account.on(SELF, name)
        assert not account.may(f"{name}-instance", "ec2:DeleteTags", account.instance(SELF), context)


@pytest.mark.parametrize("action", ["ec2:CreateTags", "ec2:DeleteTags"])
def test_an_instance_withdraws_itself_and_no_neighbour(account, action):
    keys = {"aws:TagKeys": [WITHDRAWN]}
    for name in pools(account):
        ask = partial(account.may, f"{name}-instance", action)
        assert ask(account.instance(SELF), account.on(SELF, name) | keys)
        assert not ask(account.instance(NEIGHBOUR), account.on(NEIGHBOUR, name) | keys)


@pytest.mark.parametrize("action", ["s3:GetObject", "s3:PutObject"])
def test_an_instance_answers_the_sweep_under_its_own_name_alone(account, action):
    """EC2 gives a role's session the instance's id for a name, and nobody else may take the role."""
    own = {"aws:userid": f"AROAEXAMPLE:{SELF}"}
    places = {
        f"AROAEXAMPLE:{SELF}/20261121T120000Z/idle.json": True,
        f"AROAEXAMPLE:{NEIGHBOUR}/20261121T120000Z/idle.json": False,
        f"AROAEXAMPLE:{SELF}0/20261121T120000Z/idle.json": False,
        f"AROAOTHER:{SELF}/20261121T120000Z/idle.json": False,
        "AROAEXAMPLE:*/20261121T120000Z/idle.json": False,
    }
    for name in pools(account):
        for place, may in places.items():
            where = account.bucket("records", f"reaper/handshake/{place}")
            assert account.may(f"{name}-instance", action, where, own) is may
            assert not account.may(f"{name}-instance", "s3:DeleteObject", where, own)


# an instance and what is stored


@pytest.mark.parametrize("kind", ["data", "checkpoints"])
def test_a_pool_writes_and_deletes_below_its_own_prefix_and_reads_every_pools(account, kind):
    for name in pools(account):
        role = f"{name}-instance"
        for action in ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"):
            assert account.may(role, action, account.bucket(kind, f"{name}/run/step-1"))
            for place in (*others(account, name), f"{name}-more", "keep"):
                assert not account.may(role, action, account.bucket(kind, f"{place}/run/step-1"))
        for place in pools(account):
            assert account.may(role, "s3:GetObject", account.bucket(kind, f"{place}/run/step-1"))
        assert account.may(role, "s3:ListBucket", account.bucket(kind))


@pytest.mark.parametrize("action", ["s3:DeleteObjectVersion", "s3:PutBucketPolicy", "s3:DeleteBucket"])
def test_an_instance_destroys_no_old_version_and_changes_no_bucket(account, action):
    for name in pools(account):
        for resource in (account.bucket("data"), account.bucket("data", f"{name}/file")):
            assert not account.may(f"{name}-instance", action, resource)


@pytest.mark.parametrize("action", ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"])
@pytest.mark.parametrize("key", ["reaper/lease.json", "reaper/ledger/2026/11/21/i-1.json"])
def test_an_instance_reads_and_writes_no_ledger(account, action, key):
    for name in pools(account):
        assert not account.may(f"{name}-instance", action, account.bucket("records", key))


def test_an_instance_reads_no_roster_of_users(pair):
    roster = pair.bucket("records", "reaper/roster.json")

    assert not any(pair.may(f"{name}-instance", "s3:GetObject", roster) for name in pools(pair))
    assert pair.may("reaper", "s3:GetObject", roster)


def test_an_instance_reads_the_policy_and_changes_it_not(account):
    policy = account.bucket("records", "reaper/policy.json")
    for name in pools(account):
        assert account.may(f"{name}-instance", "s3:GetObject", policy)
        assert not account.may(f"{name}-instance", "s3:PutObject", policy)
        assert not account.may(f"{name}-instance", "s3:DeleteObject", policy)


def test_an_instance_reads_the_payload_it_boots_and_its_wheels_and_nothing_else_of_the_records(account):
    wheels = account.settings.network.nat is Nat.NONE
    readable = {
        "image/payload/00.tar.gz": True,
        "image/wheels/torch.whl": wheels,
        "image/files/driver.run": False,
        "image/00.tar": False,
        "image/payload-of-others/00.tar.gz": False,
        "meter.json": False,
    }
    for name in pools(account):
        for key, may in readable.items():
            assert account.may(f"{name}-instance", "s3:GetObject", account.bucket("records", key)) is may
        assert not account.may(f"{name}-instance", "s3:ListBucket", account.bucket("records"))


@pytest.mark.parametrize("action", ["s3:PutObject", "s3:DeleteObject"])
def test_an_instance_changes_no_payload(account, action):
    for name in pools(account):
        payload = account.bucket("records", "image/payload/00.tar.gz")
        assert not account.may(f"{name}-instance", action, payload)


@pytest.mark.parametrize("action", KEY_ENDS)
def test_an_instance_neither_ends_nor_lends_the_key(account, action):
    for name in pools(account):
        assert not account.may(f"{name}-instance", action, account.key)


def test_an_instance_uses_the_key_through_s3_alone(account):
    region = account.settings.region
    for name in pools(account):
        ask = partial(account.may, f"{name}-instance", "kms:Decrypt", account.key)
        assert ask({"kms:ViaService": f"s3.{region}.amazonaws.com"})
        assert not ask({"kms:ViaService": f"ec2.{region}.amazonaws.com"})
        assert not ask({})


def test_an_instance_publishes_metrics_of_its_own_stack_alone(account):
    for name in pools(account):
        ask = partial(account.may, f"{name}-instance", "cloudwatch:PutMetricData", "*")
        assert ask({"cloudwatch:namespace": f"GpuFleet/{account.settings.name}"})
        assert not ask({"cloudwatch:namespace": "GpuFleet/other"})
        assert not ask({"cloudwatch:namespace": "AWS/EC2"})


@pytest.mark.parametrize(
    "action", ["iam:PassRole", "sts:AssumeRole", "iam:PutRolePolicy", "ec2:RunInstances"]
)
def test_an_instance_gives_itself_no_other_rights(account, action):
    for name in pools(account):
        assert not account.may(
            f"{name}-instance", action, f"arn:aws:iam::{account.settings.account_id}:role/x"
        )


# buckets and the way to them


def put(account: Account, **context) -> Verdict:
    (name, *_) = pools(account)
    resource = account.bucket("checkpoints", f"{name}/file")
    return account.verdict(f"{name}-instance", "s3:PutObject", resource, context=context)


SSE, SSE_KEY = "s3:x-amz-server-side-encryption", "s3:x-amz-server-side-encryption-aws-kms-key-id"


def test_a_bucket_takes_what_comes_by_tls_under_its_own_key_or_none_named(account):
    assert put(account) is Verdict.ALLOWED
    assert put(account, **{SSE: "aws:kms", SSE_KEY: account.key}) is Verdict.ALLOWED


@pytest.mark.parametrize(
    "context",
    [
        {"aws:SecureTransport": "false"},
        {"s3:TlsVersion": "1.1"},
        {SSE: "AES256"},
        {SSE: "aws:kms", SSE_KEY: "arn:aws:kms:us-east-1:999999999999:key/theirs"},
    ],
)
def test_a_bucket_refuses_plain_http_old_tls_and_any_other_key(account, context):
    assert put(account, **context) is Verdict.DENIED


FOREIGN = "arn:aws:s3:::exfiltration/secrets"


def through_s3_endpoint(account: Account, action: str, resource: str, owner: str | None) -> bool:
    """Whether the gateway endpoint lets through what the caller's own account allows in full."""
    everything = json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
    context = {} if owner is None else {"aws:PrincipalAccount": owner}
    principal = f"arn:aws:iam::{owner or '000000000000'}:user/somebody"
    request = Request(action, resource, principal, context)
    return decide(request, [everything], endpoint=account.endpoint("s3")) is Verdict.ALLOWED


def test_keys_of_another_account_carry_nothing_out_by_the_gateway(account):
    """The usual theft: somebody brings keys of an account of theirs and copies to a bucket there."""
    for owner in ("999999999999", account.settings.account_id, None):
        assert not through_s3_endpoint(account, "s3:PutObject", FOREIGN, owner)
    assert not through_s3_endpoint(account, "s3:PutObject", account.bucket("data", "dev/x"), "999999999999")


def test_the_gateway_leads_to_the_stacks_buckets(account):
    own = account.settings.account_id
    for kind in ("data", "checkpoints", "records"):
        assert through_s3_endpoint(account, "s3:GetObject", account.bucket(kind, "x"), own)
        assert through_s3_endpoint(account, "s3:ListBucket", account.bucket(kind), own)


@pytest.mark.parametrize(
    "bucket",
    [
        "amazon-ssm-{region}",
        "aws-ssm-{region}",
        "{region}-birdwatcher-prod",
        "patch-baseline-snapshot-{region}",
        "prod-{region}-starport-layer-bucket",
        "ec2imagebuilder-toe-{region}-prod",
    ],
)
def test_what_services_keep_for_instances_can_be_read_and_not_written(account, bucket):
    resource = f"arn:aws:s3:::{bucket.format(region=account.settings.region)}/some/file"
    for owner in (None, account.settings.account_id):  # without a signature, and with one
        assert through_s3_endpoint(account, "s3:GetObject", resource, owner)
        assert not through_s3_endpoint(account, "s3:PutObject", resource, owner)


def test_the_buckets_that_the_settings_name_pass_the_gateway_too(pair):
    for bucket in ("our-datasets", "open-images"):
        assert through_s3_endpoint(pair, "s3:ListBucket", f"arn:aws:s3:::{bucket}", None)
        assert through_s3_endpoint(pair, "s3:GetObject", f"arn:aws:s3:::{bucket}/a", None)
    assert not through_s3_endpoint(pair, "s3:GetObject", "arn:aws:s3:::our-datasets-2/a", None)


def test_interface_endpoints_are_for_callers_of_the_account_alone(pair):
    everything = json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
    for service in ("ssm", "ec2", "monitoring", "kms", "sts"):
        verdicts = [
            decide(
                Request("any:Action", "*", f"arn:aws:iam::{owner}:user/u", {"aws:PrincipalAccount": owner}),
                [everything],
                endpoint=pair.endpoint(service),
            )
            for owner in (pair.settings.account_id, "999999999999")
        ]
        assert verdicts == [Verdict.ALLOWED, Verdict.NOT_ALLOWED]


# the sweep


@pytest.mark.parametrize("action", ["ec2:TerminateInstances", "ec2:StopInstances"])
def test_the_sweep_terminates_no_instance_that_has_withdrawn_itself(account, action):
    name = pools(account)[0]
    for tags, expected in (({}, Verdict.ALLOWED), ({"withdrawn": "2026-11-21T12:00:00Z"}, Verdict.DENIED)):
        context = account.tags(name, **tags)
        assert account.verdict("reaper", action, account.instance(SELF), context=context) is expected


@pytest.mark.parametrize("action", ["ec2:CreateTags", "ec2:DeleteTags"])
def test_the_sweep_lifts_no_instance_s_withdrawal(account, action):
    context = account.tags(pools(account)[0]) | {"aws:TagKeys": [WITHDRAWN]}
    assert not account.may("reaper", action, account.instance(SELF), context)


def test_the_sweep_hears_what_instances_say_and_decides(account):
    said = account.bucket("records", f"reaper/handshake/AROAEXAMPLE:{SELF}/20261121T120000Z/decision.json")
    for action in ("s3:GetObject", "s3:PutObject"):
        assert account.may("reaper", action, said)
    assert account.may("reaper", "s3:ListBucket", account.bucket("records"))


@pytest.mark.parametrize("action", ["ec2:TerminateInstances", "ec2:StopInstances"])
def test_the_sweep_terminates_what_its_stack_licenses_and_nothing_else(account, action):
    def may(**tags):
        return account.verdict(
            "reaper", action, account.instance(NEIGHBOUR), context=account.tags("dev", **tags)
        )

    assert may() is Verdict.ALLOWED
    assert may(stack="other") is Verdict.DENIED
    assert may(managed="false") is Verdict.DENIED
    assert may(protected="anything") is Verdict.DENIED
    assert may(protected="") is Verdict.DENIED
    untagged = account.verdict("reaper", action, account.instance(NEIGHBOUR))
    assert untagged is Verdict.DENIED


@pytest.mark.parametrize(
    "tag", ["managed", "stack", "pool", "owner", "protected", "keep-until", "keep-reason", "users"]
)
@pytest.mark.parametrize("action", ["ec2:CreateTags", "ec2:DeleteTags"])
def test_the_sweep_never_widens_its_licence_by_a_tag(account, action, tag):
    context = account.tags("dev") | {"aws:TagKeys": ["gpu-fleet:idle-since", f"gpu-fleet:{tag}"]}

    assert account.verdict("reaper", action, account.instance(SELF), context=context) is Verdict.DENIED


def test_the_sweep_marks_instances_of_its_own_stack_alone(account):
    marks = {"aws:TagKeys": ["gpu-fleet:idle-since", "gpu-fleet:reap-after"]}
    ask = partial(account.may, "reaper", "ec2:CreateTags", account.instance(SELF))

    assert ask(account.tags("dev") | marks)
    assert not ask(account.tags("dev", stack="other") | marks)
    assert not ask(account.tags("dev") | {"aws:TagKeys": ["Name"]})
    assert not ask(account.tags("dev"))


def test_the_sweep_reads_the_webhooks_that_the_settings_name_and_no_other_secret(pair):
    secret = pair.arn("secretsmanager", "secret:rooms/vision-AbCdEf")
    key = {"kms:ViaService": f"secretsmanager.{pair.settings.region}.amazonaws.com"}

    assert pair.may("reaper", "secretsmanager:GetSecretValue", secret)
    assert pair.may("reaper", "kms:Decrypt", pair.key, key)
    for other in ("secret:rooms/vision-more-AbCdEf", "secret:rooms/other-AbCdEf"):
        other_secret = pair.arn("secretsmanager", other)
        assert not pair.may("reaper", "secretsmanager:GetSecretValue", other_secret)
    assert not pair.may("reaper", "secretsmanager:PutSecretValue", secret)


def test_the_sweep_mails_from_the_sender_that_the_settings_name_alone():
    account = account_of(MAILING.name)
    identity = account.arn("ses", "identity/mail.example.com")
    ask = partial(account.may, "reaper", "ses:SendEmail")

    assert ask(identity, {"ses:FromAddress": "fleet@mail.example.com"})
    assert not ask(identity, {"ses:FromAddress": "ceo@mail.example.com"})
    assert not ask(account.arn("ses", "identity/example.com"), {"ses:FromAddress": "fleet@mail.example.com"})


def test_a_sweep_without_notify_sends_no_mail_and_reads_no_secret(pair):
    account = account_of(AWS_STACKS[0])
    identity = pair.arn("ses", "identity/mail.example.com")

    assert not pair.may("reaper", "ses:SendEmail", identity, {"ses:FromAddress": "fleet@mail.example.com"})
    assert not account.may(
        "reaper", "secretsmanager:GetSecretValue", account.arn("secretsmanager", "secret:rooms/vision-AbCdEf")
    )


def test_users_subscribe_to_their_own_notices_alone(pair):
    found = pair.found.of_type("aws:sns/topicSubscription:TopicSubscription")

    filters = {resource.inputs["endpoint"]: resource.inputs.get("filterPolicy") for resource in found}

    # who hears everything already gets no second subscription
    assert filters == {"team@example.com": None, "ada@example.com": '{"user": ["ada", "lovelace"]}'}


def test_where_mail_is_sent_no_recipient_has_to_subscribe():
    found = account_of(MAILING.name).found.of_type("aws:sns/topicSubscription:TopicSubscription")

    assert [resource.inputs["endpoint"] for resource in found] == ["team@example.com"]


def test_the_sweep_takes_instances_out_of_groups_of_its_own_stack_alone(account):
    for name in pools(account):
        ask = partial(account.may, "reaper", "autoscaling:DetachInstances", account.group(name))
        assert ask(account.tags(name))
        assert not ask(account.tags(name, stack="other"))


@pytest.mark.parametrize(
    "action",
    ["ec2:ModifyInstanceAttribute", "ec2:RunInstances", "iam:PassRole", "autoscaling:SetDesiredCapacity"],
)
def test_the_sweep_starts_and_changes_no_instance(account, action):
    assert not account.may("reaper", action, account.instance(SELF), account.tags("dev"))


def test_the_sweep_writes_its_ledger_and_deletes_none_of_it(account):
    ledger = account.bucket("records", "reaper/ledger/2026/11/21/i-1.json")

    assert account.may("reaper", "s3:PutObject", ledger)
    assert account.may("reaper", "s3:GetObject", ledger)
    for action in ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutBucketPolicy"):
        assert not account.may("reaper", action, ledger)


def test_the_sweep_neither_reads_what_users_store_nor_writes_what_instances_boot(account):
    for action in ("s3:GetObject", "s3:PutObject"):
        assert not account.may("reaper", action, account.bucket("data", "dev/keep/i-1/notes.txt"))
        assert not account.may("reaper", action, account.bucket("checkpoints", "dev/run/step-1"))
    assert not account.may("reaper", "s3:PutObject", account.bucket("records", "image/payload/00.tar.gz"))


@pytest.mark.parametrize("action", KEY_ENDS)
def test_the_sweep_neither_ends_nor_lends_the_key(account, action):
    assert not account.may("reaper", action, account.key)


def test_a_freeze_limits_groups_of_training_pools_by_their_largest_size_alone(pair):
    ask = partial(pair.may, "reaper", "autoscaling:UpdateAutoScalingGroup")

    assert ask(pair.group("dev-large"), pair.tags("dev-large") | {"autoscaling:MaxSize": "3"})
    assert not ask(pair.group("dev"), pair.tags("dev") | {"autoscaling:MaxSize": "3"})
    for part in ("MinSize", "LaunchTemplateVersionSpecified", "VPCZoneIdentifiers"):
        changed = pair.tags("dev-large") | {"autoscaling:MaxSize": "3", f"autoscaling:{part}": "1"}
        assert not ask(pair.group("dev-large"), changed)


def test_the_sweep_removes_unprotected_leftovers_of_its_own_stack(pair):
    def may(**tags):
        return pair.may(
            "reaper", "ec2:DeleteVolume", pair.arn("ec2", "volume/vol-1"), pair.tags("dev", **tags)
        )

    assert may()
    assert not may(stack="other")
    assert not may(protected="yes")
    assert not may(protected="")


# who may take the roles


@pytest.mark.parametrize(
    ("role", "service"),
    [("instance", "ec2.amazonaws.com"), ("reaper", "lambda.amazonaws.com")],
)
def test_a_role_is_taken_by_its_service_alone(account, role, service):
    registered = [
        resource
        for resource in account.found.of_type("aws:iam/role:Role")
        if resource.name.endswith(f"-{role}")
    ]
    assert registered
    everything = json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
    for each_resource in registered:
        for principal in (service, "ecs-tasks.amazonaws.com", "arn:aws:iam::999999999999:root"):
            request = Request(
                "sts:AssumeRole", "arn:aws:iam::1:role/r", principal, {"aws:SourceAccount": "123456789012"}
            )
            found = decide(
                request, [everything], [each_resource.inputs["assumeRolePolicy"]], resource_must_allow=True
            )
            assert (found is Verdict.ALLOWED) is (principal == service)


def test_an_alarm_rings_where_a_user_could_not_be_reached_and_a_stack_names_users(pair):
    def watched(found):
        alarms = [resource.inputs for resource in found.of_type("aws:cloudwatch/metricAlarm:MetricAlarm")]
        return [alarm["name"] for alarm in alarms if alarm.get("metricName") == "SweepUsersUnreached"]

    assert watched(pair.found) == [f"gpu-fleet-{pair.settings.name}-reaper-unreached"]
    assert watched(account_of("aws-dev").found) == []

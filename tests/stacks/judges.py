"""Judges of a stack's account: the permissions of its roles, by the registered policies."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from gpu_fleet_image.instance.credentials.alicloud import session_policy
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Stack, stack_files
from tests.stacks import alicloud_examples, iam, ram
from tests.stacks import alicloud_programs as programs
from tests.stacks.conftest import AWS_STACKS
from tests.stacks.examples import pool, stack
from tests.stacks.iam import Request, Verdict
from tests.stacks.registrations import declared, stood

MAY, DENIED = {Verdict.ALLOWED}, {Verdict.DENIED}
MAY_NOT = {Verdict.NOT_ALLOWED, Verdict.DENIED}
SELF, NEIGHBOUR = "i-00000000000000001", "i-00000000000000002"
EVERYTHING = json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})


@dataclass(frozen=True)
class Right:
    """A sentence about a role, and its requests.

    Attributes:
        verdicts: allowed results of each request: ``MAY``, ``MAY_NOT`` or ``DENIED``.
        context: the condition keys of the request.
    """

    role: str
    says: str
    verdicts: set[Verdict]
    actions: Iterable[str]
    resource: str
    context: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Judge:
    """The account of a stack, with its permissions by the registrations; each cloud has its words."""

    settings: Stack
    found: Rehearsed

    @property
    def pools(self) -> list[str]:
        return [pool.name for pool in self.settings.pools]

    def stores(self, *names: str) -> list[str]:
        """Return actions on stored objects."""
        return [f"{self.store}:{name}" for name in names]

    def may(self, role: str, action: str, resource: str, context: dict[str, object] | None = None) -> bool:
        return self.verdict(role, action, resource, context or {}) is Verdict.ALLOWED

    def wrong(self, rights: Iterable[Right]) -> Iterator[str]:
        """Yield each contradiction between a sentence and the policies."""
        for right in rights:
            for action in right.actions:
                verdict = self.verdict(right.role, action, right.resource, right.context)
                if verdict not in right.verdicts:
                    asked = f"{action} on {right.resource} with {right.context}"
                    yield f"{right.role}: {right.says}, but {asked} is {verdict}"

    def identity(self, role: str) -> list[str]:
        """Return the policies of a role, by the end of its name, as ``reaper``; ``people`` are outside."""
        if role == "people":
            return [str(self.found.outputs["people_policy"])]
        token, key = self.policy
        name = f"gpu-fleet-{self.settings.name}-{role}"
        found = [resource.inputs[key] for resource in self.found.of_type(token) if resource.name == name]
        assert found, name
        return found


class AwsJudge(Judge):
    """An account of AWS, judged by ``iam.py``."""

    policy: ClassVar = ("aws:iam/rolePolicy:RolePolicy", "policy")
    store, listing, scaling, refusal = "s3", "ListBucket", "autoscaling", DENIED
    ends: ClassVar = [
        *("ec2:TerminateInstances", "ec2:StopInstances", "ec2:RebootInstances"),
        *("ec2:ModifyInstanceAttribute", "ec2:ModifyInstanceMetadataOptions"),
    ]
    group_changes: ClassVar = [
        *("autoscaling:SetInstanceHealth", "autoscaling:DetachInstances", "autoscaling:EnterStandby"),
        *("autoscaling:SetDesiredCapacity", "autoscaling:SetInstanceProtection"),
        *("autoscaling:TerminateInstanceInAutoScalingGroup", "autoscaling:UpdateAutoScalingGroup"),
        *("autoscaling:SuspendProcesses", "autoscaling:PutLifecycleHook"),
        "autoscaling:DeleteAutoScalingGroup",
    ]
    key_ends: ClassVar = [
        *("kms:ScheduleKeyDeletion", "kms:DisableKey", "kms:PutKeyPolicy", "kms:CreateGrant"),
    ]
    sweeps: ClassVar = ["ec2:TerminateInstances", "ec2:StopInstances"]
    starts: ClassVar = [
        *("ec2:ModifyInstanceAttribute", "ec2:RunInstances", "iam:PassRole"),
        "autoscaling:SetDesiredCapacity",
    ]
    removes: ClassVar = ("ec2:DeleteVolume", "volume/vol-1")
    freezes: ClassVar = [
        *("autoscaling:UpdateAutoScalingGroup", "autoscaling:SuspendProcesses"),
        "autoscaling:ResumeProcesses",
    ]
    most: ClassVar = {"autoscaling:MaxSize": "3"}
    peers: ClassVar = ["ec2:DescribeInstances", "autoscaling:DescribeAutoScalingInstances"]
    of_agents: ClassVar = [
        *("cloudwatch:PutMetricData", "logs:CreateLogStream", "logs:PutLogEvents", "ec2:DescribeTags"),
        *("ssm:UpdateInstanceInformation", "ssmmessages:OpenControlChannel", "ssmmessages:OpenDataChannel"),
        *("ec2:CreateTags", "ec2:DeleteTags", "autoscaling:RecordLifecycleActionHeartbeat"),
        *("autoscaling:CompleteLifecycleAction", "secretsmanager:GetSecretValue"),
    ]

    def role(self, role: str) -> str:
        name = f"gpu-fleet-{self.settings.name}-{role}"
        roles = self.found.of_type("aws:iam/role:Role")
        return next(str(each.outputs["arn"]) for each in roles if each.name == name)

    @property
    def secret(self) -> str:
        return self.arn("secretsmanager", f"secret:gpu-fleet-{self.settings.name}-munge-AbCdEf")

    def arn(self, service: str, rest: str) -> str:
        return f"arn:aws:{service}:{self.settings.region}:{self.settings.account_id}:{rest}"

    def instance(self, key: str) -> str:
        return self.arn("ec2", f"instance/{key}")

    def group(self, pool_name: str) -> str:
        of_pool = {"key": "gpu-fleet:pool", "value": pool_name, "propagateAtLaunch": True}
        groups = self.found.of_type("aws:autoscaling/group:Group")
        name = next(group.outputs["name"] for group in groups if of_pool in group.inputs["tags"])
        return self.arn("autoscaling", f"autoScalingGroup:0a1b:autoScalingGroupName/{name}")

    def bucket(self, kind: str, key: str = "") -> str:
        name = f"gpu-fleet-{self.settings.name}-{kind}-{self.settings.account_id}"
        return f"arn:aws:s3:::{name}" + (f"/{key}" if key else "")

    @property
    def key(self) -> str:
        (key,) = self.found.of_type("aws:kms/key:Key")
        return str(key.outputs["arn"])

    def tags(self, pool_name: str, **more: str) -> dict[str, object]:
        """Return the condition keys of an instance or a group of a pool."""
        tags = {"stack": self.settings.name, "pool": pool_name, "managed": "true"} | more
        prefixes = ("aws:ResourceTag", "ec2:ResourceTag")
        return {f"{prefix}/gpu-fleet:{key}": value for prefix in prefixes for key, value in tags.items()}

    def on(self, key: str, pool_name: str) -> dict[str, object]:
        """Return the condition keys of EC2 for a call of instance ``SELF`` on an instance."""
        asked = {"ec2:SourceInstanceARN": self.instance(SELF), "ec2:InstanceID": key}
        return asked | self.tags(pool_name)

    def endpoint(self, service: str) -> list[str]:
        named = f"com.amazonaws.{self.settings.region}.{service}"
        endpoints = self.found.of_type("aws:ec2/vpcEndpoint:VpcEndpoint")
        return [each.inputs["policy"] for each in endpoints if each.inputs["serviceName"] == named]

    def verdict(self, role: str, action: str, resource: str, context: dict[str, object]) -> Verdict:
        """Judge a call of a role inside the network, by the policies of role, resource and endpoint."""
        common = {
            "aws:PrincipalAccount": self.settings.account_id,
            "aws:SecureTransport": "true",
            "s3:TlsVersion": "1.3",
        }
        principal = f"arn:aws:iam::{self.settings.account_id}:role/gpu-fleet-{self.settings.name}-{role}"
        inside = role not in ("reaper", "capacity", "people")  # functions are in no network of the stack
        return iam.decide(
            Request(action, resource, principal, common | context),
            self.identity(role),
            self.of_resource(resource),
            self.endpoint(action.partition(":")[0]) if inside else [],
            resource_must_allow=resource.startswith("arn:aws:kms:"),
        )

    def of_resource(self, arn: str) -> list[str]:
        """Return the policies of a resource itself."""
        if arn.startswith("arn:aws:kms:"):
            return [key.inputs["policy"] for key in self.found.of_type("aws:kms/key:Key")]
        policies = self.found.of_type("aws:s3/bucketPolicy:BucketPolicy")
        bucket = arn.removeprefix("arn:aws:s3:::").partition("/")[0]
        return [policy.inputs["policy"] for policy in policies if policy.inputs["bucket"] == bucket]

    def lets_through(self, service: str, action: str, resource: str, owner: str | None) -> bool:
        """Return whether an endpoint admits a call that the caller's own account allows."""
        context = {} if owner is None else {"aws:PrincipalAccount": owner}
        request = Request(action, resource, f"arn:aws:iam::{owner or '000000000000'}:user/somebody", context)
        return iam.decide(request, [EVERYTHING], endpoint=self.endpoint(service)) is Verdict.ALLOWED


class AlicloudJudge(Judge):
    """An account of Alibaba Cloud, judged by ``ram.py``."""

    policy: ClassVar = ("alicloud:ram/policy:Policy", "policyDocument")
    store, listing, scaling, refusal = "oss", "ListObjects", "ess", MAY_NOT
    ends: ClassVar = [
        *("ecs:DeleteInstance", "ecs:DeleteInstances", "ecs:StopInstance", "ecs:StopInstances"),
        *("ecs:RebootInstance", "ecs:ModifyInstanceAttribute", "ecs:ModifyInstanceAutoReleaseTime"),
        *("ecs:TagResources", "ecs:UntagResources"),
    ]
    group_changes: ClassVar = [
        *("ess:SetInstanceHealth", "ess:DetachInstances", "ess:RemoveInstances", "ess:EnterStandby"),
        *("ess:ModifyScalingGroup", "ess:SuspendProcesses", "ess:ExecuteScalingRule"),
        *("ess:CreateLifecycleHook", "ess:DeleteScalingGroup"),
    ]
    key_ends: ClassVar = [
        *("kms:ScheduleKeyDeletion", "kms:DisableKey", "kms:SetKeyPolicy", "kms:SetDeletionProtection"),
    ]
    sweeps: ClassVar = ["ecs:DeleteInstances", "ecs:StopInstances"]
    starts: ClassVar = ["ecs:ModifyInstanceAttribute", "ecs:RunInstances", "ram:PassRole"]
    removes: ClassVar = ("ecs:DeleteDisk", "disk/d-1")
    freezes: ClassVar = ["ess:ModifyScalingGroup", "ess:SuspendProcesses", "ess:ResumeProcesses"]
    most: ClassVar = {}
    peers: ClassVar = ["ess:DescribeScalingInstances"]
    of_agents: ClassVar = [
        *("cms:PutCustomMetric", "log:PostLogStoreLogs", "ecs:DescribeInstances", "ecs:DescribeTags"),
        *("ess:CompleteLifecycleAction", "ess:RecordLifecycleActionHeartbeat", "ess:SetInstancesProtection"),
        *("ess:DescribeLifecycleActions", "ecs:ModifyInstanceMetadataOptions", "kms:GetSecretValue"),
    ]
    key = property(lambda self: self.arn("kms", "key/1"))

    def role(self, role: str) -> str:
        return f"acs:ram:*:{self.settings.account_id}:role/gpu-fleet-{self.settings.name}-{role}"

    @property
    def secret(self) -> str:
        return self.arn("kms", f"secret/gpu-fleet-{self.settings.name}-munge")

    def arn(self, service: str, rest: str) -> str:
        return f"acs:{service}:{self.settings.region}:{self.settings.account_id}:{rest}"

    def instance(self, key: str) -> str:
        return self.arn("ecs", f"instance/{key}")

    def group(self, pool_name: str) -> str:
        return self.arn("ess", "scalinggroup/asg-1")

    def bucket(self, kind: str, key: str = "") -> str:
        account = self.settings.account_id
        name = f"gpu-fleet-{self.settings.name}-{kind}-{account}"
        return f"acs:oss:oss-{self.settings.region}:{account}:{name}" + (f"/{key}" if key else "")

    def tags(self, pool_name: str, **more: str) -> dict[str, object]:
        tags = {"stack": self.settings.name, "pool": pool_name, "managed": "true"} | more
        return {f"acs:ResourceTag/gpu-fleet:{key}": value for key, value in tags.items()}

    def on(self, key: str, pool_name: str) -> dict[str, object]:
        return self.tags(pool_name)

    def verdict(self, role: str, action: str, resource: str, context: dict[str, object]) -> Verdict:
        bucket = resource.split(":", ram.SEGMENTS - 1)[-1].partition("/")[0]
        documents = [
            each["policy"] for each in programs.inputs(self.found, "alicloud:oss/bucketPolicy:BucketPolicy")
        ]
        policies = [
            text for text in documents if programs.statements(text)[0]["Resource"][0].endswith(f":{bucket}")
        ]
        assert resource.startswith("acs:oss:") is bool(policies)
        request = Request(action, resource, context={"acs:SecureTransport": "true"} | context)
        verdict = ram.decide(request, self.identity(role), policies)
        account = str(context.get("account", ""))
        if verdict is not Verdict.ALLOWED or not account:
            return verdict
        # of a user's session: as the role, and as its own policy
        records = f"gpu-fleet-{self.settings.name}-records-{self.settings.account_id}"
        return ram.decide(request, [session_policy(account, records)])


PEOPLE = {"people": {"ada": {"uid": 5001}}}
FREEZING = {"recipients": ["team@example.com"], "allow_overcommit": True, "on_exceeded": "freeze"}
# Two pools, the name of one how that of the other begins, and every statement that a setting adds.
AWS_PAIR = stack(
    "aws-pair",
    pools=[pool(), pool(name="dev-large", purpose="training")],
    budget={"monthly": 5000, **FREEZING},
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
ALICLOUD_PAIR = alicloud_examples.stack(
    "alicloud-pair",
    pools=[alicloud_examples.pool(), alicloud_examples.pool(name="dev-large", purpose="training")],
    budget={"monthly": 40000, "currency": "CNY", **FREEZING},
    reaper={"leftovers": {"remove": True}},
    notify={
        "users": {"ada": "ada@example.com"},
        "sender": "fleet@mail.example.com",
        "webhooks": [{"kind": "dingtalk", "secret": "rooms/vision"}],
    },
)
# With a queue, whose key is in a secret.
AWS_QUEUED = stack(
    "aws-queued",
    storage={"home": True},
    access=PEOPLE,
    pools=[pool(), pool(name="dev-large")],
    queue="slurm",
)
ALICLOUD_QUEUED = alicloud_examples.stack(
    "ali-queued",
    storage=programs.STORAGE | {"home": True},
    access=programs.ACCESS,
    pools=[alicloud_examples.pool(), alicloud_examples.pool(name="dev-large")],
    queue="slurm",
)
_STACKS = (AWS_PAIR, MAILING, ALICLOUD_PAIR, AWS_QUEUED, ALICLOUD_QUEUED)
_OWN = {settings.name: settings for settings in _STACKS} | {"everything": programs.EVERYTHING}
AWS_ACCOUNTS = (*AWS_STACKS, AWS_PAIR.name)
ALICLOUD_ACCOUNTS = (*programs.STACKS, "everything", ALICLOUD_PAIR.name)


def judge_of(name: str) -> Judge:
    """Return the account of a shipped stack, or of one above; on AWS its ids are those of moto."""
    settings = _OWN.get(name) or stack_files.settings_of(name)
    of = settings if name in _OWN else name
    if settings.cloud == "alicloud":
        return AlicloudJudge(settings, declared(of))
    return AwsJudge(settings, stood(of))

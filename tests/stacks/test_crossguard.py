"""The rules of the policy pack: each is broken once and refuses with its remedy; shipped stacks pass."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stacks.crossguard import rules
from stacks.crossguard.governance_rules import TAGGED
from stacks.crossguard.model import Profile, Resource, Severity
from stacks.crossguard.rules import RULES, ProfileError, profile_of
from stacks.settings import stack_files
from tests.stacks.examples import stack
from tests.stacks.policy_judge import Violation, violations
from tests.stacks.registrations import declared

PACK = Path(rules.__file__).parent
ANYWHERE = Profile(regions=("*",))
EVERYTHING = json.dumps({"Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]})
ANYBODY = json.dumps(
    {"Statement": [{"Effect": "Allow", "Action": "s3:*", "Principal": "*", "Resource": "b"}]}
)
TLS_OF_ONE = json.dumps(
    {
        "Statement": [
            {
                "Effect": "Deny",
                "Action": "s3:*",
                "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
                "Resource": "*",
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ]
    }
)


@cache
def shipped(name: str) -> tuple[Resource, ...]:
    """Every resource that a shipped stack declares."""
    found = declared(name).registrations
    return tuple(Resource(resource.type, resource.name, resource.inputs) for resource in found)


def broken(found: list[Violation], *, mandatory: bool) -> set[tuple[str, str]]:
    return {
        (refusal.rule.name, refusal.resource.name if refusal.resource else "the stack")
        for refusal in found
        if refusal.mandatory is mandatory
    }


# What it is warned of.
WARNED = {
    "alicloud-prod": {"metadata-tokens-by-image"},
    "local": {"budget-with-recipient"},
}


@pytest.mark.parametrize("name", stack_files.names())
def test_a_shipped_stack_breaks_no_rule_that_refuses(name):
    found = list(violations(shipped(name), profile_of(name)))

    assert broken(found, mandatory=True) == set()
    assert {rule for rule, _ in broken(found, mandatory=False)} <= WARNED.get(name, set())


Bend = Callable[[dict[str, Any]], dict[str, Any]]


def with_(**changes: Any) -> Bend:
    """Inputs with some of them replaced; None takes one away."""
    return lambda inputs: {key: value for key, value in (inputs | changes).items() if value is not None}


def template(**disk: Any) -> Bend:
    """A launch template whose only disk is another."""
    return with_(blockDeviceMappings=[{"deviceName": "/dev/sda1", "ebs": disk}])


AWS, ALICLOUD = "aws-prod", "alicloud-prod"
# rule, what is bent: stack, type, how
BREAKS: list[tuple[str, str, str, Bend]] = [
    (
        "no-public-ingress",
        AWS,
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        with_(cidrIpv4="0.0.0.0/0", referencedSecurityGroupId=None),
    ),
    (
        "no-public-ingress",
        AWS,
        "aws:ec2/securityGroup:SecurityGroup",
        with_(ingress=[{"ipv6CidrBlocks": ["::/0"]}]),
    ),
    (
        "no-public-ingress",
        ALICLOUD,
        "alicloud:ecs/securityGroupRule:SecurityGroupRule",
        with_(type="ingress", cidrIp="0.0.0.0/0", policy="accept"),
    ),
    (
        "no-public-address",
        AWS,
        "aws:ec2/launchTemplate:LaunchTemplate",
        with_(networkInterfaces=[{"deviceIndex": 0, "associatePublicIpAddress": "true"}]),
    ),
    ("no-public-address", AWS, "aws:ec2/subnet:Subnet", with_(mapPublicIpOnLaunch=True)),
    (
        "no-public-address",
        ALICLOUD,
        "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate",
        with_(internetMaxBandwidthOut=5),
    ),
    (
        "no-public-address",
        ALICLOUD,
        "alicloud:ecs/eipAssociation:EipAssociation",
        with_(instanceType="EcsInstance"),
    ),
    (
        "metadata-tokens",
        AWS,
        "aws:ec2/launchTemplate:LaunchTemplate",
        with_(metadataOptions={"httpTokens": "optional"}),
    ),
    ("metadata-tokens", ALICLOUD, "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate", with_(httpTokens=None)),
    ("no-wildcard", AWS, "aws:iam/rolePolicy:RolePolicy", with_(policy=EVERYTHING)),
    (
        "no-wildcard",
        AWS,
        "aws:iam/rolePolicy:RolePolicy",
        with_(policy=EVERYTHING.replace('"*"', '"s3:*"', 1)),
    ),
    ("no-wildcard", ALICLOUD, "alicloud:ram/policy:Policy", with_(policyDocument=EVERYTHING)),
    ("no-anyone", AWS, "aws:iam/role:Role", with_(assumeRolePolicy=ANYBODY)),
    ("no-anyone", ALICLOUD, "alicloud:ram/role:Role", with_(assumeRolePolicyDocument=ANYBODY)),
    (
        "own-key-disks",
        AWS,
        "aws:ec2/launchTemplate:LaunchTemplate",
        template(encrypted="false", kmsKeyId="k"),
    ),
    ("own-key-disks", AWS, "aws:ec2/launchTemplate:LaunchTemplate", template(encrypted="true")),
    (
        "own-key-disks",
        AWS,
        "aws:ec2/launchTemplate:LaunchTemplate",
        template(encrypted="true", kmsKeyId="alias/aws/ebs"),
    ),
    (
        "own-key-disks",
        ALICLOUD,
        "alicloud:ess/scalingConfiguration:ScalingConfiguration",
        with_(dataDisks=[{"size": 100, "encrypted": True}]),
    ),
    (
        "own-key-disks",
        ALICLOUD,
        "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate",
        with_(systemDisk={"encrypted": False}),
    ),
    (
        "own-key-buckets",
        AWS,
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        with_(rules=[{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}]),
    ),
    ("own-key-buckets", ALICLOUD, "alicloud:oss/bucket:Bucket", with_(serverSideEncryptionRule=None)),
    ("own-key-topics", AWS, "aws:sns/topic:Topic", with_(kmsMasterKeyId="alias/aws/sns")),
    ("own-key-queues", AWS, "aws:sqs/queue:Queue", with_(kmsMasterKeyId=None)),
    ("own-key-logs", AWS, "aws:cloudwatch/logGroup:LogGroup", with_(kmsKeyId=None)),
    ("own-key-logs", ALICLOUD, "alicloud:log/store:Store", with_(encryptConf={"enable": True})),
    ("own-key-file-systems", AWS, "aws:efs/fileSystem:FileSystem", with_(kmsKeyId=None)),
    ("own-key-file-systems", ALICLOUD, "alicloud:nas/fileSystem:FileSystem", with_(kmsKeyId=None)),
    ("key-rotation", AWS, "aws:kms/key:Key", with_(enableKeyRotation=False)),
    ("key-rotation", AWS, "aws:kms/key:Key", with_(rotationPeriodInDays=91)),
    ("key-rotation", ALICLOUD, "alicloud:kms/key:Key", with_(automaticRotation="Disabled")),
    ("key-rotation", ALICLOUD, "alicloud:kms/key:Key", with_(rotationInterval="31536000s")),
    ("tls-only", AWS, "aws:s3/bucketPolicy:BucketPolicy", with_(policy=json.dumps({"Statement": []}))),
    ("tls-only", AWS, "aws:s3/bucketPolicy:BucketPolicy", with_(policy=TLS_OF_ONE)),
    ("tls-only", AWS, "aws:sns/topicPolicy:TopicPolicy", with_(policy=json.dumps({"Statement": []}))),
    ("tls-only", AWS, "aws:efs/fileSystemPolicy:FileSystemPolicy", with_(policy=None)),
    ("tls-only", ALICLOUD, "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig", with_(enable=False)),
    (
        "tls-only",
        ALICLOUD,
        "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig",
        with_(tlsVersions=["TLSv1.1"]),
    ),
    ("required-tags", AWS, "aws:s3/bucket:Bucket", with_(tags={"gpu-fleet:stack": "aws-prod"})),
    ("required-tags", AWS, "aws:autoscaling/group:Group", with_(tags=[])),
    ("required-tags", ALICLOUD, "alicloud:ess/scalingGroup:ScalingGroup", with_(tags=None)),
    ("budget-with-recipient", AWS, "aws:budgets/budget:Budget", with_(notifications=[])),
    ("budget-with-recipient", ALICLOUD, "alicloud:cms/alarmContact:AlarmContact", with_(channelsMail=None)),
    ("budget-with-recipient", ALICLOUD, "alicloud:cms/alarm:Alarm", with_(metric="CpuUtilization")),
    ("reaper-for-every-pool", AWS, "aws:scheduler/schedule:Schedule", with_(state="DISABLED")),
    (
        "reaper-for-every-pool",
        ALICLOUD,
        "alicloud:fc/v3Trigger:V3Trigger",
        with_(triggerConfig='{"enable": false}'),
    ),
    ("reaper-for-every-pool", ALICLOUD, "alicloud:ess/scalingGroup:ScalingGroup", with_(tags={})),
    ("allowed-regions", AWS, "pulumi:providers:aws", with_(region="mars-north-1")),
    ("allowed-regions", ALICLOUD, "pulumi:providers:alicloud", with_(region=None)),
]


@cache
def findings(stack: str) -> frozenset[str]:
    """What the rules say of a shipped stack as it is."""
    return frozenset(str(violation) for violation in violations(shipped(stack), profile_of(stack)))


def refusals_of(rule: str, stack: str, kind: str, bend: Bend) -> list[Violation]:
    """What a rule says of a stack whose resources of a kind are bent, and does not say of the sound one."""
    sound = shipped(stack)
    bent = [
        Resource(resource.type, resource.name, bend(dict(resource.inputs)))
        if resource.type == kind
        else resource
        for resource in sound
    ]
    assert kind in {resource.type for resource in sound}
    return [
        violation
        for violation in violations(bent, profile_of(stack))
        if violation.rule.name == rule and str(violation) not in findings(stack)
    ]


def refuses_with_the_remedy(rule: str, refusals: list[Violation]) -> bool:
    return bool(refusals) and all(
        refusal.mandatory and refusal.rule.remedy in str(refusal) and rule in str(refusal)
        for refusal in refusals
    )


def test_a_stack_that_breaks_a_rule_is_refused_with_the_remedy():
    found = [(number, row, refusals_of(*row)) for number, row in enumerate(BREAKS)]

    assert [
        f"row {number}, {rule}, {stack}, {kind}: {[*map(str, refusals)]}"
        for number, (rule, stack, kind, _), refusals in found
        if not refuses_with_the_remedy(rule, refusals)
    ] == []


def test_every_rule_that_may_refuse_is_broken_once_above():
    assert {broken[0] for broken in BREAKS} == {rule.name for rule in RULES if not rule.advisory}


# rule that may only warn, and the shipped stack that it warns of
ADVISED = [("metadata-tokens-by-image", "alicloud-prod")]


@pytest.mark.parametrize(("rule", "stack"), ADVISED)
def test_a_rule_that_may_only_warn_says_so_with_the_remedy(rule, stack):
    advisories = [
        violation
        for violation in violations(shipped(stack), profile_of(stack))
        if violation.rule.name == rule
    ]

    assert advisories
    assert all(not refusal.mandatory and refusal.rule.remedy in str(refusal) for refusal in advisories)


def test_every_rule_is_broken_once_or_warns_once():
    assert {broken[0] for broken in (*BREAKS, *ADVISED)} == {rule.name for rule in RULES}


def test_a_rule_says_why_how_bad_and_what_to_do():
    assert [
        rule.name
        for rule in RULES
        if min(len(rule.reason), len(rule.remedy)) <= 20
        or rule.severity not in Severity
        or (rule.each is None) == (rule.whole is None)
    ] == []


def test_names_are_unique():
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_a_missing_budget_is_the_stacks_own_fault():
    without = [resource for resource in shipped(AWS) if resource.type != "aws:budgets/budget:Budget"]

    (found,) = [
        violation
        for violation in violations(without, profile_of(AWS))
        if violation.rule.name == "budget-with-recipient"
    ]

    assert str(found).startswith(
        "budget-with-recipient (high): the stack: has no budget; name budget.monthly"
    )


def test_an_allowance_bound_by_a_condition_is_not_to_anybody():
    bound = json.loads(ANYBODY)
    bound["Statement"][0]["Condition"] = {"StringEquals": {"aws:PrincipalAccount": "123456789012"}}

    def found(document: str) -> list[str]:
        policy = Resource("aws:s3/bucketPolicy:BucketPolicy", "b", {"policy": document})
        return [violation.rule.name for violation in violations([policy], ANYWHERE)]

    assert "no-anyone" in found(ANYBODY)
    assert "no-anyone" not in found(json.dumps(bound))


@pytest.mark.parametrize(
    ("profile", "region", "allowed"),
    [
        ("gdpr", "eu-central-1", True),
        ("gdpr", "us-east-1", False),
        ("hipaa", "us-east-1", True),
        ("hipaa", "us-gov-west-1", False),
        ("hipaa", "eu-west-1", False),
    ],
)
def test_a_profile_keeps_a_stack_where_its_law_wants_it(tmp_path, profile, region, allowed):
    file = tmp_path / "profiles.toml"
    file.write_text((PACK / "profiles.toml").read_text() + f'\n[stacks.clinic]\nprofile = "{profile}"\n')
    provider = Resource("pulumi:providers:aws", "provider", {"region": region})

    found = [violation.rule.name for violation in violations([provider], profile_of("clinic", file))]

    assert ("allowed-regions" not in found) is allowed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('profile = "gpdr"', r"stacks\.clinic\.profile = 'gpdr': there are default, gdpr, hipaa"),
        (
            'advisory = ["tls"]',
            r"stacks\.clinic\.advisory names 'tls': there are allowed-regions, .*tls-only",
        ),
    ],
)
def test_a_profile_that_names_what_is_not_there_is_refused(tmp_path, line, message):
    file = tmp_path / "profiles.toml"
    file.write_text((PACK / "profiles.toml").read_text() + f"\n[stacks.clinic]\n{line}\n")

    with pytest.raises(ProfileError, match=message):
        profile_of("clinic", file)


def test_every_type_that_a_rule_wants_tagged_is_tagged_in_some_stack():
    with_lustre = declared(stack(storage={"scratch_gib": 1200})).resources
    tagged = {resource.type for name in stack_files.names() for resource in shipped(name) if resource.tags()}
    tagged |= {resource.type for resource in with_lustre if resource.inputs.get("tags")}

    assert TAGGED - tagged == set()


class NotYetError(Exception):
    """What the SDK raises for a value that a preview cannot know."""


class Proxy(Mapping[str, Any]):
    """A mapping of the SDK: it says which keys there are, and raises for a value that is not known yet."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        if self._values[key] is NotYetError:
            raise NotYetError
        return self._values[key]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self):
        return iter(self._values)


@pytest.fixture
def crossguard(monkeypatch) -> SimpleNamespace:
    """The policy SDK's names, and what a pack was made of; the SDK itself wants an environment of its own."""
    levels = Enum("EnforcementLevel", {"MANDATORY": "mandatory", "ADVISORY": "advisory"})
    kinds = {kind: lambda kind=kind, **kept: SimpleNamespace(kind=kind, **kept) for kind in ("each", "whole")}
    made: list[Any] = []
    sdk = SimpleNamespace(
        EnforcementLevel=levels,
        Severity=Severity,
        PolicyPack=lambda name, policies: made.extend(policies),
        ResourceValidationPolicy=kinds["each"],
        StackValidationPolicy=kinds["whole"],
        ReportViolation=object,
        ResourceValidationArgs=object,
        StackValidationArgs=object,
        made=made,
    )
    monkeypatch.setitem(sys.modules, "pulumi_policy", sdk)
    monkeypatch.delitem(sys.modules, "stacks.crossguard.pack", raising=False)
    monkeypatch.setitem(sys.modules, "pulumi_policy.proxy", SimpleNamespace(UnknownValueError=NotYetError))
    return sdk


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stacks.crossguard", *arguments],
        cwd=PACK.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_the_pack_explains_itself_without_its_sdk(flag):
    done = started(flag)

    assert (done.returncode, done.stderr) == (0, "")
    assert "gpu-fleet preview STACK" in done.stdout
    assert all(f"  {rule.name}: " in done.stdout for rule in RULES)


def test_the_pack_started_by_hand_says_who_starts_it():
    done = started()

    assert done.returncode == 1
    assert done.stderr == (
        "error: pulumi_policy is not installed here: the Pulumi CLI starts this pack; see --help\n"
    )


def test_the_pack_offers_every_rule_at_the_level_of_the_stack(crossguard, monkeypatch):
    monkeypatch.setenv("PULUMI_STACK", "local")
    runpy.run_path(str(PACK), run_name="__main__")

    offered = {resource.name: resource for resource in crossguard.made}
    assert set(offered) == {rule.name for rule in RULES}
    assert offered["budget-with-recipient"].enforcement_level is crossguard.EnforcementLevel.ADVISORY
    assert offered["no-wildcard"].enforcement_level is crossguard.EnforcementLevel.MANDATORY
    assert offered["no-wildcard"].severity is Severity.CRITICAL


def test_the_pack_reports_a_resource_and_a_stack_to_the_engine(crossguard, monkeypatch):
    monkeypatch.setenv("PULUMI_STACK", "aws-prod")
    runpy.run_path(str(PACK), run_name="__main__")
    offered = {resource.name: resource for resource in crossguard.made}
    said: list[tuple[str, ...]] = []
    key = SimpleNamespace(resource_type="aws:kms/key:Key", name="key", props={"enableKeyRotation": False})
    bare = SimpleNamespace(resource_type="pulumi:providers:aws", name="p", props={}, urn="urn:provider")

    offered["key-rotation"].validate(key, lambda *words: said.append(words))
    offered["allowed-regions"].validate(SimpleNamespace(resources=[bare]), lambda *words: said.append(words))

    assert said[0][0].startswith("never rotates (enableKeyRotation); let it rotate at least every 90 days")
    assert said[1] == (f"names no region; {offered['allowed-regions'].remediation_steps}", "urn:provider")


def test_what_a_preview_cannot_know_counts_as_there(crossguard, monkeypatch):
    monkeypatch.setenv("PULUMI_STACK", "aws-prod")
    runpy.run_path(str(PACK), run_name="__main__")
    offered = {resource.name: resource for resource in crossguard.made}
    key = Proxy({"applyServerSideEncryptionByDefault": Proxy({"kmsMasterKeyId": NotYetError})})
    resources = [
        SimpleNamespace(resource_type=kind, name="data", props=Proxy(props), urn=f"urn:{kind}")
        for kind, props in {
            "aws:s3/bucket:Bucket": {"bucket": "data"},
            "aws:s3/bucketPolicy:BucketPolicy": {"policy": NotYetError},
            "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": {
                "rules": (key,)
            },
        }.items()
    ]
    said: list[tuple[str, ...]] = []

    for rule in ("own-key-buckets", "tls-only"):
        offered[rule].validate(SimpleNamespace(resources=resources), lambda *words: said.append(words))
        offered[rule].validate(SimpleNamespace(resources=resources[:1]), lambda *words: said.append(words))

    assert [finding.split(";")[0] for finding, _ in said] == [
        "no customer key encrypts what is put into it",
        "no policy of it refuses requests without TLS",
    ]

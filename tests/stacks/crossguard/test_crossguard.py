"""The rules of the policy pack: each refuses one violation with its remedy; shipped stacks pass."""

import json
import runpy
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_fleet_stacks.crossguard import rules
from gpu_fleet_stacks.crossguard.governance_rules import TAGGED
from gpu_fleet_stacks.crossguard.model import Profile, Resource, Severity
from gpu_fleet_stacks.crossguard.rules import RULES, ProfileError, profile_of
from tests.ran import ran
from tests.stacks.examples import stack
from tests.stacks.policy_judge import Violation, violations
from tests.stacks.registrations import declared
from tests.stacks.shipped import SHIPPED

PACK = Path(rules.__file__).parent
ANYWHERE = Profile(regions=("*",))


def policy_of(**statement: Any) -> str:
    return json.dumps({"Statement": [statement]})


EVERYTHING = policy_of(Effect="Allow", Action="*", Resource="*")
ANYBODY = policy_of(Effect="Allow", Action="s3:*", Principal="*", Resource="b")
TLS_OF_ONE = policy_of(
    Effect="Deny",
    Action="s3:*",
    Principal={"AWS": "arn:aws:iam::123456789012:root"},
    Resource="*",
    Condition={"Bool": {"aws:SecureTransport": "false"}},
)


@cache
def shipped(name: str) -> tuple[Resource, ...]:
    """Return every resource that a shipped stack declares."""
    found = declared(name).registrations
    return tuple(Resource(resource.type, resource.name, resource.inputs) for resource in found)


def broken_by(kind: str, inputs: dict[str, Any], profile: Profile = ANYWHERE) -> set[str]:
    """Return the rules that one resource breaks."""
    return {violation.rule.name for violation in violations([Resource(kind, "own", inputs)], profile)}


# What it is warned of.
WARNED = {"alicloud-prod": {"metadata-tokens-by-image"}, "local": {"budget-with-recipient"}}


def test_a_shipped_stack_breaks_no_rule_that_refuses():
    found = [(name, each) for name in SHIPPED for each in violations(shipped(name), profile_of(name))]

    assert [
        f"{name}: {each}"
        for name, each in found
        if each.mandatory or each.rule.name not in WARNED.get(name, set())
    ] == []


Bend = Callable[[dict[str, Any]], dict[str, Any]]


def with_(**changes: Any) -> Bend:
    """Return a change that replaces some inputs; None removes one."""
    return lambda inputs: {key: value for key, value in (inputs | changes).items() if value is not None}


def template(**disk: Any) -> Bend:
    """Return a change of a launch template's only disk."""
    return with_(blockDeviceMappings=[{"deviceName": "/dev/sda1", "ebs": disk}])


AWS, ALICLOUD = "aws-prod", "alicloud-prod"
TEMPLATE, ECS_TEMPLATE = "aws:ec2/launchTemplate", "alicloud:ecs/ecsLaunchTemplate"
PUBLIC = [{"deviceIndex": 0, "associatePublicIpAddress": "true"}]
AES = [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}}]
NOTHING = json.dumps({"Statement": []})
# rule -> what is bent: a type, how
BREAKS: dict[str, list[tuple[str, Bend]]] = {
    "no-public-ingress": [
        ("aws:vpc/securityGroupIngressRule", with_(cidrIpv4="0.0.0.0/0", referencedSecurityGroupId=None)),
        ("aws:ec2/securityGroup", with_(ingress=[{"ipv6CidrBlocks": ["::/0"]}])),
        ("alicloud:ecs/securityGroupRule", with_(type="ingress", cidrIp="0.0.0.0/0", policy="accept")),
    ],
    "no-public-address": [
        (TEMPLATE, with_(networkInterfaces=PUBLIC)),
        ("aws:ec2/subnet", with_(mapPublicIpOnLaunch=True)),
        (ECS_TEMPLATE, with_(internetMaxBandwidthOut=5)),
        ("alicloud:ecs/eipAssociation", with_(instanceType="EcsInstance")),
    ],
    "metadata-tokens": [
        (TEMPLATE, with_(metadataOptions={"httpTokens": "optional"})),
        (ECS_TEMPLATE, with_(httpTokens=None)),
    ],
    "no-wildcard": [
        ("aws:iam/rolePolicy", with_(policy=EVERYTHING)),
        ("aws:iam/rolePolicy", with_(policy=EVERYTHING.replace('"*"', '"s3:*"', 1))),
        ("alicloud:ram/policy", with_(policyDocument=EVERYTHING)),
    ],
    "no-anyone": [
        ("aws:iam/role", with_(assumeRolePolicy=ANYBODY)),
        ("alicloud:ram/role", with_(assumeRolePolicyDocument=ANYBODY)),
    ],
    "own-key-disks": [
        (TEMPLATE, template(encrypted="false", kmsKeyId="k")),
        (TEMPLATE, template(encrypted="true")),
        (TEMPLATE, template(encrypted="true", kmsKeyId="alias/aws/ebs")),
        ("alicloud:ess/scalingConfiguration", with_(dataDisks=[{"size": 100, "encrypted": True}])),
        (ECS_TEMPLATE, with_(systemDisk={"encrypted": False})),
    ],
    "own-key-buckets": [
        ("aws:s3/bucketServerSideEncryptionConfiguration", with_(rules=AES)),
        ("alicloud:oss/bucket", with_(serverSideEncryptionRule=None)),
    ],
    "own-key-topics": [("aws:sns/topic", with_(kmsMasterKeyId="alias/aws/sns"))],
    "own-key-queues": [("aws:sqs/queue", with_(kmsMasterKeyId=None))],
    "own-key-logs": [
        ("aws:cloudwatch/logGroup", with_(kmsKeyId=None)),
        ("alicloud:log/store", with_(encryptConf={"enable": True})),
    ],
    "own-key-file-systems": [
        ("aws:efs/fileSystem", with_(kmsKeyId=None)),
        ("alicloud:nas/fileSystem", with_(kmsKeyId=None)),
    ],
    "key-rotation": [
        ("aws:kms/key", with_(enableKeyRotation=False)),
        ("aws:kms/key", with_(rotationPeriodInDays=91)),
        ("alicloud:kms/key", with_(automaticRotation="Disabled")),
        ("alicloud:kms/key", with_(rotationInterval="31536000s")),
    ],
    "tls-only": [
        ("aws:s3/bucketPolicy", with_(policy=NOTHING)),
        ("aws:s3/bucketPolicy", with_(policy=TLS_OF_ONE)),
        ("aws:sns/topicPolicy", with_(policy=NOTHING)),
        ("aws:efs/fileSystemPolicy", with_(policy=None)),
        ("alicloud:oss/bucketHttpsConfig", with_(enable=False)),
        ("alicloud:oss/bucketHttpsConfig", with_(tlsVersions=["TLSv1.1"])),
    ],
    "required-tags": [
        ("aws:s3/bucket", with_(tags={"gpu-fleet:stack": "aws-prod"})),
        ("aws:autoscaling/group", with_(tags=[])),
        ("alicloud:ess/scalingGroup", with_(tags=None)),
    ],
    "budget-with-recipient": [
        ("aws:budgets/budget", with_(notifications=[])),
        ("alicloud:cms/alarmContact", with_(channelsMail=None)),
        ("alicloud:cms/alarm", with_(metric="CpuUtilization")),
    ],
    "reaper-for-every-pool": [
        ("aws:scheduler/schedule", with_(state="DISABLED")),
        ("alicloud:fc/v3Trigger", with_(triggerConfig='{"enable": false}')),
        ("alicloud:ess/scalingGroup", with_(tags={})),
    ],
    "allowed-regions": [
        ("pulumi:providers:aws", with_(region="mars-north-1")),
        ("pulumi:providers:alicloud", with_(region=None)),
    ],
}


def said_by(rule: str, stack: str, resources: Iterable[Resource] | None = None) -> list[Violation]:
    """Return the violations of a rule by some resources of a stack, or by the shipped stack."""
    found = violations(tuple(resources or shipped(stack)), profile_of(stack))
    return [violation for violation in found if violation.rule.name == rule]


def is_of(made: Resource, kind: str) -> bool:
    return f"{made.type}:".startswith(f"{kind}:")


def refuses(rule: str, kind: str, bend: Bend) -> bool:
    """Return whether a rule refuses changed resources of a kind, and names the remedy."""
    stack = ALICLOUD if "alicloud" in kind else AWS
    bent = [
        Resource(made.type, made.name, bend(dict(made.inputs))) if is_of(made, kind) else made
        for made in shipped(stack)
    ]
    sound = {str(violation) for violation in said_by(rule, stack)}
    new = [violation for violation in said_by(rule, stack, bent) if str(violation) not in sound]
    return bool(new) and all(each.mandatory and each.rule.remedy in str(each) for each in new)


def test_a_stack_that_breaks_a_rule_is_refused_with_the_remedy():
    rows = [(rule, number, *row) for rule, rows in BREAKS.items() for number, row in enumerate(rows)]

    assert [row[:3] for row in rows if not refuses(row[0], *row[2:])] == []


# What only a program beside gpu-fleet's declares.
FROM_ANYWHERE = {"type": "ingress", "cidrBlocks": ["0.0.0.0/0"]}
ALL_BUT_IAM = policy_of(Effect="Allow", NotAction="iam:*", Resource="*")
OWN = [
    ("no-public-ingress", "aws:ec2/securityGroupRule:SecurityGroupRule", FROM_ANYWHERE),
    ("no-public-address", "aws:ec2/instance:Instance", {"associatePublicIpAddress": True}),
    ("no-public-address", "aws:ec2/eip:Eip", {"instance": "i-0123456789abcdef0"}),
    ("own-key-disks", "aws:ebs/volume:Volume", {"encrypted": True}),
    ("no-wildcard", "aws:iam/rolePolicy:RolePolicy", {"policy": ALL_BUT_IAM}),
]


def test_a_resource_of_a_users_own_breaks_the_same_rules():
    assert [(rule, kind) for rule, kind, inputs in OWN if rule not in broken_by(kind, inputs)] == []


# The rule that may only warn, and the shipped stack that it warns of.
ADVISORY = ("metadata-tokens-by-image", ALICLOUD)


def test_a_rule_that_may_only_warn_says_so_with_the_remedy():
    found = said_by(*ADVISORY)

    assert found
    assert all(not each.mandatory and each.rule.remedy in str(each) for each in found)


def test_every_rule_is_broken_above_and_has_a_name_of_its_own_a_reason_and_a_remedy():
    assert sorted([*BREAKS, ADVISORY[0]]) == sorted(rule.name for rule in RULES)
    assert [rule.name for rule in RULES if min(len(rule.reason), len(rule.remedy)) <= 20] == []


def test_a_missing_budget_is_the_stacks_own_fault():
    without = [resource for resource in shipped(AWS) if resource.type != "aws:budgets/budget:Budget"]

    (found,) = said_by("budget-with-recipient", AWS, without)

    said = "budget-with-recipient (high): the stack: has no budget; name budget.monthly"
    assert str(found).startswith(said)


def test_an_allowance_bound_by_a_condition_is_not_to_anybody():
    bound = json.loads(ANYBODY)
    bound["Statement"][0]["Condition"] = {"StringEquals": {"aws:PrincipalAccount": "123456789012"}}
    kind = "aws:s3/bucketPolicy:BucketPolicy"

    assert "no-anyone" in broken_by(kind, {"policy": ANYBODY})
    assert "no-anyone" not in broken_by(kind, {"policy": json.dumps(bound)})


@pytest.fixture
def clinic(tmp_path) -> Callable[[str], Profile]:
    """Return a function to the profile of a stack with this line in profiles.toml."""

    def profile(line: str) -> Profile:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.toml"
        file.write_text((PACK / "profiles.toml").read_text() + f"\n[stacks.clinic]\n{line}\n")
        return profile_of("clinic", file)

    return profile


def test_a_profile_keeps_a_stack_where_its_law_wants_it(clinic):
    for name, region, allowed in (
        ("gdpr", "eu-central-1", True),
        ("hipaa", "us-east-1", True),
        ("gdpr", "us-east-1", False),
        ("hipaa", "us-gov-west-1", False),
        ("hipaa", "eu-west-1", False),
    ):
        broken = broken_by("pulumi:providers:aws", {"region": region}, clinic(f'profile = "{name}"'))
        assert ("allowed-regions" not in broken) is allowed, (name, region)


def test_a_profile_that_names_what_is_not_there_is_refused(clinic):
    for line, says in {
        'profile = "gpdr"': r"stacks\.clinic\.profile = 'gpdr': there are default, gdpr, hipaa",
        'advisory = ["tls"]': r"stacks\.clinic\.advisory names 'tls': there are .*tls-only",
    }.items():
        with pytest.raises(ProfileError, match=says):
            clinic(line)


def test_every_type_that_a_rule_wants_tagged_is_tagged_in_some_stack():
    with_lustre = declared(stack(storage={"scratch_gib": 1200})).resources
    tagged = {resource.type for name in SHIPPED for resource in shipped(name) if resource.tags()}
    tagged |= {resource.type for resource in with_lustre if resource.inputs.get("tags")}

    assert TAGGED - tagged == set()


class NotYetError(Exception):
    """Error of the SDK for a value that a preview cannot know."""


class Proxy(dict[str, Any]):
    """A mapping of the SDK: it has all keys, and raises for a value that is not known yet."""

    def __getitem__(self, key: str) -> Any:
        if super().__getitem__(key) is NotYetError:
            raise NotYetError
        return super().__getitem__(key)


@pytest.fixture
def offered(monkeypatch) -> Callable[[str], dict[str, SimpleNamespace]]:
    """Return a function to the pack's policies for a stack by name, with a fake of the SDK."""
    made: list[SimpleNamespace] = []
    plain = ("ResourceValidationPolicy", "StackValidationPolicy")
    typing = ("ReportViolation", "ResourceValidationArgs", "StackValidationArgs")
    sdk = SimpleNamespace(
        EnforcementLevel=Enum("EnforcementLevel", {"MANDATORY": "mandatory", "ADVISORY": "advisory"}),
        Severity=Severity,
        PolicyPack=lambda name, policies: made.extend(policies),
        **dict.fromkeys(plain, SimpleNamespace),
        **dict.fromkeys(typing, object),
    )
    monkeypatch.setitem(sys.modules, "pulumi_policy", sdk)
    proxy = SimpleNamespace(UnknownValueError=NotYetError)
    monkeypatch.setitem(sys.modules, "pulumi_policy.proxy", proxy)
    monkeypatch.delitem(sys.modules, "gpu_fleet_stacks.crossguard.pack", raising=False)

    def policies_of(stack: str) -> dict[str, SimpleNamespace]:
        monkeypatch.setenv("PULUMI_STACK", stack)
        runpy.run_path(str(PACK), run_name="__main__")
        return {policy.name: policy for policy in made}

    return policies_of


def test_the_pack_explains_itself_without_its_sdk_and_says_who_starts_it():
    command = [sys.executable, "-m", "gpu_fleet_stacks.crossguard"]
    explained, by_hand = (ran([*command, *flags], cwd=PACK.parents[1]) for flags in (["--help"], []))

    assert (explained.returncode, explained.stderr) == (0, "")
    assert "gpu-fleet preview STACK" in explained.stdout
    assert all(f"  {rule.name}: " in explained.stdout for rule in RULES)
    missing = "error: pulumi_policy is not installed here: the Pulumi CLI starts this pack; see --help\n"
    assert (by_hand.returncode, by_hand.stderr) == (1, missing)


def test_the_pack_offers_every_rule_at_the_level_of_the_stack(offered):
    policies = offered("local")
    wildcard = policies["no-wildcard"]

    assert set(policies) == {rule.name for rule in RULES}
    assert policies["budget-with-recipient"].enforcement_level.value == "advisory"
    assert (wildcard.enforcement_level.value, wildcard.severity) == ("mandatory", Severity.CRITICAL)


def test_the_pack_reports_a_resource_and_a_stack_to_the_engine(offered):
    policies = offered(AWS)
    said: list[tuple[str, ...]] = []
    key = SimpleNamespace(resource_type="aws:kms/key:Key", name="key", props={"enableKeyRotation": False})
    bare = SimpleNamespace(resource_type="pulumi:providers:aws", name="p", props={}, urn="urn:provider")

    policies["key-rotation"].validate(key, lambda *words: said.append(words))
    policies["allowed-regions"].validate(SimpleNamespace(resources=[bare]), lambda *words: said.append(words))

    assert said[0][0].startswith("never rotates (enableKeyRotation); let it rotate at least every 90 days")
    assert said[1] == (f"names no region; {policies['allowed-regions'].remediation_steps}", "urn:provider")


def test_what_a_preview_cannot_know_counts_as_there(offered):
    policies = offered(AWS)
    key = Proxy(applyServerSideEncryptionByDefault=Proxy(kmsMasterKeyId=NotYetError))
    encryption = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    resources = [
        SimpleNamespace(resource_type=kind, name="data", props=Proxy(props), urn=f"urn:{kind}")
        for kind, props in {
            "aws:s3/bucket:Bucket": {"bucket": "data"},
            "aws:s3/bucketPolicy:BucketPolicy": {"policy": NotYetError},
            encryption: {"rules": (key,)},
        }.items()
    ]
    said: list[tuple[str, ...]] = []

    for rule in ("own-key-buckets", "tls-only"):
        for declared_ones in (resources, resources[:1]):
            found = SimpleNamespace(resources=declared_ones)
            policies[rule].validate(found, lambda *words: said.append(words))

    assert [finding.split(";")[0] for finding, _ in said] == [
        "no customer key encrypts its objects",
        "none of its policies refuses requests without TLS",
    ]

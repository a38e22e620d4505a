"""Rules for data: encrypted by the stack's own key, with key rotation, and served over TLS only."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_fleet_stacks.crossguard.model import (
    UNKNOWN,
    Finding,
    PolicyRule,
    Profile,
    Resource,
    Severity,
    is_on,
    items,
    statements,
)

LONGEST_ROTATION_DAYS = 90
DAY_S = 86_400
OLD_TLS = frozenset({"TLSv1", "TLSv1.0", "TLSv1.1"})
USE_STACK_KEY = "give it the stack's own key (stacks/*/keys.py)"

# type -> the input that names its key, for resources that are encrypted as a whole
KEY_INPUTS = {
    "topic": {"aws:sns/topic:Topic": "kmsMasterKeyId"},
    "queue": {"aws:sqs/queue:Queue": "kmsMasterKeyId"},
    "log": {"aws:cloudwatch/logGroup:LogGroup": "kmsKeyId"},
    "file system": {
        "aws:efs/fileSystem:FileSystem": "kmsKeyId",
        "aws:fsx/lustreFileSystem:LustreFileSystem": "kmsKeyId",
        "alicloud:nas/fileSystem:FileSystem": "kmsKeyId",
    },
}


def of_customer(key: Any) -> bool:
    """Return whether a key is the customer's; ``alias/aws/...`` and ``alias/acs/...`` are the cloud's."""
    text = str(key or "")
    return bool(text) and "alias/aws/" not in text and "alias/acs/" not in text


def topics(resource: Resource) -> Iterator[Finding]:
    """Require the customer key for topics: alarms show what runs."""
    yield from _whole(resource, "topic")


def queues(resource: Resource) -> Iterator[Finding]:
    """Require the customer key for queues: failed events carry instance ids and tags."""
    yield from _whole(resource, "queue")


def logs(resource: Resource) -> Iterator[Finding]:
    """Require the customer key for log stores: they show connections and the commands of users."""
    yield from _whole(resource, "log")
    if resource.type == "alicloud:log/store:Store":
        settings = resource.inputs.get("encryptConf") or {}
        own = (settings.get("userCmkInfo") or {}).get("cmkKeyId")
        if not (is_on(settings.get("enable")) and of_customer(own)):
            yield "no customer key encrypts it (encryptConf.userCmkInfo)"


def file_systems(resource: Resource) -> Iterator[Finding]:
    """Require the customer key for file systems of homes and scratch."""
    yield from _whole(resource, "file system")


def _whole(resource: Resource, kind: str) -> Iterator[Finding]:
    name = KEY_INPUTS[kind].get(resource.type)
    if name is not None and not of_customer(resource.inputs.get(name)):
        yield f"no customer key encrypts it ({name} = {resource.inputs.get(name)!r})"


def disks(resource: Resource) -> Iterator[Finding]:
    """Require the customer key for every disk of an instance or a template."""
    for where, encrypted, key in _disks(resource):
        if not (is_on(encrypted) and of_customer(key)):
            yield f"{where} is not encrypted with a customer key (encrypted = {encrypted!r}, key {key!r})"


def _disks(resource: Resource) -> Iterator[tuple[str, Any, Any]]:
    """Yield each disk: its name, whether it is encrypted, and its key."""
    inputs = resource.inputs
    match resource.type:
        case "aws:ec2/launchTemplate:LaunchTemplate":
            for mapping in items(inputs.get("blockDeviceMappings")):
                disk = mapping.get("ebs") or {}
                yield mapping.get("deviceName", "a disk"), disk.get("encrypted"), disk.get("kmsKeyId")
        case "aws:ebs/volume:Volume" | "alicloud:ecs/ecsDisk:EcsDisk":
            yield "it", inputs.get("encrypted"), inputs.get("kmsKeyId")
        case "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate":
            for where, disk in _named("systemDisk", [inputs.get("systemDisk") or {}]):
                yield where, disk.get("encrypted"), disk.get("kmsKeyId")
            for where, disk in _named("dataDisks", items(inputs.get("dataDisks"))):
                yield where, disk.get("encrypted"), disk.get("kmsKeyId")
        case "alicloud:ess/scalingConfiguration:ScalingConfiguration":
            yield "systemDisk", inputs.get("systemDiskEncrypted"), inputs.get("systemDiskKmsKeyId")
            for where, disk in _named("dataDisks", items(inputs.get("dataDisks"))):
                yield where, disk.get("encrypted"), disk.get("kmsKeyId")


def _named(key: str, values: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(f"{key}[{index}]" if len(values) > 1 else key, disk) for index, disk in enumerate(values)]


def buckets(resources: Sequence[Resource], _: Profile) -> Iterator[tuple[Resource | None, Finding]]:
    """Require the customer key for buckets: S3 sets it in a separate resource, OSS in the bucket.

    A bucket that only receives access logs is the exception: S3 delivers no logs to a bucket with a KMS key.
    """
    targets = _targets_of_logs(resources)
    for bucket in resources:
        if bucket.type == "alicloud:oss/bucket:Bucket":
            rules = [bucket.inputs.get("serverSideEncryptionRule") or {}]
        elif bucket.type == "aws:s3/bucket:Bucket":
            rules = [
                rule.get("applyServerSideEncryptionByDefault") or {}
                for part in belonging(
                    resources,
                    bucket,
                    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
                )
                for rule in items(part.inputs.get("rules"))
            ]
        else:
            continue
        by_the_cloud = any(rule.get("sseAlgorithm") == "AES256" for rule in rules)
        if bucket.inputs.get("bucket") in targets and by_the_cloud:
            continue
        if not any(of_customer(rule.get("kmsMasterKeyId")) for rule in rules):
            yield bucket, "no customer key encrypts its objects"


def _targets_of_logs(resources: Sequence[Resource]) -> set[Any]:
    """Return the buckets that receive access logs and have no access log themselves."""
    of_s3 = [part.inputs for part in resources if part.type == "aws:s3/bucketLogging:BucketLogging"]
    of_oss = [
        {"bucket": bucket.inputs.get("bucket"), **(bucket.inputs.get("logging") or {})}
        for bucket in resources
        if bucket.type == "alicloud:oss/bucket:Bucket" and bucket.inputs.get("logging")
    ]
    logged = {part.get("bucket") for part in (*of_s3, *of_oss)}
    return {part.get("targetBucket") for part in (*of_s3, *of_oss)} - logged - {None, UNKNOWN}


def belonging(resources: Sequence[Resource], bucket: Resource, kind: str) -> list[Resource]:
    """Return the parts of a kind that belong to a bucket: by the bucket's name, or by the resource's name."""
    own = bucket.inputs.get("bucket")
    return [
        part
        for part in resources
        if part.type == kind and (part.name == bucket.name or (own and part.inputs.get("bucket") == own))
    ]


def rotation(resource: Resource) -> Iterator[Finding]:
    """Require keys to rotate at least every quarter."""
    inputs = resource.inputs
    if resource.type == "aws:kms/key:Key":
        days = inputs.get("rotationPeriodInDays") or 365
        if not is_on(inputs.get("enableKeyRotation")):
            yield "never rotates (enableKeyRotation)"
        elif int(days) > LONGEST_ROTATION_DAYS:
            yield f"rotates every {int(days)} days"
    if resource.type == "alicloud:kms/key:Key":
        if inputs.get("automaticRotation") != "Enabled":
            yield "never rotates (automaticRotation)"
        elif _days(str(inputs.get("rotationInterval") or "365d")) > LONGEST_ROTATION_DAYS:
            yield f"rotates every {inputs.get('rotationInterval')}"


def _days(interval: str) -> float:
    """Return an interval in days: ``90d`` or ``7776000s``."""
    return int(interval[:-1]) / (DAY_S if interval.endswith("s") else 1)


def tls(resources: Sequence[Resource], _: Profile) -> Iterator[tuple[Resource | None, Finding]]:
    """Require buckets, topics and file systems to refuse plain HTTP."""
    for bucket in resources:
        if bucket.type == "aws:s3/bucket:Bucket":
            policies = belonging(resources, bucket, "aws:s3/bucketPolicy:BucketPolicy")
            if not any(refuses_plain_http(part.inputs.get("policy")) for part in policies):
                yield bucket, "none of its policies refuses requests without TLS"
        elif bucket.type == "alicloud:oss/bucket:Bucket":
            yield from _tls_of_oss(resources, bucket)
    for kind, policy in (
        ("aws:sns/topic:Topic", "aws:sns/topicPolicy:TopicPolicy"),
        ("aws:efs/fileSystem:FileSystem", "aws:efs/fileSystemPolicy:FileSystemPolicy"),
    ):
        for resource in (bucket for bucket in resources if bucket.type == kind):
            parts = [part for part in resources if part.type == policy and part.name == resource.name]
            if not any(refuses_plain_http(part.inputs.get("policy")) for part in parts):
                yield resource, "none of its policies refuses requests without TLS"


def _tls_of_oss(resources: Sequence[Resource], bucket: Resource) -> Iterator[tuple[Resource | None, Finding]]:
    settings = belonging(resources, bucket, "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig")
    if not any(is_on(part.inputs.get("enable")) for part in settings):
        yield bucket, "its HTTPS settings are off"
    for part in settings:
        old = OLD_TLS & set(items(part.inputs.get("tlsVersions")))
        if old:
            yield part, f"speaks {', '.join(sorted(old))}"


def refuses_plain_http(document: Any) -> bool:
    """Return whether a policy has a statement that denies requests without TLS."""
    return document == UNKNOWN or any(
        statement.get("Effect") == "Deny"
        and _of_everyone(statement.get("Principal"))
        and "false" in map(str, items((statement.get("Condition") or {}).get("Bool", {}).get(key)))
        for statement in statements(document)
        for key in ("aws:SecureTransport", "acs:SecureTransport")
    )


def _of_everyone(principal: Any) -> bool:
    """Return whether a statement is for every caller; one for an account does not bind the others."""
    named = principal.get("AWS") if isinstance(principal, Mapping) else principal
    return "*" in items(named)


def _own_key(kind: str, reason: str, remedy: str, **check: Any) -> PolicyRule:
    return PolicyRule(f"own-key-{kind}", reason, remedy, Severity.HIGH, **check)


RULES = (
    _own_key(
        "disks",
        "a snapshot or a lost disk must be unreadable outside of the account",
        USE_STACK_KEY,
        each=disks,
    ),
    _own_key(
        "buckets", "data and checkpoints are the fleet's most valuable content", USE_STACK_KEY, whole=buckets
    ),
    _own_key("topics", "alarms show what runs where and what it costs", USE_STACK_KEY, each=topics),
    _own_key("queues", "failed events carry ids and tags of instances", USE_STACK_KEY, each=queues),
    _own_key("logs", "logs show connections and callers", USE_STACK_KEY, each=logs),
    _own_key("file-systems", "homes hold what users keep private", USE_STACK_KEY, each=file_systems),
    PolicyRule(
        "key-rotation",
        "a key that leaked unnoticed is worth a quarter of data at most",
        f"let it rotate at least every {LONGEST_ROTATION_DAYS} days: storage.key_rotation_days",
        Severity.MEDIUM,
        each=rotation,
    ),
    PolicyRule(
        "tls-only",
        "anyone can read a credential or a sample that is sent unencrypted",
        "deny requests where SecureTransport is false, and versions before TLS 1.2",
        Severity.HIGH,
        whole=tls,
    ),
)

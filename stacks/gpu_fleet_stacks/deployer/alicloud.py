"""Permissions that the types of an Alibaba Cloud stack need from their deployer. Data.

RAM names an action after the API's call. Names restrict a bucket, a role, a policy, a function and a log
project to the stack. The resource's tag ``gpu-fleet:stack`` restricts deletions and limits in ECS, VPC and
Auto Scaling. Creations there are restricted to region and account only: the provider tags many types by a
second call. CloudMonitor has no resources, and reads are open.
"""

from collections.abc import Mapping, Sequence

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.deployer.grants import Grant, Kind, plain, table

OWN: Mapping[str, Mapping[str, str]] = {"StringEquals": {"acs:ResourceTag/gpu-fleet:stack": "{stack}"}}


def look(actions: str) -> Grant:
    """Return a grant of actions that only read."""
    return Grant(actions)


def here(actions: str, *kinds: str) -> Grant:
    """Return a grant on all resources of some types in the stack's region and account."""
    place = f"acs:{actions.partition(':')[0]}:{{region}}:{{account}}:"
    return Grant(actions, tuple(f"{place}{kind}/*" for kind in kinds))


def own(actions: str, *kinds: str) -> Grant:
    """Return a grant on the resources of some types that have the stack's tag."""
    return Grant(actions, here(actions, *kinds).resources, OWN)


def service_linked(services: Sequence[str]) -> Grant:
    """Allow services to create their own roles with the first resource in an account."""
    return Grant(
        "ram:CreateServiceLinkedRole",
        ("acs:ram:*:{account}:role/*",),
        {"StringEquals": {"ram:ServiceName": tuple(services)}},
    )


BUCKET = "acs:oss:*:{account}:gpu-fleet-{stack}-*-{account}"
BUCKETS = (
    Grant(
        "oss:PutBucket oss:DeleteBucket oss:GetBucket* oss:ListObjects oss:ListObjectVersions "
        "oss:PutBucketAcl oss:PutBucketEncryption oss:DeleteBucketEncryption oss:PutBucketVersioning "
        "oss:PutBucketLifecycle oss:DeleteBucketLifecycle oss:PutBucketLogging oss:DeleteBucketLogging "
        "oss:PutBucketTagging oss:DeleteBucketTagging oss:PutBucketPolicy oss:DeleteBucketPolicy "
        "oss:PutBucketHttpsConfig oss:PutBucketPublicAccessBlock oss:DeleteBucketPublicAccessBlock",
        (BUCKET,),
    ),
    look("oss:ListBuckets"),
)
STORED = ("image/*", *map(keys.stored, (keys.POLICY, keys.ACCOUNTS, keys.ROSTER)))
OBJECTS = (
    Grant(
        "oss:PutObject oss:GetObject oss:DeleteObject oss:GetObjectAcl oss:PutObjectAcl "
        "oss:AbortMultipartUpload oss:ListParts",
        tuple(f"acs:oss:*:{{account}}:gpu-fleet-{{stack}}-records-{{account}}/{key}" for key in STORED),
    ),
)

SHARED = {
    "buckets": BUCKETS,
    "look-ecs": (look("ecs:Describe* ecs:List*"),),
    "look-ess": (look("ess:Describe* ess:List*"),),
    "look-vpc": (look("vpc:Describe* vpc:List* vpc:Get*"),),
    "objects": OBJECTS,
}
KINDS: Mapping[str, Kind] = {
    "grant": plain,
    "here": lambda actions, row: (here(actions, *row["resources"]),),
    "look": lambda actions, _: (look(actions),),
    "own": lambda actions, row: (own(actions, *row["resources"]),),
    "service-linked": lambda services, _: (service_linked(services),),
    "use": lambda name, _: SHARED[name],
}
TABLE = table("alicloud.yaml", KINDS)

# Permissions of `destroy --delete-data` to empty buckets.
EMPTY_BUCKETS = (
    Grant("oss:ListMultipartUploads", (BUCKET,)),
    Grant("oss:DeleteObject oss:DeleteObjectVersion oss:AbortMultipartUpload", (f"{BUCKET}/*",)),
)

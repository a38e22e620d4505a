"""Permissions that an AWS stack needs from its deployer: kinds of grants, each restricted to one stack.

Actions, resource types and condition keys: docs.aws.amazon.com/service-authorization/latest/reference/. A
grant is restricted to one stack by the first of these that the service supports: the resource's name, which
begins with the stack's; the tag ``gpu-fleet:stack``, of the request for creations and of the resource for the
rest; the region, for reads.
"""

from collections.abc import Mapping

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.model import TAG_STACK
from gpu_fleet_stacks.deployer.grants import Grant, Kind, plain, table

HERE: Mapping[str, Mapping[str, str]] = {"StringEquals": {"aws:RequestedRegion": "{region}"}}
NEW: Mapping[str, Mapping[str, str]] = {"StringEquals": {f"aws:RequestTag/{TAG_STACK}": "{stack}"}}
OWN: Mapping[str, Mapping[str, str]] = {"StringEquals": {f"aws:ResourceTag/{TAG_STACK}": "{stack}"}}

# On what carries no tag of a stack, so that no other stack's becomes this one's.
FIRST_TAGS: Mapping[str, Mapping[str, str]] = {**NEW, "Null": {f"aws:ResourceTag/{TAG_STACK}": "true"}}

EC2 = "arn:{partition}:ec2:{region}:{account}:"


def look(actions: str) -> Grant:
    """Return a grant of actions that only read and support no resource, in the stack's region."""
    return Grant(actions, ("*",), HERE)


def own(actions: str, *resources: str) -> Grant:
    """Return a grant on resources with the stack's tag."""
    return Grant(actions, resources, OWN)


def new(actions: str, *resources: str) -> Grant:
    """Return a grant to create resources with the stack's tag."""
    return Grant(actions, resources, NEW)


def named(actions: str, *resources: str) -> Grant:
    """Return a grant on resources named after the stack, in its region, of the service of the actions."""
    place = f"arn:{{partition}}:{actions.partition(':')[0]}:{{region}}:{{account}}:"
    return Grant(actions, tuple(place + item for item in resources))


def made_in_ec2(created: str, create: str, rest: str = "") -> tuple[Grant, ...]:
    """Return the grants of a taggable type of EC2.

    Args:
        created: its name in an ARN, such as ``vpc``.
        create: the action that creates it; it also reads its tagged neighbours: VPC, subnet, groups.
        rest: actions that change and delete it, by its tag.
    """
    return (
        new(create, f"{EC2}{created}/*"),
        Grant(
            "ec2:CreateTags",
            (f"{EC2}{created}/*",),
            {"StringEquals": {"ec2:CreateAction": create.removeprefix("ec2:"), **NEW["StringEquals"]}},
        ),
        own(f"{create} {rest} ec2:CreateTags ec2:DeleteTags", f"{EC2}*/*"),
        LOOK_EC2,
    )


LOOK_EC2 = look("ec2:Describe* ec2:Get*")
OWN_EC2 = f"{EC2}*/*"

# Interfaces that a service makes in the caller's name carry no tag: EFS for mount targets, FSx for a Lustre
# (docs.aws.amazon.com/efs/latest/ug/API_CreateMountTarget.html, .../API_DeleteMountTarget.html).
INTERFACES = (
    Grant(
        "ec2:CreateNetworkInterface ec2:DeleteNetworkInterface ec2:ModifyNetworkInterfaceAttribute",
        (f"{EC2}network-interface/*",),
    ),
    own("ec2:CreateNetworkInterface ec2:ModifyNetworkInterfaceAttribute", OWN_EC2),
    LOOK_EC2,
)

BUCKET = "arn:{partition}:s3:::gpu-fleet-{stack}-*-{account}"
BUCKET_SETTINGS = (
    Grant(
        "s3:CreateBucket s3:DeleteBucket s3:ListBucket s3:ListBucketVersions s3:GetBucket* "
        "s3:GetAccelerateConfiguration s3:GetEncryptionConfiguration s3:GetLifecycleConfiguration "
        "s3:GetReplicationConfiguration s3:ListTagsForResource s3:TagResource s3:UntagResource "
        "s3:PutBucketLogging s3:PutBucketOwnershipControls s3:PutBucketPolicy s3:DeleteBucketPolicy "
        "s3:PutBucketPublicAccessBlock s3:PutBucketTagging s3:PutBucketVersioning "
        "s3:PutEncryptionConfiguration s3:PutLifecycleConfiguration s3:PutReplicationConfiguration",
        (BUCKET,),
        HERE,
    ),
)
STORED = ("image/payload/*", "image/*.tar", *map(keys.stored, (keys.POLICY, keys.ACCOUNTS, keys.ROSTER)))
OBJECTS = (
    Grant(
        "s3:PutObject s3:GetObject s3:DeleteObject s3:GetObjectTagging s3:PutObjectTagging "
        "s3:GetObjectVersion s3:GetObjectAttributes",
        tuple(f"arn:{{partition}}:s3:::gpu-fleet-{{stack}}-records-{{account}}/{key}" for key in STORED),
    ),
)

ROLE = "arn:{partition}:iam::{account}:role/gpu-fleet-{stack}-*"
SERVICE_LINKED = "arn:{partition}:iam::{account}:role/aws-service-role"
# Actions that give a role its rights; with an organisation's boundary only within it.
BOUND = "iam:CreateRole iam:PutRolePolicy iam:DeleteRolePolicy"
ROLES = (
    Grant(
        "iam:GetRole iam:UpdateRole iam:UpdateRoleDescription iam:UpdateAssumeRolePolicy "
        "iam:DeleteRole iam:TagRole iam:UntagRole iam:ListRoleTags iam:ListRolePolicies "
        "iam:ListAttachedRolePolicies iam:ListInstanceProfilesForRole iam:GetRolePolicy",
        (ROLE,),
    ),
    Grant(BOUND, (ROLE,)),
)


def service_linked(service: str) -> Grant:
    """Allow a service to create its own role with the first resource in an account."""
    return Grant(
        "iam:CreateServiceLinkedRole",
        (f"{SERVICE_LINKED}/{service}/*",),
        {"StringEquals": {"iam:AWSServiceName": service}},
    )


def builder(kind: str, actions: str) -> tuple[Grant, ...]:
    """Return the grants of a type of Image Builder, named after the stack.

    It may name other resources of the stack and of AWS.
    """
    return (
        named(
            f"{actions} imagebuilder:TagResource imagebuilder:UntagResource imagebuilder:ListTagsForResource",
            f"{kind}/gpu-fleet-{{stack}}*",
        ),
        look("imagebuilder:Get* imagebuilder:List*"),
        service_linked("imagebuilder.amazonaws.com"),
    )


SHARED = {
    "bucket-settings": BUCKET_SETTINGS,
    "interfaces": INTERFACES,
    "look-ec2": (LOOK_EC2,),
    "objects": OBJECTS,
    "roles": ROLES,
}
KINDS: Mapping[str, Kind] = {
    "builder": lambda kind, row: builder(kind, row["actions"]),
    "first-tags": lambda actions, row: (Grant(actions, tuple(row["resources"]), FIRST_TAGS),),
    "grant": plain,
    "in-ec2": lambda kind, row: made_in_ec2(kind, row["create"], row.get("rest", "")),
    "look": lambda actions, _: (look(actions),),
    "named": lambda actions, row: (named(actions, *row["resources"]),),
    "new": lambda actions, row: (new(actions, *row["resources"]),),
    "own": lambda actions, row: (own(actions, *row["resources"]),),
    "service-linked": lambda service, _: (service_linked(service),),
    "use": lambda name, _: SHARED[name],
}
TABLE = table("aws.yaml", KINDS)

# Reads of every `destroy`: the size of file systems, and the resources that the key encrypts.
DESTROY = (
    LOOK_EC2,
    look("elasticfilesystem:DescribeFileSystems fsx:DescribeBackups fsx:DescribeFileSystems"),
)

# Permissions of `destroy --delete-data` to empty buckets.
EMPTY_BUCKETS = (
    Grant("s3:ListBucketMultipartUploads", (BUCKET,), HERE),
    Grant("s3:DeleteObject s3:DeleteObjectVersion s3:AbortMultipartUpload", (f"{BUCKET}/*",)),
)

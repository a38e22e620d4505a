"""The policies of one stack's deployer, from what its program registered."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_fleet_stacks.aws.policies import partition
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.deployer import alicloud, aws
from gpu_fleet_stacks.deployer.grants import Grant, documents, filled, statements
from gpu_fleet_stacks.settings import Stack

AWS_VERSION, ALICLOUD_VERSION = "2012-10-17", "1"
ROLE_TYPES = ("aws:iam/role:Role", "alicloud:ram/role:Role")


@dataclass(frozen=True)
class Declared:
    """A resource as the program registered it."""

    type: str
    name: str
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Wanted:
    """Needs of the deployer beside the resources.

    Attributes:
        state_bucket: bucket of Pulumi's state; empty to leave it out.
        state_key: ARN of the KMS key of its secrets; empty to leave it out.
        delete_data: whether ``destroy --delete-data`` may empty the stack's buckets.
    """

    state_bucket: str = ""
    state_key: str = ""
    delete_data: bool = False


# Types of which a stack with `storage.replica_region` has some in that region.
_REPLICA_TYPES = tuple(
    token
    for token in (*aws.TABLE, *alicloud.TABLE)
    if token.startswith(("aws:s3/", "aws:kms/", "alicloud:oss/", "alicloud:kms/"))
)


def policies(stack: Stack, resources: Sequence[Declared], wanted: Wanted) -> list[dict[str, Any]]:
    """Return the documents, each of a size that its cloud accepts.

    Raises StacksError if a type has no entry in its cloud's table, or there are too many documents.
    """
    on_aws = stack.cloud is Cloud.AWS
    names = {
        "stack": stack.name,
        "region": stack.region,
        "account": stack.account_id,
        "partition": partition(stack.region),
    }
    buckets = aws.EMPTY_BUCKETS if on_aws else alicloud.EMPTY_BUCKETS
    emptied = buckets if wanted.delete_data else ()
    parts = (_of_types(stack, resources), _passed(resources, on_aws=on_aws), _beside(stack, wanted), emptied)
    grants = [filled(_within(stack, grant), names) for part in parts for grant in part]
    if stack.storage.replica_region is not None:
        there = [resource for resource in resources if resource.type in _REPLICA_TYPES]
        own = names | {"region": stack.storage.replica_region}
        grants += [filled(grant, own) for part in (_of_types(stack, there), emptied) for grant in part]
    return documents(AWS_VERSION if on_aws else ALICLOUD_VERSION, statements(grants))


def _within(stack: Stack, grant: Grant) -> Grant:
    """Return the grant; if it gives a role its rights, restricted to the organisation's boundary."""
    if grant.actions != aws.BOUND or not stack.aws.permissions_boundary:
        return grant
    return replace(grant, when=_bound(stack.aws.permissions_boundary))


def _bound(boundary: str) -> Mapping[str, Mapping[str, str]]:
    return {"StringEquals": {"iam:PermissionsBoundary": boundary}}


def _of_types(stack: Stack, resources: Sequence[Declared]) -> Iterator[Grant]:
    table = aws.TABLE if stack.cloud is Cloud.AWS else alicloud.TABLE
    types = sorted({resource.type for resource in resources})
    if unknown := [token for token in types if token not in table]:
        place = f"stacks/gpu_fleet_stacks/deployer/{stack.cloud}.yaml"
        raise StacksError(f"no entry in {place} for {', '.join(unknown)}: what it takes is not known")
    for token in types:
        yield from table[token]


def _passed(resources: Sequence[Declared], *, on_aws: bool) -> Iterator[Grant]:
    """Yield the permission to pass each role to the service in its own trust policy, and to no other."""
    by_service: dict[str, set[str]] = defaultdict(set)
    for resource in resources:
        if resource.type in ROLE_TYPES:
            for service in _trusted(resource.inputs):
                by_service[service].add(_physical_name(resource))
    for service, roles in sorted(by_service.items()):
        if on_aws:
            arns = tuple(f"arn:{{partition}}:iam::{{account}}:role/{role}" for role in sorted(roles))
            yield Grant("iam:PassRole", arns, {"StringEquals": {"iam:PassedToService": service}})
        else:
            arns = tuple(f"acs:ram:*:{{account}}:role/{role}" for role in sorted(roles))
            yield Grant("ram:PassRole", arns, {"StringEquals": {"acs:Service": service}})


def _trusted(inputs: Mapping[str, Any]) -> list[str]:
    text = inputs.get("assumeRolePolicy") or inputs["assumeRolePolicyDocument"]
    services: list[str] = []
    for statement in json.loads(text)["Statement"]:
        named = statement["Principal"].get("Service", [])
        services += [named] if isinstance(named, str) else named
    return services


def _physical_name(role: Declared) -> str:
    """Return the role's name, or the pattern of the name that Pulumi generates.

    A generated name is the logical name, a dash and seven hexadecimal digits.
    """
    given = role.inputs.get("name") or role.inputs.get("roleName")
    return str(given) if given else f"{role.name}-{'?' * (naming.AUTONAME_SUFFIX_LENGTH - 1)}"


def _beside(stack: Stack, wanted: Wanted) -> Iterator[Grant]:
    """Yield reads of existing resources of other owners, and access to the state."""
    if stack.cloud is Cloud.AWS:
        yield from aws.DESTROY
        yield from _lookups(stack)
        yield from _aws_state(wanted)
        return
    if buckets := sorted(stack.storage.existing.buckets):
        yield Grant("oss:GetBucket*", tuple(f"acs:oss:*:*:{bucket}" for bucket in buckets))
    if wanted.state_bucket:
        bucket = f"acs:oss:*:{{account}}:{wanted.state_bucket}"
        yield Grant("oss:ListObjects oss:GetBucketInfo oss:GetBucketLocation", (bucket,))
        yield Grant("oss:GetObject oss:PutObject oss:DeleteObject", (f"{bucket}/.pulumi/*",))


def _lookups(stack: Stack) -> Iterator[Grant]:
    if buckets := sorted(stack.storage.existing.buckets):
        arns = tuple(f"arn:{{partition}}:s3:::{bucket}" for bucket in buckets)
        yield Grant("s3:ListBucket s3:GetBucketLocation s3:GetBucketTagging", arns)
    yield Grant(
        "ssm:GetParameter ssm:GetParametersByPath",
        tuple(sorted(_parameters(stack))),
        aws.HERE,
    )
    if boundary := stack.aws.permissions_boundary:
        yield Grant("iam:PutRolePermissionsBoundary", (aws.ROLE,), _bound(boundary))
    # a group of reservations is no resource of the stack's
    if groups := sorted({str(pool.reservation_id) for pool in stack.pools if pool.reserved_by_group}):
        yield Grant("ec2:RunInstances", tuple(groups))
    network = stack.network.existing
    if network is not None:  # another account may share its VPC
        place = "arn:{partition}:ec2:{region}:*:"
        yield Grant("ec2:CreateSecurityGroup ec2:CreateVpcEndpoint", (f"{place}vpc/{network.vpc_id}",))
        yield Grant(
            "ec2:CreateNetworkInterface ec2:CreateVpcEndpoint ec2:RunInstances",
            tuple(f"{place}subnet/{subnet}" for _, subnet in sorted(network.subnets.items())),
        )


def _parameters(stack: Stack) -> Iterator[str]:
    place = "arn:{partition}:ssm:{region}"
    yield f"{place}:{{account}}:parameter/imagebuilder/gpu-fleet-{{stack}}*"
    for said in (stack.image.parameter, stack.image.base_id):
        name = re.sub(r"^ssm:", "", said or "")
        if name.startswith("/aws/service/"):  # Amazon's own parameters are in no account
            yield f"{place}::parameter{name}"
        elif name.startswith("/"):
            yield f"{place}:{{account}}:parameter{name}"


def _aws_state(wanted: Wanted) -> Iterator[Grant]:
    if wanted.state_bucket:
        bucket = f"arn:{{partition}}:s3:::{wanted.state_bucket}"
        yield Grant("s3:ListBucket s3:GetBucketLocation", (bucket,))
        yield Grant("s3:GetObject s3:PutObject s3:DeleteObject", (f"{bucket}/.pulumi/*",))
    if wanted.state_key:
        yield Grant("kms:Decrypt kms:Encrypt kms:GenerateDataKey", (wanted.state_key,))

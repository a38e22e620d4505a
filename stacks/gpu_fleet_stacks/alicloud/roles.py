"""A RAM role with its one policy: three resources that always belong together."""

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack


def role_with_policy(
    name: str,
    stack: Stack,
    *,
    trust: pulumi.Output[str],
    policy_document: pulumi.Output[str],
    purpose: str,
    parent: pulumi.Resource,
) -> tuple[alicloud.ram.Role, alicloud.ram.RolePolicyAttachment]:
    """Declare a role and its only policy; return role and attachment. Use the role after the attachment.

    Args:
        name: of role and policy alike, unique in the account; at most 64 characters.
        trust: who may assume the role (``policies.trust``).
    """
    child, tags = pulumi.ResourceOptions(parent=parent), naming.tags(stack.name, stack.owner)
    role = alicloud.ram.Role(
        name,
        role_name=name,
        assume_role_policy_document=trust,
        description=purpose,
        force=True,
        tags=tags,
        opts=child,
    )
    policy = alicloud.ram.Policy(
        name,
        policy_name=name,
        policy_document=policy_document,
        description=purpose,
        rotate_strategy="DeleteOldestNonDefaultVersionWhenLimitExceeded",
        force=True,
        tags=tags,
        opts=child,
    )
    attachment = alicloud.ram.RolePolicyAttachment(
        name, role_name=role.role_name, policy_name=policy.policy_name, policy_type="Custom", opts=child
    )
    return role, attachment

"""Policies of users: who takes, keeps and gives back instances, and who opens shells."""

from collections.abc import Sequence

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.function_roles import MARK_ACTIONS, STACK, FunctionInputs, money
from gpu_fleet_stacks.alicloud.identity import ADD_ACTIONS
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack

PEOPLE_LOOK_ACTIONS = (
    "cms:DescribeMetricLast",
    "cms:DescribeMetricList",
    "cms:QueryMetricLast",
    "cms:QueryMetricList",
    "ecs:DescribeInstances",
    "ecs:DescribeSpotPriceHistory",
    "ess:DescribeScalingGroups",
)


def people_policy(inputs: FunctionInputs) -> pulumi.Output[str]:
    """Return the policy for users who take, keep and give back instances; for users or a role.

    RAM has no variable for the caller, so one user of the group can ask in another's name; the bucket's
    access log names the writer. Keeping and giving back are tags, so each user can set and remove every tag
    of every instance of the stack: another user's owner tag and hold, and the tag by which the sweep
    recognises its instances. ActionTrail names the caller. It opens no shell: see ``operator_policy``.
    """
    stack = inputs.stack
    queue = [keys.stored(keys.QUEUE_JOBS)] if stack.queued else []
    shared = pulumi.Output.concat(inputs.data_arn, f"/{naming.SHARED_PREFIX}*")
    said = (f"{keys.stored(keys.MOVER_STATE)}*", keys.stored(keys.POLICY), *queue)
    read = [*(pulumi.Output.concat(inputs.records_arn, f"/{key}") for key in said), *money(inputs)]
    return policies.document(
        policies.allow(PEOPLE_LOOK_ACTIONS, "*"),
        policies.allow(
            ["oss:PutObject"], pulumi.Output.concat(inputs.records_arn, "/reaper/capacity/requests/*")
        ),
        policies.allow(["oss:GetObject", "oss:GetObjectVersion"], read),
        policies.allow(["oss:ListObjects", "oss:ListObjectVersions"], inputs.records_arn),
        # `gpu-fleet data` reads and adds below shared/, and deletes nothing
        policies.allow(["oss:GetObject", *ADD_ACTIONS], shared),
        policies.allow(["oss:ListObjects"], inputs.data_arn),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], inputs.key_arn),
        _of_instances(stack, MARK_ACTIONS),
    )


def operator_policy(stack: Stack) -> pulumi.Output[str]:
    """Return the policy for a shell and ports on every instance: for users who may be root there.

    A caller of StartTerminalSession names the account, root too, and RAM has no condition on that. Without a
    name it is the assistant's account, which Cloud Assistant's agent lets become root.
    https://help.aliyun.com/en/ecs/developer-reference/api-ecs-2014-05-26-startterminalsession
    """
    return policies.document(_of_instances(stack, ["ecs:StartTerminalSession"]))


def _of_instances(stack: Stack, actions: Sequence[str]) -> policies.Statement:
    of_stack = {"StringEquals": {f"acs:ResourceTag/{STACK}": [stack.name]}}
    return policies.allow(actions, f"acs:ecs:{stack.region}:{stack.account_id}:instance/*", of_stack)

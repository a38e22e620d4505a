"""The mover: a function that decides where a pool's next instance starts, and the rights of its users.

It runs each minute, so a group without capacity is passed over within a minute. Its role raises groups and
tags instances, and can terminate none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.functions import ScheduledFunction, ScheduledFunctionArgs, alarm_of_failures
from gpu_fleet_stacks.alicloud.reaper import HANDLER, archive
from gpu_fleet_stacks.alicloud.reaper_role import MANAGED, STACK
from gpu_fleet_stacks.payload import sweep_archive
from gpu_fleet_stacks.settings import Stack

TIMEOUT_S = 120
EVERY_MINUTES = 1
FAILED_PASSES = 3
# ModifyScalingGroup withdraws failed launches from a group with an expected number. RAM cannot exclude parts
# of the action.
RAISE_ACTIONS = ("ess:ScaleWithAdjustment", "ess:ModifyScalingGroup")
TAG_ACTIONS = ("ecs:TagResources", "ecs:UntagResources")
# None of these actions supports a resource or a condition narrower than the account.
LOOK_ACTIONS = (
    "ecs:DescribeInstances",
    "ecs:DescribeSpotPriceHistory",
    "ess:DescribeAlarms",
    "ess:DescribeScalingActivities",
    "ess:DescribeScalingGroups",
)
NEVER_ACTIONS = (
    "ecs:DeleteInstance",
    "ecs:DeleteInstances",
    "ecs:StopInstance",
    "ecs:StopInstances",
    "ess:DetachInstances",
    "ess:RemoveInstances",
    "ess:SetInstanceHealth",
)
PEOPLE_LOOK_ACTIONS = (
    "cms:DescribeMetricLast",
    "cms:DescribeMetricList",
    "cms:QueryMetricLast",
    "cms:QueryMetricList",
    "ecs:DescribeInstances",
    "ecs:DescribeSpotPriceHistory",
    "ess:DescribeScalingGroups",
)


@dataclass(frozen=True)
class CapacityArgs:
    """Inputs of the mover.

    Attributes:
        key_id: encrypts log and ledger.
        records_arn: the bucket of requests and ledger.
        contact_group: the group that is notified when the mover fails.
    """

    stack: Stack
    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    records_arn: pulumi.Output[str]
    contact_group: pulumi.Input[str]


class Capacity(pulumi.ComponentResource):
    """The mover of one stack."""

    function_name: pulumi.Output[str]

    def __init__(self, name: str, args: CapacityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:Capacity", name, None, opts)
        stack = args.stack
        mover = ScheduledFunction(
            f"{name}-capacity",
            ScheduledFunctionArgs(
                stack=stack,
                label="capacity",
                purpose=f"Decides where instances of gpu-fleet stack {stack.name} start",
                handler=HANDLER,
                files=bundle(stack),
                every_minutes=EVERY_MINUTES,
                timeout_s=TIMEOUT_S,
                statements=role_policy(args),
                key_id=args.key_id,
                key_arn=args.key_arn,
            ),
            pulumi.ResourceOptions(parent=self),
        )
        alarm_of_failures(
            f"{name}-capacity-errors",
            stack,
            mover.function_name,
            times=FAILED_PASSES,
            contact_group=args.contact_group,
            parent=self,
        )
        self.function_name = mover.function_name
        self.register_outputs({"function_name": mover.function_name})


def bundle(stack: Stack) -> dict[str, bytes]:
    """Return the function's code with its packages; equal settings and equal modules give equal bytes."""
    return archive(stack, f"{sweep_archive.MOVER}.alicloud")


def role_policy(args: CapacityArgs) -> list[policies.Statement]:
    """Return the statements of the role's only policy, without its log."""
    own = f"{args.stack.region}:{args.stack.account_id}"
    of_stack = {f"acs:ResourceTag/{STACK}": [args.stack.name]}
    managed = of_stack | {f"acs:ResourceTag/{MANAGED}": ["true"]}
    return [
        policies.allow(LOOK_ACTIONS, "*"),
        policies.allow(RAISE_ACTIONS, f"acs:ess:{own}:scalinggroup/*", {"StringEquals": of_stack}),
        policies.allow(TAG_ACTIONS, f"acs:ecs:{own}:instance/*", {"StringEquals": managed}),
        policies.deny(NEVER_ACTIONS, "*"),
        policies.allow(
            ["oss:GetObject", "oss:GetObjectVersion", "oss:PutObject"],
            pulumi.Output.concat(args.records_arn, "/reaper/capacity/*"),
        ),
        policies.allow(["oss:GetObject", "oss:GetObjectVersion"], _money(args)),
        policies.allow(["oss:ListObjects", "oss:ListObjectVersions"], args.records_arn),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
    ]


def _money(args: CapacityArgs) -> list[pulumi.Output[str]]:
    """Return the states of the meter and the freeze, which are numbered objects.

    See ``image/gpu_fleet_image/providers/alicloud/oss.py``.
    """
    return [pulumi.Output.concat(args.records_arn, f"/reaper/{name}.json*") for name in ("meter", "freeze")]


def people_policy(args: CapacityArgs) -> pulumi.Output[str]:
    """Return the policy for users who take, keep and give back instances; for users or a role.

    RAM has no variable for the caller, so one user of the group can ask in another's name; the bucket's
    access log names the writer. Keeping and giving back are tags, so each user can set and remove every tag
    of every instance of the stack: another user's owner tag and hold, and the tag by which the sweep
    recognises its instances. ActionTrail names the caller. It opens no shell: see ``operator_policy``.
    """
    stack = args.stack
    queue = [keys.stored(keys.QUEUE_JOBS)] if stack.queued else []
    said = (f"{keys.stored(keys.MOVER_STATE)}*", keys.stored(keys.POLICY), *queue)
    read = [*(pulumi.Output.concat(args.records_arn, f"/{key}") for key in said), *_money(args)]
    return policies.document(
        policies.allow(PEOPLE_LOOK_ACTIONS, "*"),
        policies.allow(
            ["oss:PutObject"], pulumi.Output.concat(args.records_arn, "/reaper/capacity/requests/*")
        ),
        policies.allow(["oss:GetObject", "oss:GetObjectVersion"], read),
        policies.allow(["oss:ListObjects", "oss:ListObjectVersions"], args.records_arn),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
        _of_instances(stack, TAG_ACTIONS),
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

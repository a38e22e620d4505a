"""A log store of Simple Log Service, encrypted with the stack's key. CloudWatch Logs needs no such file."""

from dataclasses import dataclass

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import policies
from gpu_fleet_stacks.alicloud.roles import role_with_policy
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack


@dataclass(frozen=True)
class LogStoreArgs:
    """Inputs of a log store.

    Attributes:
        label: what is logged, such as ``flow``.
        key_arn: the same key, for the role that uses it.
        retention_days: how long entries are kept.
    """

    stack: Stack
    label: str
    key_id: pulumi.Input[str]
    key_arn: pulumi.Input[str]
    retention_days: int


class LogStore(pulumi.ComponentResource):
    """A project of its own, one store, and the role with which the service uses the stack's key.

    Attributes:
        project_name: unique in the world by the account id.
    """

    project_name: pulumi.Output[str]
    store_name: pulumi.Output[str]

    def __init__(self, name: str, args: LogStoreArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:LogStore", name, None, opts)
        stack, child = args.stack, pulumi.ResourceOptions(parent=self)
        tags = naming.tags(stack.name, stack.owner)
        project = alicloud.log.Project(
            name,
            project_name=naming.prefixed(stack.name, args.label, stack.account_id),
            description=f"gpu-fleet {stack.name} {args.label}",
            tags=tags,
            opts=child,
        )
        role, attachment = self._key_role(name, args)
        store = alicloud.log.Store(
            name,
            project_name=project.project_name,
            logstore_name=args.label,
            retention_period=args.retention_days,
            shard_count=1,
            auto_split=True,
            max_split_shard_count=16,
            encrypt_conf=alicloud.log.StoreEncryptConfArgs(
                enable=True,
                encrypt_type="default",
                user_cmk_info=alicloud.log.StoreEncryptConfUserCmkInfoArgs(
                    arn=role.arn, cmk_key_id=args.key_id, region_id=stack.region
                ),
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[attachment]),
        )
        self.project_name = project.project_name
        self.store_name = store.logstore_name
        self.register_outputs({"project_name": self.project_name, "store_name": self.store_name})

    def _key_role(
        self, name: str, args: LogStoreArgs
    ) -> tuple[alicloud.ram.Role, alicloud.ram.RolePolicyAttachment]:
        use_key = policies.document(
            policies.allow(["kms:Decrypt", "kms:GenerateDataKey", "kms:DescribeKey"], args.key_arn)
        )
        purpose = f"Encrypts the {args.label} log of gpu-fleet stack {args.stack.name}"
        return role_with_policy(
            name,
            args.stack,
            trust=policies.trust("log.aliyuncs.com"),
            policy_document=use_key,
            purpose=purpose,
            parent=self,
        )

"""The queue of a stack with ``queue: slurm``: its controller, and the facts that nodes need to find it.

The controller is one small instance at a fixed address of the home vSwitch, and not a group of one. Auto
Scaling here gives each instance a new interface at an address that ECS picks: ``network_interfaces`` of a
scaling configuration sets groups and traffic mode, and no interface that stays. ECS itself restarts an
instance with its address when the host failed (``AutoRecover``). An ``up`` that refreshes replaces a deleted
controller at the same address; its state is on the shared homes, so the new one resumes.

It starts from a launch template, so that a new payload or image changes the template alone. An input of the
instance itself would stop it at each ``up`` (ModifyInstanceAttribute of the user data), or replace its disk.

``_secret`` explains how munge's key stays out of the state. Inputs: resource_alicloud_instance.go and
resource_alicloud_kms_secret.go of terraform-provider-alicloud at 81c43b6.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.alicloud import instance_logs, policies
from gpu_fleet_stacks.alicloud.firewall import QUEUE
from gpu_fleet_stacks.alicloud.launch import DISK_CATEGORY, DISK_PERFORMANCE_LEVEL
from gpu_fleet_stacks.alicloud.roles import role_with_policy
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import built, instance_file, user_data
from gpu_fleet_stacks.payload.at_launch import QueueJoin
from gpu_fleet_stacks.settings import Stack

# Two vCPU and 4 GiB, as on AWS; its price is in stacks/gpu_fleet_stacks/catalog/prices.toml.
CONTROLLER_TYPE = "ecs.c7.large"
# A vSwitch's first and last three addresses are the cloud's (API CreateVSwitchCidrReservation); of the others
# the last, which is the least likely to be taken.
LAST_FREE = -4
# Content of the secret's first version, which KMS requires and every user may read.
NO_KEY = "no key: the controller of the queue keeps munge's as another version"
NO_KEY_VERSION = "declared"


@dataclass(frozen=True)
class QueueArgs:
    """Inputs of the queue.

    Attributes:
        key_id: encrypts the secret and the controller's disk.
        network: that vSwitch's CIDR.
        group_id: the controller's security group.
        bucket_arns: kind -> bucket.
        home: DNS name of the shared homes.
        surroundings: resources that the controller needs from its first minute on, as for a pool.
    """

    stack: Stack
    image_id: str
    key_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    subnet_id: pulumi.Output[str]
    network: str
    group_id: pulumi.Output[str]
    bucket_arns: dict[str, pulumi.Output[str]]
    home: pulumi.Output[str]
    surroundings: Sequence[pulumi.Resource]


class QueueController(pulumi.ComponentResource):
    """Slurm's controller."""

    join: QueueJoin

    def __init__(self, name: str, args: QueueArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:alicloud:QueueController", name, None, opts)
        self._name, self._args = f"{name}-queue", args
        self._child = pulumi.ResourceOptions(parent=self)
        named = naming.prefixed(args.stack.name, QUEUE)
        self._tags = naming.tags(args.stack.name, args.stack.owner, Name=named)
        secret = self._secret()
        role, attachment = role_with_policy(
            self._name,
            args.stack,
            trust=policies.trust("ecs.aliyuncs.com"),
            policy_document=controller_policy(args, secret.arn),
            purpose=f"The queue's controller of gpu-fleet stack {args.stack.name}",
            parent=self,
        )
        address = controller_address(args.network)
        files = {
            kind: secret.secret_name.apply(partial(_queue_file, kind, address))
            for kind in ("controller", "node")
        }
        template = self._template(role.role_name, files["controller"])
        instance = self._instance(template, address, attachment)
        # nodes wait for the controller, so that no other instance of the stack gets its address first
        node_file = pulumi.Output.all(files["node"], instance.id).apply(lambda both: str(both[0]))
        self.join = QueueJoin(secret.arn, node_file)
        self.register_outputs({"instance_id": instance.id})

    def _secret(self) -> alicloud.kms.Secret:
        """Declare a secret whose current version is no key.

        KMS requires a first value, and the provider reads the current one back into the state at each
        refresh. So the current version is, and stays, a public sentence. The controller makes the key itself
        and stores it as a version with a label of its own (image/gpu_fleet_image/slurm/alicloud.py). No
        state, no program and no user data ever holds the key. Its deletion is final: a name that waits for
        recovery cannot be used again, and without its controller the key opens nothing.
        """
        stack = self._args.stack
        return alicloud.kms.Secret(
            f"{self._name}-munge",
            secret_name=f"{self._name}-munge",
            description=f"Munge's key of gpu-fleet stack {stack.name}; its controller makes it",
            secret_type="Generic",  # noqa: S106 - a kind
            secret_data_type="text",  # noqa: S106 - a kind
            secret_data=NO_KEY,
            version_id=NO_KEY_VERSION,
            dkms_instance_id=stack.storage.kms_instance_id,
            encryption_key_id=self._args.key_id,
            force_delete_without_recovery=True,
            tags=self._tags,
            opts=self._child,
        )

    def _template(
        self, role_name: pulumi.Output[str], queue_file: pulumi.Output[str]
    ) -> alicloud.ecs.EcsLaunchTemplate:
        args, stack = self._args, self._args.stack
        label = f"gpu-fleet {stack.name} queue"

        def encoded(known: list[str]) -> str:
            home, queue = known
            return user_data.controller_encoded(stack, "oss", home=home, queue=queue)

        return alicloud.ecs.EcsLaunchTemplate(
            self._name,
            launch_template_name=self._name,
            description=label,
            version_description=label,
            image_id=args.image_id,
            instance_type=CONTROLLER_TYPE,
            instance_name=self._name,
            instance_charge_type="PostPaid",
            network_type="vpc",
            security_group_ids=[args.group_id],
            ram_role_name=role_name,
            http_endpoint="enabled",
            http_tokens="required",
            http_put_response_hop_limit=1,
            internet_max_bandwidth_out=0,
            system_disk=alicloud.ecs.EcsLaunchTemplateSystemDiskArgs(
                category=DISK_CATEGORY,
                performance_level=DISK_PERFORMANCE_LEVEL,
                name=f"{self._name}-root",
                size=stack.image.size_gib,
                encrypted=True,
                kms_key_id=args.key_id,
                delete_with_instance=True,
            ),
            update_default_version_number=True,
            tags=self._tags,
            template_tags=self._tags,
            user_data=pulumi.Output.all(args.home, queue_file).apply(encoded),
            opts=self._child,
        )

    def _instance(
        self, template: alicloud.ecs.EcsLaunchTemplate, address: str, role: pulumi.Resource
    ) -> alicloud.ecs.Instance:
        """Declare the instance from the template's default version, so that a new version changes nothing."""
        args = self._args
        return alicloud.ecs.Instance(
            self._name,
            launch_template_id=template.id,
            instance_name=self._name,
            vswitch_id=args.subnet_id,
            private_ip=address,
            http_endpoint="enabled",
            http_tokens="required",
            internet_max_bandwidth_out=0,
            deletion_protection=args.stack.protected,
            maintenance_action="AutoRecover",
            tags=self._tags,
            # two instances cannot have one address
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[role, *args.surroundings], delete_before_replace=True
            ),
        )


def controller_address(network: str) -> str:
    """Return the controller's address in a vSwitch: the last one that the cloud leaves to instances. Pure."""
    return str(ipaddress.ip_network(network)[LAST_FREE])


def _queue_file(role: str, address: str, secret: str) -> str:
    """Return ``queue.json`` of a role, once the name of the secret is known."""
    return instance_file.queue_json(role, address, secret)


def controller_policy(args: QueueArgs, secret_arn: pulumi.Output[str]) -> pulumi.Output[str]:
    """Return the role's only policy: its key, the stack's documents, its requests to the mover.

    It can terminate no instance.
    """
    records = args.bucket_arns["records"]
    read = (
        keys.stored(keys.POLICY),
        keys.stored(keys.ACCOUNTS),
        *map(keys.stored, (keys.QUEUE_JOBS, f"{keys.QUEUE_USE}/*", keys.GROWTH)),
        f"{built.PREFIX}/*",
    )
    return policies.document(
        # which instances still run; a list has no narrower resource
        policies.allow(["ecs:DescribeInstances"], "*"),
        policies.allow(["kms:GetSecretValue", "kms:PutSecretValue"], secret_arn),
        policies.allow(["oss:GetObject"], [pulumi.Output.concat(records, f"/{key}") for key in read]),
        policies.allow(["oss:ListObjects"], records),
        policies.allow(
            ["oss:PutObject"],
            [
                pulumi.Output.concat(records, f"/{key}")
                for key in map(keys.stored, (keys.QUEUE_NEED, keys.QUEUE_JOBS, f"{keys.QUEUE_USE}/*"))
            ],
        ),
        policies.allow(["kms:Decrypt", "kms:GenerateDataKey"], args.key_arn),
        *instance_logs.write_statements(args.stack, QUEUE),
    )

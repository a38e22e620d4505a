"""The queue of a stack with ``queue: slurm``: its controller, and the facts that nodes need to find it.

The controller is one small instance in a group of one. Its network interface survives a replacement, so the
address that every node knows stays the same. Its state is on the shared homes, so the next controller
resumes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pulumi
import pulumi_aws as aws

from gpu_fleet_image.core import keys
from gpu_fleet_stacks.aws import instance_logs, policies
from gpu_fleet_stacks.aws.firewall import QUEUE
from gpu_fleet_stacks.aws.identity import SESSION_ACTIONS
from gpu_fleet_stacks.aws.launch import ROOT_DEVICE
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.payload import built, instance_file, user_data
from gpu_fleet_stacks.payload.at_launch import QueueJoin
from gpu_fleet_stacks.settings import Stack

# stacks/gpu_fleet_stacks/catalog/prices.toml has its price
CONTROLLER_TYPE = "t3.medium"
RECOVERY_DAYS = 7
HEALTH_GRACE_S = 600


@dataclass(frozen=True)
class QueueArgs:
    """Inputs of the queue.

    Attributes:
        autoscaling_role_arn: the scaling role that the key trusts.
        group_ids: label -> security group.
        bucket_arns: kind -> bucket.
        home: DNS name of the shared homes.
        surroundings: resources that the controller needs from its first minute on, as for a pool.
    """

    stack: Stack
    image_id: pulumi.Output[str]
    key_arn: pulumi.Output[str]
    autoscaling_role_arn: pulumi.Output[str]
    subnet_id: pulumi.Output[str]
    group_ids: dict[str, pulumi.Output[str]]
    bucket_arns: dict[str, pulumi.Output[str]]
    home: pulumi.Output[str]
    surroundings: Sequence[pulumi.Resource]


class QueueController(pulumi.ComponentResource):
    """Slurm's controller."""

    join: QueueJoin

    def __init__(self, name: str, args: QueueArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("gpu-fleet:aws:QueueController", name, None, opts)
        self._name, self._args = f"{name}-queue", args
        self._child = pulumi.ResourceOptions(parent=self)
        named = naming.prefixed(args.stack.name, QUEUE)
        self._tags = args.stack.tags | naming.tags(args.stack.name, args.stack.owner, Name=named)
        secret = aws.secretsmanager.Secret(
            f"{self._name}-munge",
            description=f"Munge's key of gpu-fleet stack {args.stack.name}; its controller makes it",
            kms_key_id=args.key_arn,
            recovery_window_in_days=RECOVERY_DAYS,
            tags=self._tags,
            opts=self._child,
        )
        interface = aws.ec2.NetworkInterface(
            self._name,
            subnet_id=args.subnet_id,
            security_groups=[args.group_ids[QUEUE]],
            description=f"The queue's controller of gpu-fleet stack {args.stack.name}",
            tags=self._tags,
            opts=self._child,
        )
        known = pulumi.Output.all(interface.private_ip, secret.name)
        files = {role: known.apply(partial(_queue_file, role)) for role in ("controller", "node")}
        template = self._template(interface, self._profile(secret), files["controller"])
        group = self._group(template)
        self.join = QueueJoin(secret.arn, files["node"])
        self.register_outputs({"group_name": group.name})

    def _profile(self, secret: aws.secretsmanager.Secret) -> aws.iam.InstanceProfile:
        stack = self._args.stack
        role = aws.iam.Role(
            self._name,
            assume_role_policy=policies.trust("ec2.amazonaws.com", stack.account_id, check_source=False),
            description=f"The queue's controller of gpu-fleet stack {stack.name}",
            tags=self._tags,
            opts=self._child,
        )
        document = controller_policy(self._args, secret.arn)
        policy = aws.iam.RolePolicy(self._name, role=role.id, policy=document, opts=self._child)
        return aws.iam.InstanceProfile(
            self._name,
            role=role.name,
            tags=self._tags,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[policy]),
        )

    def _template(
        self,
        interface: aws.ec2.NetworkInterface,
        profile: aws.iam.InstanceProfile,
        queue_file: pulumi.Output[str],
    ) -> aws.ec2.LaunchTemplate:
        args, stack = self._args, self._args.stack

        def encoded(known: list[str]) -> str:
            home, queue = known
            return user_data.controller_encoded(stack, "s3", home=home, queue=queue)

        return aws.ec2.LaunchTemplate(
            self._name,
            description=f"gpu-fleet {stack.name} queue",
            image_id=args.image_id,
            instance_type=CONTROLLER_TYPE,
            block_device_mappings=[
                {
                    "device_name": ROOT_DEVICE,
                    "ebs": {
                        "volume_type": "gp3",
                        "volume_size": stack.image.size_gib,
                        "encrypted": "true",
                        "kms_key_id": args.key_arn,
                        "delete_on_termination": "true",
                    },
                }
            ],
            metadata_options=aws.ec2.LaunchTemplateMetadataOptionsArgs(
                http_endpoint="enabled",
                http_tokens="required",
                http_put_response_hop_limit=1,
                instance_metadata_tags="enabled",
            ),
            network_interfaces=[
                aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                    device_index=0, network_interface_id=interface.id, delete_on_termination="false"
                )
            ],
            iam_instance_profile={"arn": profile.arn},
            tag_specifications=[
                aws.ec2.LaunchTemplateTagSpecificationArgs(resource_type=kind, tags=self._tags)
                for kind in ("instance", "volume")
            ],
            tags=self._tags,
            update_default_version=True,
            user_data=pulumi.Output.all(args.home, queue_file).apply(encoded),
            opts=self._child,
        )

    def _group(self, template: aws.ec2.LaunchTemplate) -> aws.autoscaling.Group:
        """Declare the group of one controller.

        It names a zone and no subnet, since the interface has one already: docs.aws.amazon.com/autoscaling/
        ec2/userguide/examples-launch-templates-aws-cli.html, "existing network interface".
        """
        return aws.autoscaling.Group(
            self._name,
            min_size=1,
            max_size=1,
            desired_capacity=1,
            availability_zones=[self._args.stack.network.home_zone],
            service_linked_role_arn=self._args.autoscaling_role_arn,
            protect_from_scale_in=True,
            suspended_processes=["AZRebalance"],
            health_check_type="EC2",
            health_check_grace_period=HEALTH_GRACE_S,
            wait_for_capacity_timeout="0",
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            tags=[
                aws.autoscaling.GroupTagArgs(key=key, value=value, propagate_at_launch=True)
                for key, value in self._tags.items()
            ],
            opts=pulumi.ResourceOptions(parent=self, depends_on=self._args.surroundings),
        )


def _queue_file(role: str, known: list[str]) -> str:
    """Return ``queue.json`` of a role from the address and the name of the secret."""
    address, secret = known
    return instance_file.queue_json(role, address, secret)


def controller_policy(args: QueueArgs, secret_arn: pulumi.Output[str]) -> pulumi.Output[str]:
    """Return the role's only policy: its key, the stack's documents, its requests to the mover.

    It can terminate no instance.
    """
    stack, records = args.stack, args.bucket_arns["records"]
    vias = [f"{service}.{stack.region}.amazonaws.com" for service in ("secretsmanager", "s3")]
    read = (
        keys.stored(keys.POLICY),
        keys.stored(keys.ACCOUNTS),
        *map(keys.stored, (keys.QUEUE_JOBS, f"{keys.QUEUE_USE}/*", keys.GROWTH)),
        f"{built.PREFIX}/*",
    )
    return policies.document(
        policies.allow("SessionManager", SESSION_ACTIONS, "*"),
        # which instances still run; EC2 supports no narrower resource for it
        policies.allow("Look", ["ec2:DescribeInstances"], "*"),
        policies.allow(
            "QueueKey", ["secretsmanager:GetSecretValue", "secretsmanager:PutSecretValue"], secret_arn
        ),
        policies.allow("Read", ["s3:GetObject"], [pulumi.Output.concat(records, f"/{key}") for key in read]),
        policies.allow("Absence", ["s3:ListBucket"], records),
        policies.allow(
            "Say",
            ["s3:PutObject"],
            [
                pulumi.Output.concat(records, f"/{key}")
                for key in map(keys.stored, (keys.QUEUE_NEED, keys.QUEUE_JOBS, f"{keys.QUEUE_USE}/*"))
            ],
        ),
        policies.allow(
            "Keys",
            ["kms:Decrypt", "kms:GenerateDataKey"],
            args.key_arn,
            {"StringEquals": {"kms:ViaService": vias}},
        ),
        *instance_logs.write_statements(stack, QUEUE),
    )

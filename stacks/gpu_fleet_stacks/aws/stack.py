"""An AWS environment: its components and their dependencies."""

from typing import Any

import pulumi
import pulumi_aws as aws

from gpu_fleet_stacks.aws import functions, scheduled_functions, submit, user_policies
from gpu_fleet_stacks.aws.budget import Budget, BudgetArgs
from gpu_fleet_stacks.aws.dashboard import Dashboard, DashboardArgs
from gpu_fleet_stacks.aws.endpoints import Endpoints, EndpointsArgs
from gpu_fleet_stacks.aws.firewall import ENDPOINTS, IMAGE_BUILDER, Firewall, FirewallArgs
from gpu_fleet_stacks.aws.fleet import Fleet, FleetArgs
from gpu_fleet_stacks.aws.function_roles import FunctionInputs
from gpu_fleet_stacks.aws.image import Image, ImageArgs
from gpu_fleet_stacks.aws.instance_logs import InstanceLogs, InstanceLogsArgs
from gpu_fleet_stacks.aws.keys import Keys, KeysArgs
from gpu_fleet_stacks.aws.network import Network, NetworkArgs
from gpu_fleet_stacks.aws.queue import QueueArgs, QueueController
from gpu_fleet_stacks.aws.replica import Replica, ReplicaArgs
from gpu_fleet_stacks.aws.sessions import SessionDocuments
from gpu_fleet_stacks.aws.storage import BUCKETS, Storage, StorageArgs
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.cost import notice
from gpu_fleet_stacks.payload import sweep_policy
from gpu_fleet_stacks.settings import Stack, organization

# Every service a component of this half calls, by the provider's names: an emulator answers for all of them.
EMULATED_SERVICES = (
    "autoscaling",
    "budgets",
    "cloudtrail",
    "cloudwatch",
    "ec2",
    "efs",
    "events",
    "fsx",
    "iam",
    "kms",
    "lambda_",
    "logs",
    "s3",
    "scheduler",
    "sns",
    "sqs",
    "ssm",
    "sts",
)


def build(stack: Stack) -> dict[str, Any]:
    """Declare the whole environment.

    Returns:
        Outputs for the next command, by plain names; none of them is secret.

    Raises:
        OvercommitError: the worst month exceeds the budget; nothing was declared.
    """
    cost = notice.announce_cost(stack)
    notice.announce_image(stack)
    name = naming.prefixed(stack.name)
    asks = organization.asks(stack)
    own = pulumi.ResourceOptions(providers=[provider(stack)], transformations=asks)
    policy = sweep_policy.policy_text(stack)
    keys = Keys(name, KeysArgs(stack), own)
    network = Network(name, NetworkArgs(stack, keys.key_arn, keys), own)
    inside = FirewallArgs(stack, network.vpc_id, network.cidr, network.s3_prefix_list_id)
    firewall = Firewall(name, inside, own)
    subnet_ids = network.private_subnet_ids
    surroundings: list[pulumi.Resource] = [network, firewall]
    if stack.network.interface_endpoints:
        group = firewall.group_ids[ENDPOINTS]
        endpoints = EndpointsArgs(stack, network.vpc_id, list(subnet_ids.values()), group)
        surroundings.append(Endpoints(name, endpoints, own))
    storage = Storage(
        name,
        StorageArgs(stack, keys.key_arn, keys, subnet_ids, firewall.group_ids, firewall, policy),
        own,
    )
    surroundings.append(storage)
    replicas: dict[str, str] = {}
    if stack.storage.replica_region is not None:
        there = provider(stack, stack.storage.replica_region)
        replicas = Replica(name, ReplicaArgs(stack, keys.key_arn, storage, there), own).bucket_uris
    if stack.logs.instances:
        surroundings.append(InstanceLogs(name, InstanceLogsArgs(stack, keys.key_arn), own))
    budget = Budget(name, BudgetArgs(stack, keys.key_arn), own)
    image = Image(
        name,
        ImageArgs(
            stack=stack,
            key_arn=keys.key_arn,
            subnet_ids=subnet_ids,
            group_id=firewall.group_ids.get(IMAGE_BUILDER),
            records_bucket_arn=storage.bucket_arns["records"],
            topic_arn=budget.topic_arn,
        ),
        own,
    )
    queue: QueueController | None = None
    if stack.queued:
        queue = QueueController(
            name,
            QueueArgs(
                stack=stack,
                image_id=image.image_id,
                key_arn=keys.key_arn,
                autoscaling_role_arn=keys.autoscaling_role_arn,
                subnet_id=subnet_ids[stack.network.home_zone],
                group_ids=firewall.group_ids,
                bucket_arns=storage.bucket_arns,
                home=storage.home_dns_name,
                surroundings=surroundings,
            ),
            own,
        )
    fleets = {
        pool.name: Fleet(
            naming.prefixed(stack.name, pool.name),
            FleetArgs(
                stack=stack,
                pool=pool,
                image_id=image.image_id,
                key_arn=keys.key_arn,
                autoscaling_role_arn=keys.autoscaling_role_arn,
                subnet_ids=subnet_ids,
                group_id=firewall.group_ids[pool.name],
                bucket_arns=storage.bucket_arns,
                home=storage.home_dns_name,
                scratch=storage.scratch_dns_name,
                scratch_mount_name=storage.scratch_mount_name,
                surroundings=surroundings,
                queue=queue.join if queue else None,
            ),
            own,
        )
        for pool in stack.pools
    }
    inputs = FunctionInputs(
        stack=stack,
        policy=policy,
        key_arn=keys.key_arn,
        records_arn=storage.bucket_arns["records"],
        data_arn=storage.bucket_arns["data"],
        topic_arn=budget.topic_arn,
        pipeline_arns=image.pipeline_arns,
    )
    running = functions.declare(name, scheduled_functions.rows(stack), inputs, own)
    SessionDocuments(name, stack, own)
    submit.declare(name, stack, own)
    groups = {pool: fleet.group_names for pool, fleet in fleets.items()}
    dashboard = Dashboard(name, DashboardArgs(stack, groups), own)
    return {
        "region": stack.region,
        "key_arn": keys.key_arn,
        "vpc_id": network.vpc_id,
        "private_subnet_ids": subnet_ids,
        "security_group_ids": firewall.group_ids,
        "bucket_uris": {kind: f"s3://{stack.bucket_name(kind)}" for kind in BUCKETS},
        "replica_bucket_uris": replicas,
        "home_dns_name": storage.home_dns_name,
        "scratch_dns_name": storage.scratch_dns_name,
        "topic_arn": budget.topic_arn,
        "group_names": groups,
        "launch_template_ids": {pool: fleet.launch_template_id for pool, fleet in fleets.items()},
        "image_pipeline_id": image.pipeline_id,
        "image_parameter": image.parameter,
        "reaper_function_name": running["reaper"],
        "capacity_function_name": running["capacity"],
        "people_policy": user_policies.people_policy(inputs),
        "policy": policy,
        "instance_log": stack.instance_log,
        "metric_namespace": naming.metric_namespace(stack.name),
        "console_url": console_url(stack),
        "dashboard_url": dashboard.url,
        "cost": cost,
    }


def provider(stack: Stack, replica_region: str | None = None) -> aws.Provider:
    """Return the provider of one region of one account, or an emulator that needs neither to be real."""
    name = naming.prefixed(stack.name, *(("replica",) if replica_region else ()))
    region = replica_region or stack.region
    if stack.endpoint_url is None:
        return aws.Provider(name, region=region, allowed_account_ids=[stack.account_id])
    services = (*EMULATED_SERVICES, *(("secretsmanager",) if stack.queued else ()))
    return aws.Provider(
        name,
        region=region,
        access_key="emulator",
        secret_key="emulator",  # noqa: S106 - an emulator takes any
        endpoints=[aws.ProviderEndpointArgs(**dict.fromkeys(services, stack.endpoint_url))],
        s3_use_path_style=True,
        skip_credentials_validation=True,
        skip_metadata_api_check=True,
        skip_region_validation=True,
    )


def console_url(stack: Stack) -> str:
    """Return the address of the stack's groups in the console."""
    suffix = "amazonaws-us-gov.com" if stack.region.startswith("us-gov-") else "aws.amazon.com"
    return f"https://{stack.region}.console.{suffix}/ec2/home?region={stack.region}#AutoScalingGroups:"

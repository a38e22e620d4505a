"""An Alibaba Cloud environment: its components and their dependencies."""

from typing import Any

import pulumi
import pulumi_alicloud as alicloud

from gpu_fleet_stacks.alicloud import existing_files, functions, scheduled_functions, submit, user_policies
from gpu_fleet_stacks.alicloud.budget import Budget, BudgetArgs
from gpu_fleet_stacks.alicloud.endpoints import Endpoints, EndpointsArgs
from gpu_fleet_stacks.alicloud.firewall import ENDPOINTS, QUEUE, Firewall, FirewallArgs
from gpu_fleet_stacks.alicloud.fleet import Fleet, FleetArgs
from gpu_fleet_stacks.alicloud.function_roles import FunctionInputs
from gpu_fleet_stacks.alicloud.image import Image, ImageArgs
from gpu_fleet_stacks.alicloud.instance_logs import InstanceLogs, InstanceLogsArgs
from gpu_fleet_stacks.alicloud.keys import Keys, KeysArgs
from gpu_fleet_stacks.alicloud.monitor_group import MonitorGroup, MonitorGroupArgs
from gpu_fleet_stacks.alicloud.network import Network, NetworkArgs
from gpu_fleet_stacks.alicloud.queue import QueueArgs, QueueController
from gpu_fleet_stacks.alicloud.replica import Replica, ReplicaArgs
from gpu_fleet_stacks.alicloud.storage import BUCKETS, Storage, StorageArgs
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.cost import notice
from gpu_fleet_stacks.payload import sweep_policy
from gpu_fleet_stacks.settings import Pool, Stack, organization


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
    network = Network(name, NetworkArgs(stack, keys.key_id, keys.key_arn, keys), own)
    mounts = existing_files.look_up(stack, network)
    foreign = {purpose: files.network for purpose, files in mounts.items()}
    rooms = FirewallArgs(stack, network.vpc_id, network.private_networks, foreign)
    firewall = Firewall(name, rooms, own)
    subnet_ids = network.private_subnet_ids
    surroundings: list[pulumi.Resource] = [network, firewall]
    if stack.network.interface_endpoints:
        endpoints = EndpointsArgs(stack, network.vpc_id, subnet_ids, firewall.group_ids[ENDPOINTS])
        surroundings.append(Endpoints(name, endpoints, own))
    networks = network.private_networks
    inside = StorageArgs(stack, keys.key_id, network.vpc_id, subnet_ids, networks, policy, mounts)
    storage = Storage(name, inside, own)
    surroundings.append(storage)
    replicas: dict[str, str] = {}
    if stack.storage.replica_region is not None:
        there = provider(stack, stack.storage.replica_region)
        replicas = Replica(name, ReplicaArgs(stack, keys.key_arn, storage, there), own).bucket_uris
    if stack.logs.instances:
        surroundings.append(InstanceLogs(name, InstanceLogsArgs(stack, keys.key_id, keys.key_arn), own))
    image = Image(name, ImageArgs(stack, subnet_ids, storage.bucket_names["records"]), own)
    budget = Budget(name, BudgetArgs(stack), own)
    metrics = MonitorGroup(name, MonitorGroupArgs(stack, budget.contact_group), own)

    queue: QueueController | None = None
    if stack.queued:
        queue = QueueController(
            name,
            QueueArgs(
                stack=stack,
                image_id=image.image_id,
                key_id=keys.key_id,
                key_arn=keys.key_arn,
                subnet_id=subnet_ids[stack.network.home_zone],
                network=networks[stack.network.home_zone],
                group_id=firewall.group_ids[QUEUE],
                bucket_arns=storage.bucket_arns,
                home=storage.home_dns_name,
                surroundings=surroundings,
            ),
            own,
        )

    def fleet(pool: Pool) -> Fleet:
        args = FleetArgs(
            stack=stack,
            pool=pool,
            image_id=image.image_id,
            key_id=keys.key_id,
            key_arn=keys.key_arn,
            subnet_ids=subnet_ids,
            group_id=firewall.group_ids[pool.name],
            bucket_arns=storage.bucket_arns,
            home=storage.home_dns_name,
            scratch=storage.scratch_dns_name,
            monitor_group=metrics.group_id,
            surroundings=surroundings,
            queue=queue.join if queue else None,
        )
        return Fleet(naming.prefixed(stack.name, pool.name), args, own)

    fleets = {pool.name: fleet(pool) for pool in stack.pools}
    records = storage.bucket_arns["records"]
    inputs = FunctionInputs(
        stack=stack,
        policy=policy,
        key_id=keys.key_id,
        key_arn=keys.key_arn,
        records_arn=records,
        data_arn=storage.bucket_arns["data"],
        contact_group=budget.contact_group,
        pipeline_id=image.pipeline_id,
    )
    running = functions.declare(name, scheduled_functions.rows(stack), inputs, own)
    commands = submit.declare(name, stack, own)
    return {
        "region": stack.region,
        "key_arn": keys.key_arn,
        "vpc_id": network.vpc_id,
        "private_subnet_ids": subnet_ids,
        "security_group_ids": firewall.group_ids,
        "bucket_uris": {kind: f"oss://{stack.bucket_name(kind)}" for kind in BUCKETS},
        "replica_bucket_uris": replicas,
        "home_dns_name": storage.home_dns_name,
        "scratch_dns_name": storage.scratch_dns_name,
        "contact_group": budget.contact_group,
        "monitor_group_id": metrics.group_id,
        "group_names": {pool: fleet.group_names for pool, fleet in fleets.items()},
        "group_ids": {pool: fleet.group_ids for pool, fleet in fleets.items()},
        "launch_template_ids": {pool: fleet.launch_template_id for pool, fleet in fleets.items()},
        "image_pipeline_id": image.pipeline_id,
        "imported_image_id": image.imported_id,
        "reaper_function_name": running["reaper"],
        "capacity_function_name": running["capacity"],
        "people_policy": user_policies.people_policy(inputs),
        "operator_policy": user_policies.operator_policy(stack),
        "submit_policies": submit.people_policies(stack, records, commands),
        "policy": policy,
        "instance_log": stack.instance_log,
        "metric_namespace": naming.metric_namespace(stack.name),
        "console_url": console_url(stack),
        "cost": cost,
    }


def provider(stack: Stack, replica_region: str | None = None) -> alicloud.Provider:
    """Return the provider of one region, with the credentials of the environment.

    It cannot refuse another account before it acts. So names and permissions hold the account id, and
    resources that another account's credentials make have no permission to work.
    """
    name = naming.prefixed(stack.name, *(("replica",) if replica_region else ()))
    region = replica_region or stack.region
    return alicloud.Provider(name, region=region, account_id=stack.account_id, protocol="HTTPS")


def console_url(stack: Stack) -> str:
    """Return the address of the stack's groups in the console."""
    return f"https://essnew.console.aliyun.com/?regionId={stack.region}#/scaling/{stack.region}"

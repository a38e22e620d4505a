"""The stack's facts for an instance: ``/etc/gpu-fleet/instance.toml``, written by cloud-init. Pure.

The agent, the trainer's launcher and the readiness gate read this file; it holds no secret.
"""

import json

import tomli_w

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Pool, Stack

PATH = "/etc/gpu-fleet/instance.toml"
QUEUE_PATH = "/etc/gpu-fleet/queue.json"
LIFECYCLE_HOOK = "gpu-fleet-drain"


def instance_toml(
    stack: Stack,
    pool: Pool,
    checkpoint_uri: str,
    data_uri: str,
    *,
    home: str = "",
    scratch: str = "",
    scratch_mount_name: str = "",
    monitor_group: str = "",
    records_uri: str = "",
    user_role: str = "",
) -> str:
    """Return the text of ``instance.toml``.

    Args:
        checkpoint_uri: where the trainer saves checkpoints, such as ``s3://bucket/pool``.
        home: DNS name of the shared home, or empty.
        scratch: DNS name of the shared Lustre or CPFS scratch, or empty.
        scratch_mount_name: Lustre's mount name of that file system, or empty.
        monitor_group: CloudMonitor's application group for the metrics of Auto Scaling's alarms, or empty.
        records_uri: where the agent acknowledges the sweep's marks, such as ``s3://bucket/reaper``.
        user_role: ARN of the role that the instance's own role assumes for its users.
    """
    known = catalog.load()
    return tomli_w.dumps(
        {
            "schema_version": 1,
            "cloud": str(stack.cloud),
            "region": stack.region,
            "stack": stack.name,
            "pool": pool.name,
            "market": str(pool.market),
            "checkpoint_uri": checkpoint_uri,
            "data_uri": data_uri,
            "metric_namespace": naming.metric_namespace(stack.name),
            "lifecycle_hook": LIFECYCLE_HOOK,
            "home_file_system": home,
            "scratch_file_system": scratch,
            "monitor_group": monitor_group,
            "records_uri": records_uri,
            "user_role": user_role,
            "mig_profile": pool.mig_profile or "",
            **_log(stack),
            **({"scratch_mount_name": scratch_mount_name} if scratch_mount_name else {}),
            **_existing_buckets(stack),
            "expected": {name: _expected(known.get(name), pool) for name in pool.types},
        }
    )


def controller_toml(stack: Stack, *, home: str, records_uri: str) -> str:
    """Return ``instance.toml`` of the queue's controller, which is in no pool and runs no agent and no gate.

    Args:
        home, records_uri: as of ``instance_toml``.
    """
    return tomli_w.dumps(
        {
            "schema_version": 1,
            "cloud": str(stack.cloud),
            "region": stack.region,
            "stack": stack.name,
            "pool": "",
            "data_uri": "",
            "metric_namespace": naming.metric_namespace(stack.name),
            "lifecycle_hook": "",
            "home_file_system": home,
            "records_uri": records_uri,
            **_log(stack),
        }
    )


def queue_json(role: str, address: str, secret: str) -> str:
    """Return ``/etc/gpu-fleet/queue.json``: the stack's queue for an instance.

    Args:
        role: ``controller`` or ``node``.
        secret: name of the secret with munge's key; the key itself is in no user data.
    """
    return json.dumps({"role": role, "address": address, "secret": secret}, indent=1) + "\n"


def _log(stack: Stack) -> dict[str, str]:
    """Return the destination of the logs, without which ``gpu-logs.service`` does not start."""
    return {"instance_log": stack.instance_log} if stack.instance_log else {}


def _existing_buckets(stack: Stack) -> dict[str, list[str]]:
    """Return the buckets that ``bucket@NAME`` mounts beside the stack's own.

    Without any the key is left out, so that the file of other stacks does not change.
    """
    buckets = stack.storage.existing.buckets
    scheme = "s3" if stack.cloud is Cloud.AWS else "oss"
    return {"existing_bucket_uris": [f"{scheme}://{name}" for name in buckets]} if buckets else {}


def _expected(kind: catalog.InstanceType, pool: Pool) -> dict[str, int]:
    """Return the hardware that the readiness gate must find on an instance of this type."""
    return {
        "gpus": kind.gpu_count,
        "gpu_memory_gib": kind.gpu_memory_gib,
        "efa_interfaces": kind.efa_interfaces if pool.efa else 0,
        "erdma_interfaces": kind.erdma_interfaces if pool.erdma else 0,
    }

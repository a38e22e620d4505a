"""Tells a machine's scaling group that it is of no use, so that the group replaces it."""

import logging
from collections.abc import Mapping
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

LOG = logging.getLogger(__name__)


def report_unhealthy(
    instance_file: Mapping[str, Any], instance_id: str | None, why: str, autoscaling: Any = None
) -> bool:
    """Mark this machine unhealthy in its group.

    Args:
        instance_file: what the stack told the machine.
        instance_id: as the metadata service says; without one nothing can be told.
        why: for the log.
        autoscaling: a boto3 client; by default one of the machine's region.

    Returns:
        whether the group was told.
    """
    if instance_file.get("cloud") != "aws" or instance_id is None:
        # Alibaba Cloud's groups look at the instance's own state; the sweep reads ready.json's metric there
        LOG.error("event=unhealthy-not-told instance=%s why=%r", instance_id, why)
        return False
    client = autoscaling or boto3.client("autoscaling", region_name=str(instance_file["region"]))
    try:
        # the grace period is for machines that still boot; this one has looked and knows
        client.set_instance_health(
            InstanceId=instance_id, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
        )
    except (BotoCoreError, ClientError) as error:
        LOG.error("event=unhealthy-not-told instance=%s why=%r reason=%r", instance_id, why, str(error))
        return False
    LOG.warning("event=unhealthy-told instance=%s why=%r", instance_id, why)
    return True

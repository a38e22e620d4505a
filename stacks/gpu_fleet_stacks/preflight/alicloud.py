"""Every check of Alibaba Cloud, in the order in which an operator would ask."""

from collections.abc import Iterator
from typing import Any

from gpu_fleet_stacks.clients.alicloud import Alicloud
from gpu_fleet_stacks.preflight.alicloud_existing import existing
from gpu_fleet_stacks.preflight.alicloud_files import file_systems
from gpu_fleet_stacks.preflight.alicloud_owned import account, owned
from gpu_fleet_stacks.preflight.alicloud_quotas import quotas
from gpu_fleet_stacks.preflight.alicloud_room import room
from gpu_fleet_stacks.preflight.alicloud_services import Reachable, services
from gpu_fleet_stacks.preflight.findings import Finding
from gpu_fleet_stacks.settings import Stack


def look(
    stack: Stack, cloud: Alicloud | None = None, reachable: Reachable | None = None, s3: Any = None
) -> Iterator[Finding]:
    """Yield every answer of Alibaba Cloud.

    Args:
        cloud: makes the calls; by default with the credentials of the environment.
        reachable: whether a host answers from here; by default by a connection.
        s3: boto3's client for OSS; by default with the credentials of the environment.

    Raises CannotCheckError if there are no credentials, or the cloud does not answer.
    """
    asked = cloud or Alicloud(stack.region)
    yield account(stack, asked)
    yield from services(stack, asked, reachable, s3)
    yield from quotas(stack, asked)
    yield from room(stack, asked)
    yield from owned(stack, asked)
    yield from existing(stack, asked)
    yield from file_systems(stack, asked)

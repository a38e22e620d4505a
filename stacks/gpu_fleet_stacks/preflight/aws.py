"""Every check of AWS, in the order in which an operator would ask."""

from collections.abc import Iterator

from gpu_fleet_stacks.clients.aws import Aws, Clients, clients_in
from gpu_fleet_stacks.preflight.aws_buckets import buckets
from gpu_fleet_stacks.preflight.aws_existing import existing
from gpu_fleet_stacks.preflight.aws_files import file_systems
from gpu_fleet_stacks.preflight.aws_owned import account, owned
from gpu_fleet_stacks.preflight.aws_quotas import quotas
from gpu_fleet_stacks.preflight.aws_room import room
from gpu_fleet_stacks.preflight.findings import Finding
from gpu_fleet_stacks.settings import Stack


def look(stack: Stack, clients: Clients | None = None) -> Iterator[Finding]:
    """Yield every answer of AWS.

    Args:
        clients: service -> boto3 client; by default with the credentials of the environment.

    Raises CannotCheckError if there are no credentials, or the cloud does not answer.
    """
    aws = Aws(clients or clients_in(stack.region, stack.endpoint_url))
    yield account(stack, aws)
    yield from quotas(stack, aws)
    yield from room(stack, aws)
    yield from owned(stack, aws)
    yield from existing(stack, aws)
    yield from buckets(stack, aws)
    yield from file_systems(stack, aws)

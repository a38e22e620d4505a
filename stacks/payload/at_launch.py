"""What instances of a pool are given at their launch, of values that Pulumi knows once others stand."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi

from stacks.payload import user_data
from stacks.settings import Pool, Stack


@dataclass(frozen=True)
class QueueJoin:
    """What makes an instance a node of the stack's queue.

    Attributes:
        secret_arn: the secret with munge's key.
        node_file: ``queue.json`` of a node.
    """

    secret_arn: pulumi.Output[str]
    node_file: pulumi.Output[str]


def encoded_user_data(
    stack: Stack,
    pool: Pool,
    scheme: str,
    names: Mapping[str, pulumi.Output[str]],
    queue: pulumi.Output[str] | None,
) -> pulumi.Output[str]:
    """Base64 of the cloud-config, as launch templates of both clouds want it.

    Args:
        scheme: of the stack's buckets.
        names: of what the pool's instances find by name, as ``user_data.encoded`` calls them.
        queue: ``queue.json`` of a node; None without a queue.

    Raises:
        StacksError: it would be too long. That is said now, in words; inside ``apply`` it is a traceback.
    """

    def encoded(known: Mapping[str, str]) -> str:
        return user_data.encoded(stack, pool, scheme, **known)

    longest = dict.fromkeys(names, user_data.LONGEST_NAME)
    encoded(longest if queue is None else longest | {"queue": user_data.LONGEST_QUEUE})
    return pulumi.Output.all(**names, **({} if queue is None else {"queue": queue})).apply(encoded)

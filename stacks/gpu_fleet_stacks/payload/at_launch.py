"""User data of a pool's instances, from values that Pulumi knows only once other resources exist."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi

from gpu_fleet_stacks.payload import user_data
from gpu_fleet_stacks.settings import Pool, Stack


@dataclass(frozen=True)
class QueueJoin:
    """Values that make an instance a node of the stack's queue.

    Attributes:
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
    """Return the cloud-config in base64, as launch templates of both clouds need it.

    Args:
        names: names that the pool's instances use; the keys are arguments of ``user_data.encoded``.
        queue: ``queue.json`` of a node; None without a queue.

    Raises:
        StacksError: the user data could be too long. It is checked now, since an error inside ``apply`` is
            shown as a traceback.
    """

    def encoded(known: Mapping[str, str]) -> str:
        return user_data.encoded(stack, pool, scheme, **known)

    longest = dict.fromkeys(names, user_data.LONGEST_NAME)
    encoded(longest if queue is None else longest | {"queue": user_data.LONGEST_QUEUE})
    return pulumi.Output.all(**names, **({} if queue is None else {"queue": queue})).apply(encoded)

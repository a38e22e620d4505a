"""What a stack with a queue needs beside it. Pure."""

from collections.abc import Callable, Iterator

from stacks.errors import Problem
from stacks.settings.schema import ImageMode, Pool, Stack

# Words that Slurm reads as something else than a partition's name, and the queue's own security group.
OWN_NAMES = ("all", "default", "queue")


def _homes(stack: Stack) -> Iterator[Problem]:
    if stack.queued and not stack.storage.home:
        allowed = "must be true where queue is slurm: jobs find their files there, the controller its state"
        yield Problem("storage.home", False, allowed)


def _accounts(stack: Stack) -> Iterator[Problem]:
    if stack.queued and not stack.access.accounts:
        yield Problem("access.people", {}, "must name users where queue is slurm: jobs run as their accounts")


def _image(stack: Stack) -> Iterator[Problem]:
    if stack.queued and stack.image.mode is not ImageMode.BOOTSTRAP:
        allowed = "must be bootstrap where queue is slurm: the first boot brings Slurm's packages"
        yield Problem("image.mode", str(stack.image.mode), allowed)


def _packages(stack: Stack) -> Iterator[Problem]:
    if stack.queued and not stack.network.reaches_internet:
        allowed = (
            "must lead to the internet where queue is slurm: Slurm comes from the distribution's archive"
        )
        key = "network.existing.internet" if stack.network.existing else "network.nat"
        value = False if stack.network.existing else str(stack.network.nat)
        yield Problem(key, value, allowed)


def _name(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if stack.queued and pool.name in OWN_NAMES:
        allowed = f"is a word of the queue's own; any name but {', '.join(OWN_NAMES)}"
        yield Problem(f"{key}.name", pool.name, allowed)


def _whole_gpus(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if stack.queued and pool.mig_profile is not None:
        allowed = "must be left out where queue is slurm: jobs are given whole GPUs"
        yield Problem(f"{key}.mig_profile", pool.mig_profile, allowed)


def _one_zone(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    """Slurm does not know which instances stand close together."""
    fabric = "efa" if pool.efa else "erdma"
    if stack.queued and (pool.efa or pool.erdma) and len(stack.zones_of(pool)) > 1:
        allowed = f"must be one zone where queue is slurm and {fabric} is on: a job would reach over several"
        yield Problem(f"{key}.zones", list(pool.zones), allowed)


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (_homes, _accounts, _image, _packages)
POOL_RULES = (_name, _whole_gpus, _one_zone)

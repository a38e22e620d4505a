"""Rules for a stack with a queue. Pure."""

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from gpu_fleet_image.core.roster import NO_TEAM
from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings.schema import ImageMode, OnExceeded, Pool, Stack, TeamSettings

# Words with another meaning to Slurm than a partition's name, and the queue's own security group.
OWN_NAMES = ("all", "default", "queue")
WITHOUT_TEAM = NO_TEAM  # the account in Slurm of users without a team


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
        yield Problem(*stack.network.way_out, allowed)


def _teams(stack: Stack) -> Iterator[Problem]:
    directory = stack.access.directory.teams if stack.access.directory else {}
    people = stack.access.people.values()
    named = sorted({person.team or WITHOUT_TEAM for person in people} | directory.keys())
    for team, said in sorted(stack.teams.items()):
        if not stack.queued:
            yield from _budget_alone(f"teams.{team}", said)
        elif said.on_exceeded is OnExceeded.FREEZE and said.monthly is None:
            yield Problem(f"teams.{team}.on_exceeded", "freeze", f"needs teams.{team}.monthly")
    for team in stack.teams.keys() - set(named):
        near = get_close_matches(team, named, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        allowed = f"has no members: it is neither in access.people nor in access.directory{meant}"
        yield Problem("teams", team, allowed)


def _budget_alone(key: str, team: TeamSettings) -> Iterator[Problem]:
    """Require a budget and nothing else of a team, whose share and limit are the queue's."""
    if team.monthly is None:
        yield Problem(f"{key}.monthly", None, "required without queue: slurm")
    for name, value, default in (("share", team.share, 1), ("max_gpus", team.max_gpus, None)):
        if value != default:
            yield Problem(f"{key}.{name}", value, "is for queue: slurm only; leave it out")


def _limits(stack: Stack) -> Iterator[Problem]:
    """Require room for one instance: a submitted run takes whole instances and would wait for ever."""
    known = catalog.load()
    kinds = [known.find(name) for pool in stack.pools for name in pool.types]
    least = min((kind.gpu_count for kind in kinds if kind and kind.gpu_count), default=0)
    for team, settings in sorted(stack.teams.items()):
        if settings.max_gpus is not None and settings.max_gpus < least:
            allowed = f"must be {least} or more: an instance of the smallest pool with GPUs has {least}"
            yield Problem(f"teams.{team}.max_gpus", settings.max_gpus, allowed)


def _name(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if stack.queued and pool.name in OWN_NAMES:
        allowed = f"is reserved by the queue; any name but {', '.join(OWN_NAMES)}"
        yield Problem(f"{key}.name", pool.name, allowed)


def _whole_gpus(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    if stack.queued and pool.mig_profile is not None:
        allowed = "must be left out where queue is slurm: jobs are given whole GPUs"
        yield Problem(f"{key}.mig_profile", pool.mig_profile, allowed)


def _one_zone(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    """Require one zone for a pool with a fast network: Slurm does not know where instances are."""
    fabric = "efa" if pool.efa else "erdma"
    if stack.queued and (pool.efa or pool.erdma) and len(stack.zones_of(pool)) > 1:
        allowed = f"must be one zone where queue is slurm and {fabric} is on: a job would reach over several"
        yield Problem(f"{key}.zones", list(pool.zones), allowed)


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (
    *(_homes, _accounts, _image, _packages, _teams, _limits),
)
POOL_RULES = (_name, _whole_gpus, _one_zone)

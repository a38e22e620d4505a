"""``gpu-fleet take`` and ``gpu-fleet give-back``: request instances, and return them."""

import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import click

from gpu_fleet_image.console.users.connect import RUNNING, chosen, described
from gpu_fleet_image.controllers.meter.budget_check import read_spending
from gpu_fleet_image.controllers.meter.spending import Spending
from gpu_fleet_image.controllers.mover import mover
from gpu_fleet_image.controllers.mover.requests import WAIT
from gpu_fleet_image.controllers.sweep.situation import Situation, shortest_idle_time
from gpu_fleet_image.controllers.sweep.verdict import if_nothing_ran
from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.capacity import (
    LONGEST_HOURS,
    REQUEST_KEY,
    REQUESTS,
    STATE,
    TAG_TAKEN,
    Fate,
    MoverState,
    Request,
    owner_of,
)
from gpu_fleet_image.core.cloud import Query, Span, SweepCloud
from gpu_fleet_image.core.marks import give_back_of, taken_at
from gpu_fleet_image.core.metrics import METRIC_GATE_PASSED
from gpu_fleet_image.core.model import (
    TAG_GIVE_BACK,
    TAG_IDLE_SINCE,
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_REAP_AFTER,
    Instance,
    Inventory,
    Verdict,
)
from gpu_fleet_image.core.options import POOL_NAME, stack_options
from gpu_fleet_image.core.place import Asked, Place, subject
from gpu_fleet_image.core.policy import CapacityPolicy, Policy
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, nearest
from gpu_fleet_image.core.shared_options import FiniteRange
from gpu_fleet_image.core.times import format_span, format_time

LOOK_EVERY_S = 5.0
# After the last group was tried: an instance boots and passes its gate, slowest without a baked image.
BOOT = timedelta(minutes=45)
_HEARTBEATS = timedelta(minutes=10)
EXIT_FAILED = 1
HELP = {
    "quota": "gpu-fleet preflight names the quota, and the command that asks for more",
    "limit": "gpu-fleet preflight names the quota, and the command that asks for more",
    "": "another pool, zone or type (network.zones, pool.types), a capacity block, or a later hour",
}


@dataclass(frozen=True)
class Desk:
    """A user's access to requests and their results.

    Attributes:
        wait: sleeps for this many seconds.
    """

    cloud: SweepCloud
    policy: Policy
    place: Place
    now: Callable[[], datetime]
    wait: Callable[[float], None]

    def ask(self, pool: str, count: int, hours: float | None, caller: str) -> str:
        """Write a request; return its key. Raises CloudError."""
        return self._write(caller, {"pool": pool, "count": count, "hours": hours})

    def withdraw(self, key: str, caller: str) -> None:
        """Write the withdrawal of a request. Raises CloudError."""
        self._write(caller, {"withdraws": key})

    def _write(self, caller: str, content: Mapping[str, object]) -> str:
        """Write a request where the mover reads it; return its key. Raises CloudError."""
        now = self.now()
        key = f"{now:%Y-%m-%d}/{caller}/{now:%H%M%SZ}-{secrets.token_hex(4)}"
        if REQUEST_KEY.fullmatch(key) is None:
            raise ConfigurationError(
                f"the cloud's name of these credentials, {caller!r}, cannot make a request"
            )
        if self.cloud.store is None:
            raise ConfigurationError("no ledger is known for this stack")
        whole = {"schema_version": 1, **content, "at": format_time(now)}
        self.cloud.store.put(f"{REQUESTS}/{key}.json", whole)
        return key

    def fate(self, key: str) -> Request | None:
        """Return a request's state; None if the mover has not seen it yet. Raises CloudError."""
        stored = self.cloud.store.get(STATE) if self.cloud.store else None
        return MoverState.from_json(stored.content, STATE).requests.get(key) if stored else None

    def ready(self, ids: Iterable[str]) -> dict[str, str]:
        """Return instance -> ``ready``, ``unfit``, or an empty text while the gate's result is unknown."""
        now = self.now()
        queries = [Query(instance_id, METRIC_GATE_PASSED, 60) for instance_id in ids]
        answers, _ = self.cloud.heartbeats.read(queries, Span(now - _HEARTBEATS, now))
        said = {}
        for query, answer in answers.items():
            newest = max(answer.points, default=None)
            said[query.instance_id] = "" if newest is None else "ready" if newest[1] else "unfit"
        return said


def offer(policy: Policy, spending: Spending | None, pool: str, count: int, hours: float | None) -> str:
    """Return the request, its cost, and the rest of the budget, as a line."""
    price = mover.prices(policy, spending.reading.until if spending else datetime.now(UTC)).get(pool)
    for_time = f" for {hours:g} h" if hours else ""
    what = f"{count} of {pool}{for_time}"
    cost = "price unknown"
    if price is not None:
        whole = f", {price * count * Decimal(str(hours)):,.2f} in all" if hours else ""
        cost = f"at most {price * count:,.2f} {policy.currency} an hour{whole}"
    if spending is None:
        return f"{what}: {cost}; this month's spending is not known yet"
    left = spending.budget.monthly - spending.reading.month_cost
    return f"{what}: {cost}; {left:,.2f} of {spending.budget.monthly:,} {policy.currency} are left this month"


def refusal(policy: Policy, pool: str, count: int) -> str:
    """Return what is wrong with the request itself, before any call; empty if nothing is. Pure."""
    pools: Mapping[str, CapacityPolicy] = {
        name: settings.capacity for name, settings in policy.pools.items() if settings.capacity is not None
    }
    if pool not in pools:
        return (
            f"POOL {pool!r}: no such pool; stack {policy.stack} has {', '.join(pools)}{nearest(pool, pools)}"
        )
    if pools[pool].max_size == 0:
        return f"POOL {pool!r}: takes no new instances, its size.max is 0"
    if count > pools[pool].max_size:
        return f"--count {count}; allowed: up to {pools[pool].max_size}, size.max of {pool}"
    if count > policy.take_max_per_person:
        return f"--count {count}; allowed: up to {policy.take_max_per_person} a user (take.max_per_person)"
    return ""


@click.command(epilog="\b\nExample:\n  gpu-fleet take dev --count 1 --hours 8 --stack aws-dev")
@click.argument("pool", type=POOL_NAME)
@click.option(
    "--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of instances."
)
@click.option(
    "--hours",
    type=FiniteRange(0, LONGEST_HOURS, min_open=True),
    help="Keep them for so long, used or not; by default only the idle rules apply.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@stack_options
def take(pool: str, count: int, hours: float | None, asked: Asked, *, yes: bool) -> None:
    """Take instances of POOL: they start where there is capacity, with you as their owner.

    Shows price and budget, asks for confirmation, waits until each instance has passed its boot check, and
    shows how to connect. Exit code 1 if none could be started.
    """
    asked.refuse_pool("POOL", pool)
    desk = open_desk(asked)
    if problem := refusal(desk.policy, pool, count):
        raise ConfigurationError(problem)
    if not acquire(desk, pool, count, hours, yes=yes):
        sys.exit(EXIT_FAILED)


def acquire(desk: Desk, pool: str, count: int, hours: float | None, *, yes: bool) -> tuple[str, ...]:
    """Request instances after showing the price, and wait for them; return none if there are none.

    Raises:
        Abort: the user does not want them.
        CloudError: the cloud does not answer.
    """
    caller = caller_of(desk.place)
    now = desk.now()
    spending = read_spending(desk.cloud, desk.policy, desk.cloud.instances.fleet(), now)
    click.echo(offer(desk.policy, spending, pool, count, hours))
    if not yes and not click.confirm("Take them?", default=True):
        raise click.Abort
    key = desk.ask(pool, count, hours, caller)
    click.echo(f"requested as {owner_of(key)}; the mover answers within a minute")
    try:
        ready = follow(desk, key)
    except KeyboardInterrupt:
        click.echo(_withdrawn(desk, key, caller), err=True)
        raise
    if not ready:
        return ()
    request = desk.fate(key)
    return tuple(request.instances) if request else ()


def _withdrawn(desk: Desk, key: str, caller: str) -> str:
    """Withdraw a request whose user stopped waiting; return the message for them."""
    stack = desk.policy.stack
    rest = f"gpu-fleet status --stack {stack} shows it; gpu-fleet give-back --stack {stack} returns it"
    try:
        request = desk.fate(key)
        if request is None or request.fate is Fate.OPEN:
            desk.withdraw(key, caller)
    except (CloudError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted again"
        stands = f"the request could not be withdrawn ({why})"
        return f"{stands}: its instances will be yours, and cost money. {rest}"
    came = ", ".join(request.instances) if request else ""
    if request is not None and request.fate is not Fate.OPEN:
        return f"nothing is left to withdraw; your instances, which cost money: {came or 'none'}. {rest}"
    yours = f"{came} and instances that" if came else "instances that"
    return f"the request is withdrawn; {yours} start within the next minute are yours, and cost money. {rest}"


def follow(desk: Desk, key: str) -> bool:
    """Show a request's progress until all instances are ready; return whether they are. Raises CloudError."""
    shown = set[str]()

    def once(text: str) -> None:
        if text not in shown:
            shown.add(text)
            click.echo(text)

    until = desk.now() + WAIT + BOOT
    while desk.now() < until:
        request = desk.fate(key)
        if request is not None:
            for tried in request.tried:
                once(f"no room in {tried}")
            if request.fate in (Fate.REFUSED, Fate.FAILED):
                once(f"{request.fate}: {request.reason}")
                if request.fate is Fate.FAILED:
                    once(f"what may help: {help_for(request.reason)}")
                return False
            said = desk.ready(request.instances) if request.instances else {}
            for instance in request.instances:
                once(_progress(instance, said.get(instance, ""), desk))
            if request.fate is Fate.FILLED and all(
                said.get(instance) == "ready" for instance in request.instances
            ):
                return True
        desk.wait(LOOK_EVERY_S)
    click.echo(
        "not ready within an hour: gpu-fleet status shows what has started; gpu-fleet give-back returns it"
    )
    return False


def _progress(instance: str, said: str, desk: Desk) -> str:
    stack = desk.policy.stack
    return {
        "": f"{instance} starts; waiting for its boot check",
        "ready": f"{instance} is ready: gpu-fleet connect {instance} --stack {stack}",
        "unfit": f"{instance} failed its boot check: the sweep replaces it; gpu-fleet status --stack {stack}",
    }[said]


def help_for(reason: str) -> str:
    """Return the remedy for a cloud's reason of missing capacity. Pure."""
    return next(text for word, text in HELP.items() if word in reason.lower())


def caller_of(place: Place) -> str:
    """Return ``users/NAME`` or ``sessions/ID:NAME``, the cloud's name of the credentials.

    Raises CloudError.
    """
    calls = Calls(lambda: datetime.now(UTC), read_only=True)
    kind, name = clouds.module(place.cloud).caller(place.region, calls)
    return f"{kind}/{name}"


def open_desk(asked: Asked) -> Desk:
    """Return a user's access to the selected stack; raises ReaperError."""
    meant = subject(asked)
    now = lambda: datetime.now(UTC)  # noqa: E731 - a clock
    cloud = clouds.connect(meant.policy, now, environ=meant.environ)
    place = Place(meant.policy.stack, meant.policy.cloud, meant.policy.region)
    return Desk(cloud, meant.policy, place, now, time.sleep)


@click.command("give-back", epilog="\b\nExample:\n  gpu-fleet give-back i-0123456789abcdef0 --stack aws-dev")
@click.argument("instance_id", metavar="[INSTANCE]", required=False)
@click.option("--owner", metavar="NAME", help="Owner of INSTANCE, if another user took it.")
@stack_options
def give_back(instance_id: str | None, owner: str | None, asked: Asked) -> None:
    """Return an instance: the sweep terminates it once nothing runs there and /scratch/keep is saved.

    Its hold ends at once. Without INSTANCE, the only one that you took. An instance of another user needs
    --owner and the cloud's permission to tag it. Its owner is notified first of who gave it back, and the
    times of its pool apply.
    """
    desk = open_desk(asked)
    fleet = desk.cloud.instances.fleet()
    caller = caller_of(desk.place)
    instance = _to_give_back(fleet, instance_id, owner, caller)
    returned = give_back_instance(desk, instance, owner_of(f"2000-01-01/{caller}/0-0"))
    click.echo(f"{described(instance)} is {outlook(desk, fleet, returned)}")


def _to_give_back(fleet: Inventory, instance_id: str | None, owner: str | None, caller: str) -> Instance:
    """Return the selected instance, if the caller may give it back.

    Args:
        owner: its owner, according to the caller; None for their own.
        caller: ``users/NAME`` or ``sessions/ID:NAME``.

    Raises ConfigurationError if there is none, or another user took it and the caller did not name them.
    """
    running = [instance for instance in fleet.instances if instance.state == RUNNING]
    taken = {
        instance.id: instance
        for instance in running
        if REQUEST_KEY.fullmatch(instance.tags.get(TAG_TAKEN, ""))
    }
    shared = {instance.id: instance for instance in running if instance.id not in taken}
    if instance_id in shared:
        raise ConfigurationError(
            f"{described(shared[instance_id])} was not taken: the sweep terminates it once it is idle"
        )
    own = [instance for instance in taken.values() if f"/{caller}/" in instance.tags[TAG_TAKEN]]
    if owner is None and (instance_id is None or instance_id in {instance.id for instance in own}):
        return chosen(own, instance_id, None, None)
    meant = chosen(list(taken.values()), instance_id, None, owner if instance_id is None else None)
    if meant.owner != owner:
        said = "--owner is missing" if owner is None else f"--owner {owner}"
        raise ConfigurationError(
            f"{said}: {described(meant)} was taken by {meant.owner}. If you may give it back in their place, "
            f"add --owner {meant.owner}; they are notified before it is terminated"
        )
    return meant


def give_back_instance(desk: Desk, instance: Instance, by: str) -> Instance:
    """Remove the hold, and ask the sweep; return the instance as it is then. Raises CloudError."""
    taken = taken_at(instance)
    # tags hold whole seconds, and only a later give-back than the taking counts
    at = desk.now() if taken is None else max(desk.now(), taken + timedelta(seconds=1))
    wish = {TAG_GIVE_BACK: f"{format_time(at)} {by}"}
    desk.cloud.instances.tag([instance.id], wish)
    desk.cloud.instances.untag([instance.id], [TAG_KEEP_UNTIL, TAG_KEEP_REASON])
    # its marks are from an earlier time
    gone = (TAG_KEEP_UNTIL, TAG_KEEP_REASON, TAG_IDLE_SINCE, TAG_REAP_AFTER)
    kept = {key: value for key, value in instance.tags.items() if key not in gone}
    return replace(instance, tags=kept | wish)


def outlook(desk: Desk, fleet: Inventory, instance: Instance) -> str:
    """Return what the sweep will do with an instance that was just given back, and what delays that."""
    policy, said = desk.policy, give_back_of(instance)
    pool = policy.pools.get(instance.pool)
    if said is None or pool is None:
        return f"given back, but not terminated for now: pool {instance.pool!r} is not in the policy"
    if policy.dry_run:
        return f"{said}, but not terminated for now: the sweeps of {policy.stack} only plan (reaper.dry_run)"
    others = tuple(other for other in fleet.instances if other.id != instance.id)
    now = Situation(desk.now(), replace(fleet, instances=(*others, instance)), {}, policy)
    decision = if_nothing_ran(now, instance)
    if decision.verdict is not Verdict.MARK:
        why = f"{decision.verdict}: {decision.reason}"
        return f"{said}, but not terminated for now even if it is idle: {why}"
    idle = format_span(shortest_idle_time(instance, pool, now.now, ()))
    grace = "" if said.is_sole else f", {pool.grace_minutes} min after a notice"
    return f"{said}; the sweep is to {pool.action} it once nothing has run there for {idle}{grace}"

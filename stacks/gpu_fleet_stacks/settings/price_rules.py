"""Rules for prices: which items need a price before a stack is built, and which may be assumed. Pure.

A stack whose pools or large disks have no public price has no worst month to compare with its budget. Its
file must give their price under ``budget.assume``. Small items (traffic, addresses, logs) may stay unknown;
sums are then shown as "at least". Unknown is never free.
"""

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from gpu_fleet_stacks import catalog
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings import Market, Pool, Stack
from gpu_fleet_stacks.settings.quantities import Volumes, disk_gib, shared_units

# Storage of this size or more is no small item: it needs a price.
LARGE_GIB = 1000
DISK, CONTROLLER = "disk", "queue_controller"
EVERYTHING = Volumes(
    egress_gb=1, snapshot_gb=1
)  # with what `gpu-fleet cost` counts only where it is asked for


def _types(key: str, pool: Pool, stack: Stack) -> Iterator[Problem]:
    """Require a price for each type; a capacity block is paid before an instance starts."""
    if pool.market is Market.CAPACITY_BLOCK:
        return
    for index, name in enumerate(pool.types):
        kind = catalog.load().find(name)
        if kind is not None and kind.cloud is stack.cloud and kind.price is None:
            yield from _needed(
                stack, f"{key}.types[{index}]", name, name, f"an hour of it in {stack.budget.currency}"
            )


def _needed(stack: Stack, key: str, value: object, name: str, what: str) -> Iterator[Problem]:
    if name not in stack.budget.assume:
        allowed = f"no list has its price, and unknown is never free: name the price of {what}"
        yield Problem(key, value, f"{allowed} in budget.assume: {{{name}: ...}}")


def _disks(stack: Stack) -> Iterator[Problem]:
    if prices.load(stack.cloud).quotes[DISK].amount is not None:
        return
    gib = sum(disk_gib(stack, pool) for pool in stack.pools)
    if gib >= LARGE_GIB:
        what = f"a GiB and month in {stack.budget.currency}"
        yield from _needed(stack, "pools", f"{gib:,} GiB of disks at most", DISK, what)


def _controller(stack: Stack) -> Iterator[Problem]:
    """Require a price for the queue's controller, which runs day and night."""
    if stack.queued and prices.load(stack.cloud).quotes[CONTROLLER].amount is None:
        what = f"an hour of its controller in {stack.budget.currency}"
        yield from _needed(stack, "queue", str(stack.queue), CONTROLLER, what)


def _home(stack: Stack) -> Iterator[Problem]:
    if stack.storage.home and stack.storage.home_gib >= LARGE_GIB:
        yield from _file_system(stack, "home", stack.storage.home_gib)


def _scratch(stack: Stack) -> Iterator[Problem]:
    if stack.storage.scratch_gib >= LARGE_GIB:
        yield from _file_system(stack, "scratch", stack.storage.scratch_gib)


def _file_system(stack: Stack, name: str, gib: int) -> Iterator[Problem]:
    if prices.load(stack.cloud).quotes[name].amount is None:
        what = f"a GiB and month in {stack.budget.currency}"
        yield from _needed(stack, f"storage.{name}_gib", gib, name, what)


def _assumed(stack: Stack) -> Iterator[Problem]:
    """Require that an assumption names what the stack uses and what has no list price in its region."""
    if not stack.budget.assume:
        return
    listed, free = dict(_listed(stack)), set(_to_assume(stack))
    prepaid = {name for pool in stack.pools for name in pool.types} - {*_types_by_the_hour(stack)}
    for name, price in stack.budget.assume.items():
        key = f"budget.assume.{name}"
        if name in prepaid:
            yield Problem(key, str(price), "is used by prepaid capacity blocks alone; leave it out")
        elif name in listed and name not in free:
            yield Problem(key, str(price), f"has a list price of {listed[name]}; leave it out")
        elif name not in free:
            near = get_close_matches(name, free, n=1)
            could = ", ".join(sorted(free)) or "nothing"
            hint = f"did you mean {near[0]!r}?" if near else f"what has no price here: {could}"
            yield Problem(key, str(price), f"names nothing that this stack uses without a list price; {hint}")


def _listed(stack: Stack) -> Iterator[tuple[str, str]]:
    """Yield everything that the stack uses with a list price: its name, and the region of that price."""
    for name in _types_by_the_hour(stack):
        kind = catalog.load().find(name)
        if kind is not None and kind.price is not None:
            yield name, kind.price.region
    listed = prices.load(stack.cloud)
    for what in _items(stack):
        quote = listed.quote(what, stack.region)
        if quote.amount is not None:
            yield what, quote.region


def _to_assume(stack: Stack) -> Iterator[str]:
    """Yield the items that may be assumed: those without a price, or with a price of another region only."""
    listed = dict(_listed(stack))
    named = [name for name in _types_by_the_hour(stack) if catalog.load().find(name) is not None]
    return (name for name in (*named, *_items(stack)) if listed.get(name) != stack.region)


def _types_by_the_hour(stack: Stack) -> Iterator[str]:
    """Yield the types of all pools but capacity blocks, which were paid for when they were bought."""
    for pool in stack.pools:
        if pool.market is not Market.CAPACITY_BLOCK:
            yield from pool.types


def _items(stack: Stack) -> Iterator[str]:
    yield DISK
    yield from (what for what, _, _ in shared_units(stack, EVERYTHING))


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (*(_disks, _controller, _home, _scratch, _assumed),)
POOL_RULES: tuple[Callable[[str, Pool, Stack], Iterator[Problem]], ...] = (_types,)

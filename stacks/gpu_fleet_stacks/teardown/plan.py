"""The plan of a destroy, decided from state, holdings and the user's options. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.teardown import state
from gpu_fleet_stacks.teardown.holdings import DataStore, HeldInstance, Holdings
from gpu_fleet_stacks.teardown.state import StateResource

# Values of `--delete-data`; the first four are buckets, the others file systems.
KINDS = (
    *("data", "checkpoints", "records", "access-logs", "home", "scratch"),
    *(f"replica-{kind}" for kind in naming.REPLICATED),
)
KEY_WAITS_DAYS, KEY_WAITS_DAYS_PROTECTED = 7, 30
# Inputs that make the cloud itself refuse a deletion, apart from Pulumi's `protect`.
GUARDS = ("groupDeletionProtection", "deletionProtection")


@dataclass(frozen=True)
class Wishes:
    """The user's options.

    Attributes:
        delete_data: kinds of data to delete.
        terminate_stopped: also terminate instances that the sweep stopped.
        ignore_holds: the reason to ignore holds; empty to respect them.
    """

    delete_data: frozenset[str] = frozenset()
    terminate_stopped: bool = False
    ignore_holds: str = ""


@dataclass(frozen=True)
class DestroyPlan:
    """The plan of a destroy: each resource and what happens to it.

    Attributes:
        draining: instances that their group's drain terminates.
        stopped: stopped instances in no group.
        given_up: stores whose data is deleted.
        kept: stores that stay, each with the reason.
        empty: buckets without anything, which are deleted.
        deleted: number of other resources that are deleted.
        key_kept: why the key stays; empty: its deletion is scheduled.
        refusals: why the destroy is refused, each with its remedy.
    """

    draining: tuple[HeldInstance, ...]
    stopped: tuple[HeldInstance, ...]
    given_up: tuple[DataStore, ...]
    kept: tuple[tuple[DataStore, str], ...]
    empty: tuple[DataStore, ...]
    deleted: int
    key_kept: str
    refusals: tuple[str, ...]

    @property
    def kept_urns(self) -> frozenset[str]:
        """URNs of the stores that stay."""
        return frozenset(store.urn for store, _ in self.kept)


def plan(stack: Stack, resources: Sequence[StateResource], holdings: Holdings, wishes: Wishes) -> DestroyPlan:
    """Decide what is deleted and what stays."""
    kept: list[tuple[DataStore, str]] = []
    given_up: list[DataStore] = []
    empty: list[DataStore] = []
    for store in holdings.stores:
        reason = _kept_because(store, wishes)
        if reason:
            kept.append((store, reason))
        else:
            (empty if store.empty else given_up).append(store)
    staying = state.closure(resources, state.kept_with(resources, {store.urn for store, _ in kept}))
    going = [resource for resource in state.real(resources) if resource.urn not in staying]
    return DestroyPlan(
        draining=tuple(instance for instance in holdings.instances if instance.group),
        stopped=tuple(instance for instance in holdings.instances if not instance.group),
        given_up=tuple(given_up),
        kept=tuple(kept),
        empty=tuple(empty),
        deleted=len(going) - len(given_up) - len(empty),
        key_kept=_key_kept_because(resources, holdings, bool(kept)),
        refusals=(
            *_protected(stack, holdings, wishes, going),
            *_held(holdings, wishes),
            *_outside(stack, holdings, wishes),
            *_building(stack, holdings),
        ),
    )


def key_days(stack: Stack) -> int:
    """Return the waiting period of the key's deletion in days; ``keys.py`` of both clouds has the same."""
    return KEY_WAITS_DAYS_PROTECTED if stack.protected else KEY_WAITS_DAYS


def _kept_because(store: DataStore, wishes: Wishes) -> str:
    if store.protected:
        return "protected"
    if store.empty or store.kind in wishes.delete_data:
        return ""
    return f"not named by --delete-data {store.kind}"


def _key_kept_because(resources: Sequence[StateResource], holdings: Holdings, data_kept: bool) -> str:
    keys = state.of(resources, state.KEYS)
    if any(key.protected for key in keys):
        return "protected"
    if data_kept:
        return "the data that stays needs it"
    if holdings.remnants:
        kinds = sorted({remnant.kind for remnant in holdings.remnants})
        listed = ", ".join(f"{_count(holdings, kind)} {kind}s" for kind in kinds)
        return f"needed by {listed}"
    return ""


def _count(holdings: Holdings, kind: str) -> int:
    return sum(remnant.kind == kind for remnant in holdings.remnants)


def lifting(stack: Stack) -> str:
    """Say how to lift `protected`."""
    return (
        f"set `gpu-fleet:protected: false` in stacks/Pulumi.{stack.name}.yaml, run `gpu-fleet up"
        f" {stack.name}`, then this again"
    )


def _protected(stack: Stack, holdings: Holdings, wishes: Wishes, going: Sequence[StateResource]) -> list[str]:
    """Return reasons against deleting protected data that was named, or resources that the cloud protects."""
    named = sorted(
        store.kind for store in holdings.stores if store.protected and store.kind in wishes.delete_data
    )
    reasons = [f"--delete-data {kind}: it is protected; {lifting(stack)}" for kind in named]
    stores = {store.urn for store in holdings.stores}
    guarded = [
        resource.name
        for resource in going
        if resource.urn not in stores
        and resource.type not in state.KEYS
        and (resource.protected or any(resource.inputs.get(guard) is True for guard in GUARDS))
    ]
    if guarded:
        reasons.append(f"{', '.join(guarded)}: protected against deletion; {lifting(stack)}")
    return reasons


def _held(holdings: Holdings, wishes: Wishes) -> list[str]:
    if wishes.ignore_holds:
        return []
    return [
        f"{instance.id} ({instance.pool or 'no pool'}) is held, {instance.hold}; its user runs "
        "`gpu-fleet release` for it, or --ignore-holds REASON"
        for instance in holdings.instances
        if instance.hold
    ]


def _outside(stack: Stack, holdings: Holdings, wishes: Wishes) -> list[str]:
    """Refuse while instances are in no group: their volumes need the key, and the drain works by groups."""
    loose = [instance for instance in holdings.instances if not instance.group]
    stopped = [instance.id for instance in loose if instance.stopped]
    running = [instance.id for instance in loose if not instance.stopped]
    reasons = []
    if stopped and not wishes.terminate_stopped:
        reasons.append(
            f"{', '.join(stopped)}: stopped by the sweep, in no group, with volumes under the stack's key;"
            " start and save what is on them, or --terminate-stopped, which deletes their volumes"
        )
    if running:
        reasons.append(
            f"{', '.join(running)}: running in no group, so no drain reaches them; attach them to a group of"
            f" {stack.name}, or stop them and use --terminate-stopped"
        )
    return reasons


def _building(stack: Stack, holdings: Holdings) -> list[str]:
    """Refuse during a build: its instance uses the network, and its image would outlive the key."""
    if not holdings.builders:
        return []
    return [
        f"{', '.join(holdings.builders)}: an image is being built there; wait until it has ended (`gpu-fleet"
        f" image build {stack.name}` follows it), or cancel it in Image Builder's console"
    ]

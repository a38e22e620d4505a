"""Refuse a plan that would delete data, before anything is touched. Pure."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.plan_check.errors import ReplacementError
from gpu_fleet_stacks.plan_check.plan import REMOVES, REPLACES, PlanStep
from gpu_fleet_stacks.plan_check.types_with_data import FOLLOWS, HOLDINGS, Holding

ZONES = {"aws:ec2/subnet:Subnet": "availabilityZone", "alicloud:vpc/switch:Switch": "zoneId"}


@dataclass(frozen=True)
class PlannedLoss:
    """One resource that the plan would delete.

    Attributes:
        reasons: each names the setting that causes it, or the other resource that it follows.
    """

    step: PlanStep
    holding: Holding
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        how = "replaced" if self.step.op in REPLACES else "deleted"
        return (
            f"{self.step.name} ({self.step.type}) would be {how}, and {self.holding.what} lost: "
            + "; ".join(self.reasons)
        )


def losses(steps: Sequence[PlanStep]) -> tuple[PlannedLoss, ...]:
    """Return every resource with data, its key or its network that the plan would replace or delete."""
    removed = {(step.type, step.name): step for step in steps if step.op in REMOVES}
    return tuple(
        PlannedLoss(step, HOLDINGS[step.type], tuple(_reasons(step, list(removed.values()))))
        for step in removed.values()
        if step.type in HOLDINGS
    )


def hold(steps: Sequence[PlanStep], replace: Collection[str] = ()) -> None:
    """Accept a plan that loses nothing, or only what the user named.

    Args:
        replace: logical names of resources that may be lost.

    Raises:
        ReplacementError: it would lose more; or a name is not among what the plan would lose.
    """
    lost = losses(steps)
    unknown = sorted(set(replace) - {loss.step.name for loss in lost})
    if unknown:
        would = ", ".join(loss.step.name for loss in lost) or "nothing"
        raise ReplacementError(f"--replace {unknown[0]}: the plan would lose {would}; name one of these")
    held = [loss for loss in lost if loss.step.name not in replace]
    if held:
        raise ReplacementError("\n".join(_said(held, steps)))


def _reasons(step: PlanStep, removed: Sequence[PlanStep]) -> Iterator[str]:
    if step.op not in REPLACES:
        yield f"left out by {HOLDINGS[step.type].deleted_by}"
        return
    if not step.causes:
        yield "Pulumi names no property"
    for cause in step.causes:
        leaders = [_leader(other) for other in removed if other.type in FOLLOWS.get(cause, ())]
        if leaders:
            yield f"{cause} follows {' or '.join(leaders)}"
        else:
            setting = HOLDINGS[step.type].settings.get(cause, "this version of the program")
            yield f"{cause} {step.old.get(cause)!r} -> {step.new.get(cause)!r}, from {setting}"


def _leader(step: PlanStep) -> str:
    """Return the name of the resource that is followed, with the causes if it is no listed loss itself."""
    if step.type in HOLDINGS:
        return step.name
    why = ", ".join(f"{cause} {step.old.get(cause)!r} -> {step.new.get(cause)!r}" for cause in step.causes)
    return f"{step.name} ({why})" if why else step.name


def _said(held: Sequence[PlannedLoss], steps: Sequence[PlanStep]) -> Iterator[str]:
    count = "1 resource" if len(held) == 1 else f"{len(held)} resources"
    yield f"refused, and nothing was touched: this change would lose data in {count}"
    for loss in held:
        yield f"  - {loss}"
    slots = deployed_slots(steps)
    if slots and any(loss.step.type in ZONES for loss in held):
        listed = ", ".join(f"{zone}: {slot}" for zone, slot in slots.items())
        yield f"Undo the change, or keep each zone's slot with network.slots: {{{listed}}}"
    else:
        yield "Undo the change."
    yield "If it must be, first back up, then name each with --replace:"
    for back_up in dict.fromkeys(loss.holding.back_up for loss in held):
        yield f"  - {back_up}"
    yield "  " + " ".join(dict.fromkeys(f"--replace {loss.step.name}" for loss in held))


def deployed_slots(steps: Sequence[PlanStep]) -> dict[str, int]:
    """Return zone -> the slot of its deployed private subnet; empty where the plan shows none."""
    slots: dict[str, int] = {}
    networks = [
        step.old["cidrBlock"]
        for step in steps
        if step.type in ("aws:ec2/vpc:Vpc", "alicloud:vpc/network:Network") and "cidrBlock" in step.old
    ]
    for step in steps:
        zone = step.old.get(ZONES.get(step.type, ""))
        if not networks or zone is None or "-private-" not in step.name:
            continue
        cut = IPv4Network(networks[0]).subnets(prefixlen_diff=naming.ZONE_SLOT_BITS)
        inside = IPv4Network(step.old["cidrBlock"])
        slots[zone] = next(slot for slot, whole in enumerate(cut) if inside.subnet_of(whole))
    return dict(sorted(slots.items(), key=lambda pair: pair[1]))

"""Who knows the truth: was it right to end this machine?"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from image.reaper.model import TAG_KEEP_UNTIL, TAG_MANAGED, TAG_PROTECTED, TAG_STACK
from image.reaper.sweep.assess import OLDEST_HEARTBEAT
from image.reaper.sweep.carry_out import CHECK_LASTS
from image.reaper.times import parse_time
from tests.reaper.world import Machine, World

SLOWEST_CALL = timedelta(minutes=1)
# No observer can know what began after the newest heartbeat that it accepts. What began before must count.
BLIND = OLDEST_HEARTBEAT + CHECK_LASTS + SLOWEST_CALL


@dataclass(frozen=True)
class Rules:
    """What people were promised.

    Attributes:
        stack: whose machines may be ended.
        idle_after: idle time without which none is.
        grace: from the notice on.
        min_uptime: a younger machine is left alone.
    """

    stack: str
    idle_after: timedelta
    grace: timedelta
    min_uptime: timedelta


def wrongs(world: World, rules: Rules) -> list[str]:
    """Every broken promise, in words; empty when each end was right."""
    found = []
    for at, machine, how in world.ends:
        found += [f"{machine.id} {how} at {at}: {wrong}" for wrong in _wrongs_of(machine, at, rules)]
    for name, group in world.groups.items():
        if group["desired"] < group["min"]:
            found.append(f"group {name} wants {group['desired']}, its minimum is {group['min']}")
    return found


def _wrongs_of(machine: Machine, at: datetime, rules: Rules) -> list[str]:
    told_early_enough = [told for told in machine.told if at - told >= rules.grace]
    checks = {
        "it was at work": machine.active_at > at - rules.idle_after and machine.active_at < at - BLIND,
        "it was not managed": machine.tags.get(TAG_MANAGED) != "true",
        "it was of another stack": machine.tags.get(TAG_STACK) != rules.stack,
        "it was protected": TAG_PROTECTED in machine.tags,
        "it was held": _held(machine, at),
        "it was young": at - machine.launched_at < rules.min_uptime,
        "nobody was told in time": not told_early_enough,
    }
    return [wrong for wrong, holds in checks.items() if holds]


def _held(machine: Machine, at: datetime) -> bool:
    """Held by a tag that is not over; one that cannot be read holds."""
    text = machine.tags.get(TAG_KEEP_UNTIL)
    if text is None:
        return False
    try:
        return parse_time(text) > at
    except ValueError:
        return True

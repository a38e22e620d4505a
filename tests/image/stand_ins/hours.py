"""Hours that pass at once: all that happened is dated back, what the agent would have said meanwhile is said.

Nothing here answers for the agent: it goes on from its own file, and every heartbeat after this is its own.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gpu_fleet_image.core.times import format_time, parse_time
from tests.image.virtual_machine import VirtualMachine

ACTIVITY = "/run/gpu-fleet/activity.json"
MINUTE = timedelta(minutes=1)
# Each log-in prompt has a terminal, whose access time is that of its last input, at first of the boot.
TERMINALS_BACK = (
    "for terminal in /dev/tty[0-9]* /dev/ttyS*; do "
    "touch -a --date=@$(($(stat --format=%X $terminal) - {seconds})) $terminal; done"
)


@dataclass(frozen=True)
class Heartbeat:
    """One ``SecondsSinceActivity``.

    Attributes:
        timestamp: when the cloud got it, aware UTC.
        value: seconds.
    """

    timestamp: datetime
    value: float


def agent_sleeps(guest: VirtualMachine) -> dict[str, object]:
    """Stop the agent; gives what it last wrote."""
    guest.run("systemctl stop gpu-reaper", 120)
    return dict(json.loads(guest.run(f"cat {ACTIVITY}")))


def agent_goes_on(guest: VirtualMachine, wrote: dict[str, object], passed: timedelta) -> None:
    """Start the agent as if it had written its file just now, and all activity lay further back."""
    last_active_at = parse_time(str(wrote["last_active_at"])) - passed
    changed = wrote | {
        "at": format_time(datetime.now(UTC)),
        "last_active_at": format_time(last_active_at),
    }
    guest.write(ACTIVITY, json.dumps(changed))
    guest.run(TERMINALS_BACK.format(seconds=round(passed.total_seconds())))
    guest.run("systemctl start --no-block gpu-reaper")


def continued(last: Heartbeat, until: datetime) -> list[Heartbeat]:
    """What an agent that sees no activity says each minute after its last heartbeat, until a moment. Pure."""
    beats = []
    at = last.timestamp + MINUTE
    while at < until:
        beats.append(Heartbeat(at, last.value + (at - last.timestamp).total_seconds()))
        at += MINUTE
    return beats

"""From the first line of the kernel to the first heartbeat: waited for, measured, written down."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.bench.__main__ import TARGET, merge
from tests.bench.entries import entry
from tests.image.virtual_machine import MachineError, VirtualMachine

# What a hang looks like on two cores that others use too; the figure stands in build/bench.json.
HANG_S = 1500.0
GOAL_S = 180.0
COMMAND = "python -m tests.bench first_boot"
UNITS = ("gpu-fleet-bootstrap", "gpu-ready", "gpu-reaper", "cloud-final")


@dataclass(frozen=True)
class FirstHeartbeat:
    """Seconds after the kernel's start.

    Attributes:
        heartbeat_s: when the cloud had the first heartbeat.
        user_data_s: when cloud-init, in its last stage, began with the commands of the user data.
    """

    heartbeat_s: float
    user_data_s: float


def until_heartbeat(guest: VirtualMachine, heartbeats: Callable[[], Sequence[Any]]) -> FirstHeartbeat:
    """Wait for the first heartbeat that the cloud has of a machine that has just been started."""
    guest.connect(HANG_S)
    wait_until(lambda: bool(heartbeats()), guest, HANG_S)
    uptime_s = float(guest.run("cat /proc/uptime").split()[0])
    started_at = datetime.now(UTC) - timedelta(seconds=uptime_s)
    began = guest.run("systemctl show cloud-final --value --property=ExecMainStartTimestampMonotonic")
    heartbeat_s = (heartbeats()[0].timestamp - started_at).total_seconds()
    return FirstHeartbeat(heartbeat_s, int(began) / 1e6)


def wait_until(done: Callable[[], bool], guest: VirtualMachine, timeout_s: float = HANG_S) -> None:
    """Ask again and again; what the machine's journal says is in the error."""
    until = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > until:
            units = " ".join(f"--unit={unit}" for unit in UNITS)
            asked = f"systemctl list-jobs; journalctl --no-pager --lines=120 {units}"
            raise MachineError(guest.attempt(asked, 120)[1])
        time.sleep(1)


def whole_activity(guest: VirtualMachine) -> dict[str, Any]:
    """Return the agent's activity file once every sensor has answered: calls may time out."""
    last: dict[str, Any] = {}

    def is_whole() -> bool:
        last.update(json.loads(guest.run("cat /run/gpu-fleet/activity.json")))
        return not last["unknown"]

    wait_until(is_whole, guest)
    return last


def entries(found: FirstHeartbeat, name: str = "bootstrap_first_heartbeat_s") -> dict[str, dict[str, Any]]:
    """The figure for ``bench.json``, beside what cloud-init alone took."""
    return {name: entry(found.heartbeat_s, "s", found.user_data_s, f"<= {GOAL_S:g} s", command=COMMAND)}


def record(found: FirstHeartbeat, name: str = "bootstrap_first_heartbeat_s") -> None:
    """Write the figure into ``build/bench.json``."""
    merge(TARGET, entries(found, name))

"""An instance's last hours, alike on both clouds: idle, marked, saved, terminated by the sweep's function."""

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gpu_fleet_image.core.model import TAG_REAP_AFTER
from gpu_fleet_stacks.settings import Pool
from tests.image.recipe import first_boot
from tests.image.stand_ins.alicloud import Alicloud
from tests.image.stand_ins.aws import Aws
from tests.image.virtual_machine import VirtualMachine

KEPT_FILE, KEPT = "notes.txt", "notes of somebody"
SLACK = timedelta(minutes=10)
GRACE_SLACK = timedelta(minutes=3)  # a heartbeat must have told of the time up to it
# What sweeps take until they end an instance or free it of its mark: the cloud's come every ten minutes.
ENDING_S = 900.0
# On an emulated computer a timer of the system's, or the agent's own start, may be work for a minute.
TRIES = 5
Account = Aws | Alicloud  # the stand-ins for the clouds


@dataclass(frozen=True)
class LastHours:
    """What came of them.

    Attributes:
        verdicts: of the sweeps that mark the instance, wait while the grace lasts, and end it.
        marked: what the first says it marked, and the instance has the mark's tag.
        saved: what the bucket had before the last one.
        state: of the instance after it.
    """

    verdicts: tuple[str, ...]
    marked: tuple[str, ...]
    saved: str
    state: str


def whole(account: Account) -> LastHours:
    """As they are to be: marked, waited for, saved, terminated."""
    return LastHours(("MARK", "WAIT", "TERMINATE"), (account.instance.id,), KEPT, "terminated")


def lived(account: Account, guest: VirtualMachine, pool: Pool) -> LastHours:
    """Leave a file to keep, let the pool's idle time pass, sweep, sweep again, let the grace pass, sweep.

    Work in those minutes, which a busy computer lets the emulated one have, begins all of it anew.
    """
    guest.run(f"mkdir -p /scratch/keep && echo '{KEPT}' > /scratch/keep/{KEPT_FILE}")
    # what is left of the recipe wants Debian's archive and PyPI, which are not there, and tries for minutes
    guest.run("systemctl stop gpu-fleet-bootstrap", 120)
    for _ in range(TRIES):
        last_hours = _lived_once(account, guest, pool)
        if last_hours.state != "running":
            return last_hours
    raise AssertionError(f"{last_hours}\n{_journal(guest)}")


def _lived_once(account: Account, guest: VirtualMachine, pool: Pool) -> LastHours:
    idle_for = timedelta(hours=pool.idle.after_hours)
    _until_unused_for(account, guest, idle_for)
    marking = account.sweep()
    marked = tuple(marking["marked"]) if account.tags().get(TAG_REAP_AFTER) else ()
    waiting = account.sweep()
    account.pass_hours(guest, timedelta(minutes=pool.idle.grace_minutes) + GRACE_SLACK)
    first_boot.wait_until(lambda: account.acknowledged() or not _is_unused_for(account, idle_for), guest)
    ending = _ended(account, guest)
    saved = account.saved(KEPT_FILE).decode().strip() if account.state() != "running" else ""
    verdicts = tuple(
        str(verdict["verdict"])
        for answer in (marking, waiting, ending)
        for verdict in answer["verdicts"]
        if verdict["instance_id"] == account.instance.id
    )
    return LastHours(verdicts, marked, saved, account.state())


def _ended(account: Account, guest: VirtualMachine) -> dict[str, Any]:
    """The sweep that terminates it, or that takes its mark off since it was used meanwhile.

    An emulated agent may shut its door later than one sweep waits; as in the cloud, the next one looks again.
    """
    until = time.monotonic() + ENDING_S
    while True:
        answer = account.sweep()
        if account.state() != "running" or TAG_REAP_AFTER not in account.tags():
            return answer
        if time.monotonic() > until:
            raise AssertionError(f"neither terminated nor freed of its mark: {answer}\n{_journal(guest)}")


def _until_unused_for(account: Account, guest: VirtualMachine, needed: timedelta) -> None:
    """Let hours pass until the agent itself says that nothing worked in them."""
    for _ in range(TRIES):
        _until_idle(account, guest)
        account.pass_hours(guest, needed + SLACK)
        _until_idle(account, guest)
        if _is_unused_for(account, needed):
            return
    raise AssertionError(_journal(guest))


def _is_unused_for(account: Account, needed: timedelta) -> bool:
    return account.heartbeats()[-1].value >= needed.total_seconds()


def _journal(guest: VirtualMachine) -> str:
    """What the agent said: it names what was active."""
    return guest.run("journalctl --no-pager --lines=200 --unit=gpu-reaper", 120)


def _until_idle(account: Account, guest: VirtualMachine) -> None:
    """Until the agent has said of a minute of its own that nothing worked in it."""
    known = len(account.heartbeats())
    first_boot.wait_until(
        lambda: any(heartbeat.value > 0 for heartbeat in account.heartbeats()[known:]), guest
    )

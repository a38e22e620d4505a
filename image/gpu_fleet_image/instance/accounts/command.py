"""``gpu-fleet accounts``: bring this instance's accounts in line with the stack's roster, once."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from gpu_fleet_image.core import instance_file, keys, paths
from gpu_fleet_image.core.errors import CloudError, InstanceError
from gpu_fleet_image.core.files import read_text, replace_text
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.roster import RosterError, RosterUser, parse
from gpu_fleet_image.instance.accounts import system
from gpu_fleet_image.instance.accounts.changes import changes
from gpu_fleet_image.instance.agent import cloud

# On a disk that outlives a restart: the bucket may not answer at the next boot, and users must get in.
_LAST_GOOD = Path("/var/lib/gpu-fleet/accounts.json")
ROOT_ALONE = 0o600

LOG = logging.getLogger(__name__)


class AccountsError(InstanceError):
    """Some of the accounts do not match the roster."""


@click.command(epilog="\b\nExample:\n  gpu-fleet accounts")
def command() -> None:
    """Make accounts, groups, keys and homes those of the stack's access.people; lock those who left."""
    logging.basicConfig(level=logging.INFO, format="time=%(asctime)s level=%(levelname)s %(message)s")
    instance = instance_file.load(paths.instance_file())
    connected = cloud.connect(instance, Metadata(instance.cloud))

    def read() -> dict[str, Any] | None:
        document = connected.store().newest(keys.ACCOUNTS)
        return None if document is None else document.content

    def homes_there() -> bool:
        return not instance.home_file_system or os.path.ismount(system.HOMES)

    users, problem = roster(read, _LAST_GOOD)
    problems = [*filter(None, [problem]), *carried_out(users, system.System(homes_there, system.run))]
    if problems:
        raise AccountsError("\n".join(problems))


def roster(
    read: Callable[[], dict[str, Any] | None], last_good: Path
) -> tuple[tuple[RosterUser, ...] | None, str]:
    """Return all users, and why they come from an older roster, if so; None without any roster.

    A roster that cannot be read, is damaged or was deleted locks no account: the last good one stays in
    force.
    """
    try:
        document = read()
        if document is None:
            raise CloudError(f"{keys.ACCOUNTS} is not in the stack's bucket")
        users = parse(document)
    except (CloudError, RosterError) as error:
        return _kept(last_good), f"event=roster-not-read reason={str(error)!r}"
    last_good.parent.mkdir(mode=0o755, exist_ok=True)
    replace_text(last_good, json.dumps(document), ROOT_ALONE)
    return users, ""


def _kept(last_good: Path) -> tuple[RosterUser, ...] | None:
    try:
        return parse(json.loads(read_text(last_good)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RosterError) as error:
        LOG.error("event=last-roster-not-read file=%s reason=%r", last_good, str(error))
        return None


def carried_out(users: tuple[RosterUser, ...] | None, instance: system.System) -> list[str]:
    """Apply every change, each whether the others failed or not; return what failed."""
    if users is None:
        return []
    problems = []
    for change in changes(users, system.local_accounts(keys=instance.keys, homes=instance.homes)):
        try:
            said = instance.carry_out(change)
        except system.NotDoneError as error:
            problems.append(f"event=account-not-changed {error}")
        else:
            if said:
                LOG.info("%s", said)
    for name, count in instance.end_former_admins().items():
        LOG.info("event=former-admin account=%s processes_ended=%d", name, count)
    return problems

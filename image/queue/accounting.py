"""``python -m image.queue.accounting prepare``: the database behind ``sacct``, on the controller's own disk.

MariaDB should not lie on NFS, so the shared homes have a dump of it instead, written anew where it changed; a
controller that finds no database begins with that. Who works for which team says the stack
(``access.people``): a team is an account of Slurm's, with the share and the limit that ``teams`` gives it.
"""

import gzip
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from image.instance import instance_file, paths
from image.instance.errors import InstanceError
from image.instance.files import replace_text
from image.queue import configuration, queue_file
from image.queue.configuration import DATABASE, GRACE_S, LOW, NORMAL
from image.queue.errors import DatabaseError, NotReadyError, RosterUnreadError
from image.queue.slurm import Association

DUMP = "accounting.sql.gz"
SLURMDBD = Path("/etc/slurm/slurmdbd.conf")
MARIADB = Path("/etc/mysql/mariadb.conf.d/60-gpu-fleet.cnf")
TIMEOUT_S = 600  # of a dump that is read or written whole
READ_BY_OWNER = 0o600
ROSTER = "accounts.json"  # of the stack (image/accounts/roster.py has all of it)
NAME = re.compile(r"[a-z][a-z0-9_-]{0,30}")
WITHOUT_TEAM = "no-team"  # the account of those who are in none
ROOT = "root"  # Slurm's own, above all accounts
NO_LIMIT = -1  # sacctmgr(1): "To clear a previously set value"
# By its socket, as the account that calls: there is no password, and nobody else may connect.
SETUP = f"""CREATE DATABASE IF NOT EXISTS {DATABASE};
CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket;
GRANT ALL ON {DATABASE}.* TO 'slurm'@'localhost';
"""
TABLES = f"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{DATABASE}';"  # noqa: S608
LOG = logging.getLogger(__name__)


def _database(command: Sequence[str], given: bytes = b"") -> bytes:
    """What a program of MariaDB's says. Raises DatabaseError."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatabaseError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise DatabaseError(f"{command[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def begin(dump: Path) -> bool:
    """Make the database, and fill a new one from the dump; whether it did. Raises DatabaseError, OSError."""
    _database(["mariadb"], SETUP.encode())
    if int(_database(["mariadb", "--skip-column-names"], TABLES.encode())) or not dump.is_file():
        return False
    try:
        content = gzip.decompress(dump.read_bytes())
    except (OSError, EOFError) as error:
        raise DatabaseError(f"{dump}: {error}") from error
    # not as the database's root: the dump lies where Slurm's account may write
    try:
        _database(["runuser", "-u", "slurm", "--", "mariadb", DATABASE], content)
    except DatabaseError:
        _database(["mariadb"], f"DROP DATABASE {DATABASE};".encode())  # or half of it would pass for all
        raise
    return True


def keep(dump: Path) -> bool:
    """Write the dump where it has changed; whether it has. Raises DatabaseError, OSError."""
    text = _database(["mariadb-dump", "--single-transaction", "--quick", "--skip-dump-date", DATABASE])
    content = gzip.compress(text, mtime=0)
    if dump.is_file() and dump.read_bytes() == content:
        return False
    part = dump.with_suffix(".part")
    part.unlink(missing_ok=True)
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, READ_BY_OWNER)
    with os.fdopen(opened, "wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    part.replace(dump)
    return True


def teams_of(roster: Mapping[str, Any]) -> dict[str, str]:
    """User -> Slurm's account: the team. Pure.

    Raises:
        RosterUnreadError: it is not as the stack writes it; nothing of it is carried out.
    """
    try:
        pairs = {str(user["name"]): str(user["team"]) for user in roster["users"]}
    except (KeyError, TypeError) as error:
        raise RosterUnreadError(f"{ROSTER}: {error!r}") from error
    for word in (*pairs, *filter(None, pairs.values())):
        if NAME.fullmatch(word) is None:
            raise RosterUnreadError(f"{ROSTER}: {word!r}; allowed: {NAME.pattern}")
    return {name: team if team not in ("", ROOT) else WITHOUT_TEAM for name, team in pairs.items()}


@dataclass(frozen=True)
class TeamLimits:
    """What a team gets of the queue.

    Attributes:
        max_gpus: that its jobs may have at once; None for all.
    """

    share: int = 1
    max_gpus: int | None = None


def limits_of(roster: Mapping[str, Any]) -> dict[str, TeamLimits]:
    """Team -> what the stack file gives it. Pure.

    Raises:
        RosterUnreadError: it is not as the stack writes it; nothing of it is carried out.
    """
    try:
        return {str(name): TeamLimits(**team) for name, team in roster.get("teams", {}).items()}
    except (TypeError, AttributeError) as error:
        raise RosterUnreadError(f"{ROSTER}: teams: {error!r}") from error


def is_limited(teams: Mapping[str, TeamLimits]) -> bool:
    """Whether Slurm must refuse or hold back anything."""
    return any(team.max_gpus is not None for team in teams.values())


def shares(
    wanted: Mapping[str, str], known: Iterable[Association], teams: Mapping[str, TeamLimits] | None = None
) -> list[list[str]]:
    """The changes of Slurm's accounts by which each user works for their team. Pure.

    What a user did for another team before stays in that account; who left has no account on any instance.

    Args:
        wanted: user -> account.
        teams: what accounts get that are not like any other.
    """
    known = list(known)
    accounts = {entry.account: TeamLimits(entry.share, entry.max_gpus) for entry in known if not entry.user}
    users = {(entry.user, entry.account) for entry in known if entry.user}
    new = []
    for name in sorted({*wanted.values()}):
        team = (teams or {}).get(name, TeamLimits())
        limit = NO_LIMIT if team.max_gpus is None else team.max_gpus
        set_to = [f"fairshare={team.share}", f"grptres=gres/gpu={limit}"]
        if name not in accounts:
            new.append(["add", "account", name, *(set_to if team.max_gpus else set_to[:1])])
        elif accounts[name] != team:
            new.append(["modify", "account", "where", f"name={name}", "set", *set_to])
    for name, account in sorted(wanted.items()):
        if (name, account) not in users:
            new.append(["add", "user", name, f"account={account}", "fairshare=1"])
            new.append(["modify", "user", "where", f"name={name}", "set", f"defaultaccount={account}"])
    return new


def qualities(known: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The changes by which jobs of the QoS ``low`` come last, and give way to all others. Pure.

    Args:
        known: QoS -> those whose jobs give way to its own.
    """
    new = []
    if LOW not in known:
        new.append(["add", "qos", LOW, "priority=0", f"gracetime={GRACE_S}"])
    if LOW not in known.get(NORMAL, ()):
        new.append(["modify", "qos", "where", f"name={NORMAL}", "set", "priority=1", f"preempt+={LOW}"])
    return new


def prepare() -> None:
    """Lay what slurmdbd needs and start its database; raises InstanceError, OSError."""
    instance = instance_file.load(paths.instance_file())
    queue = queue_file.load(queue_file.path())
    if not os.path.ismount(configuration.HOMES):
        raise NotReadyError(f"{configuration.HOMES} is not mounted: the accounts would begin anew")
    dump = configuration.state_of(instance.stack) / DUMP
    replace_text(MARIADB, configuration.mariadb_conf())
    SLURMDBD.parent.mkdir(parents=True, exist_ok=True)
    replace_text(SLURMDBD, configuration.slurmdbd_conf(socket.gethostname(), queue.address))
    shutil.chown(SLURMDBD, "slurm", "slurm")
    SLURMDBD.chmod(READ_BY_OWNER)
    _database(["systemctl", "restart", "mariadb.service"])
    LOG.info("event=queue-accounting-prepared restored=%s", begin(dump))


def main(words: list[str]) -> int:
    """Exit status for the unit."""
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    if words != ["prepare"]:
        LOG.error("event=usage words=%r allowed='prepare'", words)
        return 2
    try:
        prepare()
    except (InstanceError, OSError) as error:
        LOG.error("event=queue-accounting-failed reason=%r", str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

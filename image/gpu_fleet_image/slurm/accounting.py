"""``python -m gpu_fleet_image.slurm.accounting prepare``.

The database of ``sacct``, on the controller's own disk.

``database.py`` holds the parts that outlive that disk. The stack assigns users to teams (``access.people``):
a team is an account in Slurm, with the share and the limit of ``teams``.
"""

import logging
import os
import shutil
import socket
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from gpu_fleet_image.core import instance_file, keys, paths, queue_file
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.core.queue_errors import NotReadyError, RosterUnreadError, SlurmError
from gpu_fleet_image.core.roster import NO_TEAM
from gpu_fleet_image.core.runs import ACCOUNT
from gpu_fleet_image.slurm import configuration, database, slurm
from gpu_fleet_image.slurm.answers import ENDED, ListedJob
from gpu_fleet_image.slurm.configuration import GRACE_S, LOW, NORMAL
from gpu_fleet_image.slurm.database import READ_BY_OWNER, KeptAccounts
from gpu_fleet_image.slurm.slurm import Association

DUMP = "accounting.sql.gz"
SLURMDBD = Path("/etc/slurm/slurmdbd.conf")
MARIADB = Path("/etc/mysql/mariadb.conf.d/60-gpu-fleet.cnf")
WITHOUT_TEAM = NO_TEAM  # the account of users without a team
ROOT = "root"  # Slurm's own account, above all others
USER_NUMBERS = range(2000, 30_000)  # of the roster (image/gpu_fleet_image/core/roster.py)
NO_LIMIT = -1  # sacctmgr(1): "To clear a previously set value"
LOG = logging.getLogger(__name__)


def kept_of(stack: str) -> KeptAccounts:
    """Return where the accounts of a stack outlive its controller."""
    return KeptAccounts(configuration.state_of(stack) / DUMP, configuration.accounting_log_of(stack))


def teams_of(roster: Mapping[str, Any]) -> dict[str, str]:
    """Return user -> Slurm's account: the team. Pure.

    Raises:
        RosterUnreadError: the roster is not in the stack's format; nothing of it is applied.
    """
    try:
        pairs = {str(user["name"]): str(user["team"]) for user in roster["users"]}
    except (KeyError, TypeError) as error:
        raise RosterUnreadError(f"{keys.ACCOUNTS}: {error!r}") from error
    for word in (*pairs, *filter(None, pairs.values())):
        if ACCOUNT.fullmatch(word) is None:
            raise RosterUnreadError(f"{keys.ACCOUNTS}: {word!r}; allowed: {ACCOUNT.pattern}")
    return {name: team if team not in ("", ROOT) else WITHOUT_TEAM for name, team in pairs.items()}


def numbers_of(roster: Mapping[str, Any]) -> frozenset[int]:
    """Return users' numbers. Pure.

    Raises:
        RosterUnreadError: the roster is not in the stack's format; nothing of it is applied.
    """
    try:
        users = roster["users"]
        if not isinstance(users, list):  # an empty list means no users, and cancels all jobs
            raise TypeError(f"users = {users!r}; allowed: a list")
        return frozenset(int(user["uid"]) for user in users)
    except (KeyError, TypeError, ValueError) as error:
        raise RosterUnreadError(f"{keys.ACCOUNTS}: {error!r}") from error


def leavers_jobs(
    jobs: Iterable[ListedJob], numbers: Collection[int], names: Collection[str] = ()
) -> list[str]:
    """Return the live jobs of users who are no longer in the roster. Pure.

    Users are matched by number: a new controller knows no names until it has made the accounts. A number that
    the roster has given to somebody else is still the leaver's here, so names count too. An empty roster
    counts as well, and locks every account: a roster that could not be read is never written
    (image/gpu_fleet_image/controllers/directory/refresh.py).

    Args:
        numbers: of users in the roster.
        names: of Slurm's users who are not in it.
    """
    return [
        listed.job.id
        for listed in jobs
        if listed.uid in USER_NUMBERS
        and (listed.uid not in numbers or listed.job.account in names)
        and listed.job.state not in ENDED
    ]


def leavers(wanted: Collection[str], known: Iterable[Association]) -> dict[str, bool]:
    """Return Slurm's users who are no longer in the roster -> whether it takes new jobs of theirs. Pure."""
    left: dict[str, bool] = {}
    for entry in known:
        if entry.user not in {"", ROOT, *wanted}:
            left[entry.user] = left.get(entry.user, False) or entry.takes_jobs  # of any team
    return left


def partings(left: Mapping[str, bool], *, have_jobs: bool) -> list[list[str]]:
    """Return the commands that make Slurm refuse jobs of users who left, and delete those users once idle.

    Pure.

    Their past usage stays in their teams' accounts.

    Args:
        left: as of ``leavers``.
    """
    if not have_jobs:
        return [["delete", "user", f"name={user}"] for user in sorted(left)]
    return [
        ["modify", "user", "where", f"name={user}", "set", "maxsubmitjobs=0"]
        for user, takes_jobs in sorted(left.items())
        if takes_jobs
    ]


@dataclass(frozen=True)
class TeamLimits:
    """A team's part of the queue.

    Attributes:
        max_gpus: limit on the GPUs of its running jobs; None for none.
        frozen: why it starts no job now, since its budget is spent; empty where it does.
    """

    share: int = 1
    max_gpus: int | None = None
    frozen: str = ""


def limits_of(roster: Mapping[str, Any]) -> dict[str, TeamLimits]:
    """Return team -> its limits in the stack file. Pure.

    Raises:
        RosterUnreadError: the roster is not in the stack's format; nothing of it is applied.
    """
    try:
        return {str(name): TeamLimits(**team) for name, team in roster.get("teams", {}).items()}
    except (TypeError, AttributeError) as error:
        raise RosterUnreadError(f"{keys.ACCOUNTS}: teams: {error!r}") from error


def shares(
    wanted: Mapping[str, str], known: Iterable[Association], teams: Mapping[str, TeamLimits] | None = None
) -> list[list[str]]:
    """Return the changes of Slurm's accounts that assign each user to their team. Pure.

    A user's past usage for another team stays in that account, which takes no more jobs of theirs: neither
    its share nor its limit is theirs any more.

    Args:
        wanted: user -> account.
        teams: limits of accounts that differ from the default.
    """
    known = list(known)
    accounts = {entry.account: entry for entry in known if not entry.user}
    users = {(entry.user, entry.account): entry.takes_jobs for entry in known if entry.user}
    new = []
    # jobs that wait in a team whose users have all changed teams are still held by its limit and its freeze
    former = {account for user, account in users if user in wanted} & accounts.keys()
    held = {name for name in former if accounts[name].frozen or name in (teams or {})}
    for name in sorted({*wanted.values(), *held}):
        team = (teams or {}).get(name, TeamLimits())
        limit = NO_LIMIT if team.max_gpus is None else team.max_gpus
        is_new, frozen = name not in accounts, bool(team.frozen)
        was_frozen = not is_new and accounts[name].frozen
        # every job needs a CPU; those that run go on (resource_limits of Slurm's documentation)
        cpus = ",cpu=0" if frozen else f",cpu={NO_LIMIT}" if was_frozen else ""
        set_to = [f"fairshare={team.share}", f"grptres=gres/gpu={limit}{cpus}"]
        if is_new:
            new.append(["add", "account", name, *(set_to if team.max_gpus or frozen else set_to[:1])])
        elif (accounts[name].share, accounts[name].max_gpus, was_frozen) != (
            team.share,
            team.max_gpus,
            frozen,
        ):
            new.append(["modify", "account", "where", f"name={name}", "set", *set_to])
    for name, account in sorted(wanted.items()):
        if (name, account) not in users:
            new.append(["add", "user", name, f"account={account}", "fairshare=1"])
            new.append(["modify", "user", "where", f"name={name}", "set", f"defaultaccount={account}"])
        if not users.get((name, account), True):  # a user who left has come back
            new.append(_most_jobs(name, account, NO_LIMIT))
    ended = (
        pair for pair, takes_jobs in users.items() if takes_jobs and wanted.get(pair[0], pair[1]) != pair[1]
    )
    return new + [_most_jobs(*pair, 0) for pair in sorted(ended)]


def _most_jobs(user: str, account: str, most: int) -> list[str]:
    where = ["where", f"name={user}", f"account={account}"]
    return ["modify", "user", *where, "set", f"maxsubmitjobs={most}"]


def qualities(known: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the changes that put jobs of the QoS ``low`` last, and let all others preempt them. Pure.

    Args:
        known: QoS -> the QoS that it preempts.
    """
    new = []
    if LOW not in known:
        new.append(["add", "qos", LOW, "priority=0", f"gracetime={GRACE_S}"])
    if LOW not in known.get(NORMAL, ()):
        new.append(["modify", "qos", "where", f"name={NORMAL}", "set", "priority=1", f"preempt+={LOW}"])
    return new


def changed(changes: Iterable[Sequence[str]], ask: slurm.Run) -> list[str]:
    """Make the changes, and return Slurm's answers to those that it refuses: they stop no other.

    One without an answer is the last of the round: the poll would wait for each of the others too.
    """
    refused: list[str] = []
    for words in changes:
        try:
            slurm.change_accounts(words, ask)
        except SlurmError as error:
            LOG.warning("event=queue-account-not-changed reason=%r", str(error))
            refused.append(str(error))
            if isinstance(error.__cause__, TimeoutExpired):
                break
        else:
            LOG.info("event=queue-account-changed change=%r", " ".join(words))
    return refused


def part_with_leavers(
    roster: Mapping[str, Any], known: Iterable[Association], ask: slurm.Run = slurm.run
) -> list[str]:
    """Cancel the jobs of users who are no longer in the roster, and delete those users from Slurm.

    A job may submit itself again as it ends, so Slurm first refuses new jobs of these users. It deletes users
    without jobs.

    Returns:
        Slurm's answers to the changes that it refused.

    Raises:
        SlurmError, RosterUnreadError: the rest is done at the next poll.
    """
    left = leavers(teams_of(roster), known)
    jobs = leavers_jobs(slurm.jobs(ask).jobs, numbers_of(roster), left)
    refused = changed(partings(left, have_jobs=bool(jobs)), ask)
    if jobs:
        slurm.cancel(*jobs, saves=False, ask=ask)
        LOG.info("event=queue-leavers-jobs-cancelled jobs=%s", ",".join(jobs))
    return refused


def prepare() -> None:
    """Write what slurmdbd needs and start its database; raises InstanceError, OSError."""
    instance = instance_file.load(paths.instance_file())
    queue = queue_file.load(queue_file.path())
    if not os.path.ismount(configuration.HOMES):
        raise NotReadyError(f"{configuration.HOMES} is not mounted: the accounts would start empty")
    kept = kept_of(instance.stack)
    database.make_room(kept)
    SLURMDBD.parent.mkdir(parents=True, exist_ok=True)
    replace_text(SLURMDBD, configuration.slurmdbd_conf(socket.gethostname(), queue.address))
    shutil.chown(SLURMDBD, "slurm", "slurm")
    SLURMDBD.chmod(READ_BY_OWNER)
    LOG.info("event=queue-accounting-prepared restored=%s", start_database(kept))


def start_database(kept: KeptAccounts) -> bool:
    """Start MariaDB with all accounts; return whether they were restored. Raises DatabaseError, OSError."""
    filled = False
    # A complete database needs its log to start: MariaDB reads what it had begun when it was interrupted.
    if not database.is_whole():
        _start_mariadb(None)  # what is restored from the log must not be written to it again
        filled = database.begin(kept)
    _start_mariadb(kept.log)
    return filled


def _start_mariadb(log: Path | None) -> None:
    """Restart MariaDB with this log. Raises DatabaseError, OSError."""
    replace_text(MARIADB, configuration.mariadb_conf(log))
    database.run(["systemctl", "restart", "mariadb.service"])


def main(words: list[str]) -> int:
    """Run the unit's command; return its exit status."""
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

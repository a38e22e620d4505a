"""MariaDB on the controller's own disk, and the backup that outlives that disk.

MariaDB should not be on NFS. So the shared homes hold a dump, and MariaDB's own log of every change since
(its binary log), which is on storage before a change counts as done. A controller without a database starts
from both.
"""

import gzip
import logging
import os
import pwd
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_fleet_image.core.queue_errors import DatabaseError
from gpu_fleet_image.slurm import folders
from gpu_fleet_image.slurm.configuration import DATABASE, LOG_NAME

TIMEOUT_S = 600  # of reading or writing a whole dump
READ_BY_OWNER = 0o600
MAY_PASS = 0o711  # to reach a folder below, without listing this one
# Limits the log that a new controller reads beside a dump: minutes, not months.
DUMP_EVERY_S = 600.0
MYSQL = "mysql"  # MariaDB's account: only it reads back what it wrote
# A database that exists once the accounts are complete: its folder is visible before MariaDB runs.
WHOLE = "gpu_fleet_whole"
DATA = Path("/var/lib/mysql")
# Through its socket, as the calling account: there is no password, and nobody else can connect.
SETUP = f"""CREATE DATABASE IF NOT EXISTS {DATABASE};
CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket;
GRANT ALL ON {DATABASE}.* TO 'slurm'@'localhost';
"""
ANEW = f"DROP DATABASE IF EXISTS {DATABASE};\n"
# Tables without a trigger: making it again each time would be a change, and wait for readers of the table.
TABLES = f"""SELECT table_name FROM information_schema.tables AS known WHERE table_schema = '{DATABASE}'
AND NOT EXISTS (SELECT 1 FROM information_schema.triggers
  WHERE trigger_schema = '{DATABASE}' AND event_object_table = known.table_name);
"""  # noqa: S608
JOB_TABLE = re.compile(r"[a-z0-9-]+_job_table")
# Users' numbers; if nobody cancelled a job, slurmdbd writes -1 (22.05), NULL or a number above them.
USERS = "BETWEEN 0 AND 4294967293"
# When slurmctld starts, it sends the end of each known job again, without the user who cancelled it.
KEEP_WHO = """CREATE TRIGGER IF NOT EXISTS gpu_fleet_keep_who BEFORE UPDATE ON `{table}` FOR EACH ROW
SET NEW.kill_requid = IF(NEW.state = OLD.state AND OLD.kill_requid {users}
  AND NOT COALESCE(NEW.kill_requid {users}, FALSE), OLD.kill_requid, NEW.kill_requid);
"""
WHERE = re.compile(
    r"^-- CHANGE MASTER TO MASTER_LOG_FILE='([\w.-]+)', MASTER_LOG_POS=([0-9]+);$", re.MULTILINE
)
HEAD = 4096  # bytes of a dump that hold its position in the log
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptAccounts:
    """Backup of the accounts, which outlives a controller.

    Attributes:
        log: folder of MariaDB's log, readable by its account only.
    """

    dump: Path
    log: Path


@dataclass(frozen=True)
class LogPlace:
    """A position in MariaDB's log.

    Attributes:
        file: its name without the folder.
        at: bytes from its start.
    """

    file: str
    at: int


def run(command: Sequence[str], given: bytes = b"") -> bytes:
    """Return the output of a program of MariaDB. Raises DatabaseError."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatabaseError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise DatabaseError(f"{command[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _ask(query: str) -> list[str]:
    """Return the lines of a query's answer, with columns separated by tabs. Raises DatabaseError."""
    return run(["mariadb", "--skip-column-names"], query.encode()).decode().splitlines()


def is_whole() -> bool:
    """Return whether the accounts on this disk are complete."""
    return (DATA / WHOLE).is_dir()


def make_room(kept: KeptAccounts) -> None:
    """Make the log's folder for MariaDB's account, whose number may differ between controllers.

    Raises OSError if it cannot be made, or it or its parent is a link.
    """
    owner = pwd.getpwnam(MYSQL)
    with folders.made(kept.log.parent) as parent, folders.made(kept.log.name, parent) as log:
        os.fchmod(parent, MAY_PASS)
        folders.give_files(log, owner.pw_uid, owner.pw_gid)
        folders.give(log, owner.pw_uid, owner.pw_gid)


def begin(kept: KeptAccounts) -> bool:
    """Make the database and restore the backup, while MariaDB writes no log.

    Return whether data was restored.

    An interrupted restore starts again: its remains must not count as complete.

    Raises:
        DatabaseError, OSError: it is not complete; the next call starts again.
    """
    if is_whole():
        return False
    text = _dumped(kept.dump)
    logged = _log_files(kept.log, where(text))
    _fill(text)
    try:
        for file, at in logged:
            run(["runuser", "-u", MYSQL, "--", "mariadb"], _changes(file, at))
    except DatabaseError as error:
        if not text:
            raise
        LOG.error("event=queue-accounting-log-unread reason=%r", str(error))
        _fill(text)
    guard()
    run(["mariadb"], f"CREATE DATABASE {WHOLE};".encode())
    return bool(text or logged)


def _dumped(dump: Path) -> bytes:
    """Return the dump's text, empty if there is none. Raises DatabaseError."""
    if not dump.is_file():
        return b""
    try:
        return gzip.decompress(dump.read_bytes())
    except (OSError, EOFError) as error:
        raise DatabaseError(f"{dump}: {error}") from error


def where(text: bytes) -> LogPlace | None:
    """Return the position in the log of a dump; None if the dump has none."""
    place = WHERE.search(text[:HEAD].decode(errors="replace"))
    return LogPlace(place[1], int(place[2])) if place else None


def _log_files(folder: Path, place: LogPlace | None) -> list[tuple[Path, int]]:
    """Return the files of the log from a position on, and the start in each."""
    files = sorted(file for file in folder.glob(f"{LOG_NAME}.*") if re.fullmatch("[.][0-9]+", file.suffix))
    if place is None:
        return [(file, 0) for file in files]
    return [(file, place.at if file.name == place.file else 0) for file in files if file.name >= place.file]


def _fill(text: bytes) -> None:
    """Empty the database, and load a dump. Raises DatabaseError."""
    run(["mariadb"], (ANEW + SETUP).encode())
    # not as the database's root: Slurm's account can write to the dump's folder
    run(["runuser", "-u", "slurm", "--", "mariadb", DATABASE], text)


def _changes(file: Path, at: int) -> bytes:
    """Return the changes of a file of the log up to its readable end, since it may be truncated."""
    begin_at = [f"--start-position={at}"] if at else []
    command = ["runuser", "-u", MYSQL, "--", "mariadb-binlog", f"--database={DATABASE}", *begin_at, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatabaseError(f"{command[4]}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        LOG.warning("event=queue-accounting-log-cut-off file=%s reason=%r", file, said)
    return done.stdout


def guard() -> None:
    """Keep the user who cancelled a job in every job table. Raises DatabaseError."""
    for table in filter(JOB_TABLE.fullmatch, _ask(TABLES)):
        run(["mariadb", DATABASE], KEEP_WHO.format(table=table, users=USERS).encode())


def keep(kept: KeptAccounts, now_s: float) -> bool:
    """Write the dump if something changed and the last one is old; return whether it was written.

    Args:
        now_s: seconds since 1970.

    Raises:
        DatabaseError, OSError: it was not written; the previous dump stays, with the log since.
    """
    if not is_whole():
        raise DatabaseError("the accounts are not complete: the backup is not overwritten")
    guard()
    if not _is_due(kept.dump, now_s):
        return False
    options = ("--single-transaction", "--quick", "--skip-dump-date", "--skip-triggers", "--master-data=2")
    text = run(["mariadb-dump", *options, DATABASE])
    _write(kept.dump, gzip.compress(text, mtime=0))
    if place := where(text):
        run(["mariadb"], f"PURGE BINARY LOGS TO '{place.file}';".encode())
    return True


def _is_due(dump: Path, now_s: float) -> bool:
    if not dump.is_file():
        return True
    if now_s - dump.stat().st_mtime < DUMP_EVERY_S:
        return False
    with gzip.open(dump) as content:
        place = where(content.read(HEAD))
    now = [line.split("\t")[:2] for line in _ask("SHOW MASTER STATUS;")]
    return place is None or now != [[place.file, str(place.at)]]


def _write(dump: Path, content: bytes) -> None:
    part = dump.with_suffix(".part")
    part.unlink(missing_ok=True)
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, READ_BY_OWNER)
    with os.fdopen(opened, "wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    part.replace(dump)

"""MariaDB on the controller's own disk, and what of it outlives that disk.

MariaDB should not lie on NFS. So the shared homes have a dump of it, and MariaDB's own log of every change
since (its binary log), which is on storage before a change counts as done. A controller without a database
begins with both.
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
from gpu_fleet_image.queue import folders
from gpu_fleet_image.queue.configuration import DATABASE, LOG_NAME

TIMEOUT_S = 600  # of a dump that is read or written whole
READ_BY_OWNER = 0o600
MAY_PASS = 0o711  # to a folder below, not to look around
# What a new controller reads of the log at most, beside a dump: minutes, not months.
DUMP_EVERY_S = 600.0
MYSQL = "mysql"  # MariaDB's account: what it wrote is read back as nobody else
# A database that is there once the accounts are complete: a folder, to be seen before MariaDB runs.
WHOLE = "gpu_fleet_whole"
DATA = Path("/var/lib/mysql")
# By its socket, as the account that calls: there is no password, and nobody else may connect.
SETUP = f"""CREATE DATABASE IF NOT EXISTS {DATABASE};
CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket;
GRANT ALL ON {DATABASE}.* TO 'slurm'@'localhost';
"""
ANEW = f"DROP DATABASE IF EXISTS {DATABASE};\n"
# Tables without a trigger: to make it again each time would be a change, and wait for who reads the table.
TABLES = f"""SELECT table_name FROM information_schema.tables AS known WHERE table_schema = '{DATABASE}'
AND NOT EXISTS (SELECT 1 FROM information_schema.triggers
  WHERE trigger_schema = '{DATABASE}' AND event_object_table = known.table_name);
"""  # noqa: S608
JOB_TABLE = re.compile(r"[a-z0-9-]+_job_table")
# Users' numbers; where nobody cancelled a job slurmdbd writes -1 (22.05), NULL or a number above them.
USERS = "BETWEEN 0 AND 4294967293"
# slurmctld sends the end of each job that it knows again when it starts, and no more who cancelled it.
KEEP_WHO = """CREATE TRIGGER IF NOT EXISTS gpu_fleet_keep_who BEFORE UPDATE ON `{table}` FOR EACH ROW
SET NEW.kill_requid = IF(NEW.state = OLD.state AND OLD.kill_requid {users}
  AND NOT COALESCE(NEW.kill_requid {users}, FALSE), OLD.kill_requid, NEW.kill_requid);
"""
WHERE = re.compile(r"^-- CHANGE MASTER TO MASTER_LOG_FILE='([\w.-]+)', MASTER_LOG_POS=(\d+);$", re.MULTILINE)
HEAD = 4096  # bytes of a dump that say where in the log it was made
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptAccounts:
    """Where the accounts outlive a controller.

    Attributes:
        log: folder of MariaDB's log, for its account alone.
    """

    dump: Path
    log: Path


@dataclass(frozen=True)
class LogPlace:
    """A place in MariaDB's log.

    Attributes:
        file: its name without the folder.
        at: bytes from its beginning.
    """

    file: str
    at: int


def run(command: Sequence[str], given: bytes = b"") -> bytes:
    """What a program of MariaDB's says. Raises DatabaseError."""
    try:
        done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DatabaseError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise DatabaseError(f"{command[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _ask(query: str) -> list[str]:
    """Lines of an answer, columns by tabs. Raises DatabaseError."""
    return run(["mariadb", "--skip-column-names"], query.encode()).decode().splitlines()


def is_whole() -> bool:
    """Whether the accounts are on this disk, and complete."""
    return (DATA / WHOLE).is_dir()


def make_room(kept: KeptAccounts) -> None:
    """The log's folder, for MariaDB's account, which had another number elsewhere.

    Raises:
        OSError: it cannot be laid, or is a link, or the folder above it.
    """
    owner = pwd.getpwnam(MYSQL)
    with folders.made(kept.log.parent) as parent, folders.made(kept.log.name, parent) as log:
        os.fchmod(parent, MAY_PASS)
        folders.give_files(log, owner.pw_uid, owner.pw_gid)
        folders.give(log, owner.pw_uid, owner.pw_gid)


def begin(kept: KeptAccounts) -> bool:
    """Make the database and fill it with what is kept, while MariaDB writes no log; whether it did.

    A filling that was cut off is begun anew: what it left must not pass for all.

    Raises:
        DatabaseError, OSError: it is not complete, and is begun anew next time.
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
    """The dump's text, empty where there is none. Raises DatabaseError."""
    if not dump.is_file():
        return b""
    try:
        return gzip.decompress(dump.read_bytes())
    except (OSError, EOFError) as error:
        raise DatabaseError(f"{dump}: {error}") from error


def where(text: bytes) -> LogPlace | None:
    """The place in the log at which a dump was made; None where it does not say so."""
    place = WHERE.search(text[:HEAD].decode(errors="replace"))
    return LogPlace(place[1], int(place[2])) if place else None


def _log_files(folder: Path, place: LogPlace | None) -> list[tuple[Path, int]]:
    """Files of the log from a place on, and where to begin in each."""
    files = sorted(file for file in folder.glob(f"{LOG_NAME}.*") if file.suffix[1:].isdigit())
    if place is None:
        return [(file, 0) for file in files]
    return [(file, place.at if file.name == place.file else 0) for file in files if file.name >= place.file]


def _fill(text: bytes) -> None:
    """Empty the database, and fill it with a dump. Raises DatabaseError."""
    run(["mariadb"], (ANEW + SETUP).encode())
    # not as the database's root: the dump lies where Slurm's account may write
    run(["runuser", "-u", "slurm", "--", "mariadb", DATABASE], text)


def _changes(file: Path, at: int) -> bytes:
    """The changes of a file of the log, whose last one may be cut off: as far as it can be read."""
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
    """Let nobody forget who cancelled a job; for tables that are there. Raises DatabaseError."""
    for table in filter(JOB_TABLE.fullmatch, _ask(TABLES)):
        run(["mariadb", DATABASE], KEEP_WHO.format(table=table, users=USERS).encode())


def keep(kept: KeptAccounts, now_s: float) -> bool:
    """Write the dump where something changed and the last one is old; whether it did.

    Args:
        now_s: seconds since 1970.

    Raises:
        DatabaseError, OSError: it is not written; the one before stays, with the log since.
    """
    if not is_whole():
        raise DatabaseError("the accounts are not complete: none of them is kept over what is")
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

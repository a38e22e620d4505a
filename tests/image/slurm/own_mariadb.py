"""``python -m tests.image.slurm.own_mariadb``: the accounts' database on MariaDB itself, disk after disk.

In a mount namespace (``unshare --mount``) this program has its own system folders, which end with it. It
prints its results as JSON, for ``test_database.py``.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.core.queue_errors import DatabaseError
from gpu_fleet_image.slurm import accounting, configuration, database

DATA, RUN, CONF = database.DATA, Path("/run/mysqld"), accounting.MARIADB
START_S = 30
NOW = time.time()
TABLE = "`aws-dev_job_table`"
JOBS = f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, state INT, kill_requid INT UNSIGNED DEFAULT NULL);"
NOBODY = 2**32 - 1  # what slurmdbd 22.05 writes of a job that nobody cancelled


def sql(text: str, account: str = "root") -> list[str]:
    """Return MariaDB's answer to an account; the accounts' database is chosen for its tables."""
    command = ["runuser", "-u", account, "--", "mariadb", "--skip-column-names"]
    command += [configuration.DATABASE] if TABLE in text else []
    return database.run(command, text.encode()).decode().splitlines()


def jobs() -> list[str]:
    """Return each job in the table."""
    return sql(f"SELECT CONCAT_WS(' ', id, state, kill_requid) FROM {TABLE} ORDER BY id;")


def own_folders() -> None:
    """Mount empty folders for MariaDB and the homes; other programs keep theirs."""
    for folder in (DATA, RUN, CONF.parent, configuration.HOMES):
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder)], check=True)
    shutil.chown(RUN, "mysql", "mysql")


def new_disk() -> None:
    """Set MariaDB up as its package does."""
    for entry in DATA.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    shutil.chown(DATA, "mysql", "mysql")
    words = ("--user=mysql", "--skip-test-db", "--auth-root-authentication-method=socket")
    subprocess.run(["mariadb-install-db", *words], check=True, capture_output=True)


@contextmanager
def running(log: Path | None) -> Iterator["subprocess.Popen[bytes]"]:
    """Run MariaDB with this log, and kill it at the end of the block."""
    replace_text(CONF, configuration.mariadb_conf(log))
    words = ["mariadbd", "--user=mysql", f"--pid-file={RUN}/pid"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + START_S
            while time.monotonic() < until:
                with suppress(DatabaseError):
                    sql("SELECT 1;")
                    break
                time.sleep(0.1)
            yield process
        finally:
            process.kill()


def comes_back(kept: database.KeptAccounts) -> list[str]:
    """Start a controller with an empty disk; return the jobs that it knows."""
    new_disk()
    with running(None):
        database.begin(kept)
        return jobs()


def played(kept: database.KeptAccounts) -> dict[str, object]:
    """Run a controller, lose it, and return the knowledge of the next ones."""
    found: dict[str, object] = {}
    new_disk()
    database.make_room(kept)
    with running(None):
        found["first"] = database.begin(kept)
    with running(kept.log):
        sql(JOBS, "slurm")
        sql(f"INSERT INTO {TABLE} VALUES (1, 4, 5001);", "slurm")
    found["log alone"] = comes_back(kept)
    with running(kept.log):
        database.keep(kept, NOW)
        sql(f"UPDATE {TABLE} SET kill_requid = {NOBODY};", "slurm")  # slurmctld starts, and says so again
        sql(f"INSERT INTO {TABLE} VALUES (2, 1, NULL);", "slurm")
        sql(f"UPDATE {TABLE} SET state = 4, kill_requid = 0 WHERE id = 2;", "slurm")
        found["purged"] = sql("SHOW BINARY LOGS;")[0].split("\t")[0]
    found["dump and log"] = comes_back(kept)
    with running(kept.log):
        found["dumps"] = [database.keep(kept, NOW + database.DUMP_EVERY_S * times) for times in (2, 4)]
        sql(f"INSERT INTO {TABLE} VALUES (3, 3, NULL);", "slurm")
        sql(f"INSERT INTO {TABLE} VALUES (4, 3, NULL);", "slurm")
    newest = max(kept.log.glob("log.0*"))
    os.truncate(newest, newest.stat().st_size - 40)
    found["cut off"] = comes_back(kept)
    with running(kept.log):
        sql(f"INSERT INTO {TABLE} VALUES (5, 3, NULL);", "slurm")
    with running(kept.log):  # the same disk: MariaDB was cut off, and starts again
        found["started again"] = jobs()
    found["on after that"] = comes_back(kept)
    found["half a filling"] = half(kept)
    return found


def half(kept: database.KeptAccounts) -> list[str]:
    """Kill a controller while it fills its database, and start it again on the same disk; return its jobs."""
    good = kept.dump.read_bytes()
    new_disk()
    with running(None):
        kept.dump.write_bytes(gzip.compress(gzip.decompress(good) + b"no SQL;\n"))
        with suppress(DatabaseError):
            database.begin(kept)
        with suppress(DatabaseError):
            database.keep(kept, NOW + database.DUMP_EVERY_S * 4)
        kept.dump.write_bytes(good)
        database.begin(kept)
        return jobs()


if __name__ == "__main__":
    own_folders()
    dump = configuration.HOMES / "dump/a.gz"
    dump.parent.mkdir()
    accounts = database.KeptAccounts(dump, configuration.accounting_log_of("t"))
    sys.stdout.write(json.dumps(played(accounts)))

"""The accounts' database on MariaDB itself, after a controller was lost with its disk."""

import json
import subprocess
import sys
import sysconfig

import pytest

from gpu_fleet_image.recipe import build_requirements
from gpu_fleet_image.recipe.payload import PROJECT
from gpu_fleet_image.slurm import accounting, configuration
from tests.image.recipe.test_units_under_systemd import NAMESPACES, ROOT, UNITS
from tests.image.slurm.guests import AS_ROOT
from tests.ran import ran

PACKAGES = ("mariadb-server", "slurmdbd", "systemd", "util-linux")
LOG = configuration.accounting_log_of("test")
# What a controller does, and what MariaDB then has and sees.
PROOF = f"""#!/bin/bash
mount -t tmpfs tmpfs {configuration.HOMES}
mkdir -p {LOG} /run/mysqld {configuration.HOMES}/ada
chown mysql:mysql {LOG} /run/mysqld
systemctl restart mariadb.service
mariadb -e 'CREATE DATABASE own'
cp {LOG}/{configuration.LOG_NAME}.000001 /results/log
pid=$(systemctl show mariadb --value --property=MainPID)
nsenter --mount --target="$pid" ls -A {configuration.HOMES} >/results/homes
systemctl show mariadb --value --property=After >/results/after
mkdir -p /run/systemd/system/mariadb.service.d
printf '[Service]\\nExecStopPost=+/bin/sh -c "mountpoint {configuration.HOMES} >/results/at-the-end"\\n' \
    >/run/systemd/system/mariadb.service.d/test.conf
systemctl daemon-reload
systemctl stop mariadb.service home.mount # as the end of the instance does
"""
pytestmark = [pytest.mark.queue, pytest.mark.timeout(600), AS_ROOT]


@pytest.fixture(scope="module")
def found():
    """Return the knowledge of each new controller (``own_mariadb.py``)."""
    build_requirements.install(PACKAGES)
    own = ("unshare", "--mount", "--propagation", "private")
    done = ran([*own, sys.executable, "-m", "tests.image.slurm.own_mariadb"], cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


FIRST = ["1 4 5001", "2 4 0"]  # who cancelled a job is known, also of a change after the dump
KNOWN = {
    "first": False,
    "log alone": FIRST[:1],
    "dump and log": FIRST,
    # a dump ends the files of the log before it, and is not written where nothing changed
    "purged": "log.000002",
    "dumps": [True, False],
    # of a log whose last change is cut off all others are known
    "cut off": [*FIRST, "3 3"],
    "started again": [*FIRST, "3 3", "5 3"],
    "on after that": [*FIRST, "3 3", "5 3"],
    # one that failed is begun anew, and spoils no dump
    "half a filling": [*FIRST, "3 3", "5 3"],
}


@pytest.mark.parametrize("of", KNOWN)
def test_a_new_controller_knows_all_that_dump_and_log_hold(found, of):
    assert found[of] == KNOWN[of]


@pytest.fixture
def results(tmp_path):
    """Run the package's unit of MariaDB under a separate systemd with the recipe's files; return results."""
    build_requirements.install(PACKAGES)
    system = "etc/systemd/system"
    files = {
        "proof": PROOF,
        "opt/gpu-fleet/venv/bin/python": "",
        str(accounting.MARIADB)[1:]: configuration.mariadb_conf(LOG),
        f"{system}/proof.target": "[Unit]\nRequires=basic.target\nWants=proof.service\n",
        f"{system}/proof.service": "[Unit]\nAfter=basic.target\nSuccessAction=exit-force\n"
        "FailureAction=exit-force\n[Service]\nType=oneshot\nExecStart=/proof\n",
    }
    for folder in ("memory", "results"):
        (tmp_path / folder).mkdir()
    for name, text in files.items():
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / name).write_text(text)
    modules = PROJECT / "image/gpu_fleet_image"
    sources = (tmp_path, UNITS.parents[2], modules, sysconfig.get_path("purelib"))
    subprocess.run([*NAMESPACES, "bash", "-c", ROOT, "root", *sources], timeout=150, check=False)
    return tmp_path / "results"


def test_mariadb_reaches_its_log_on_the_homes_and_nothing_else_there(results):
    assert b"CREATE DATABASE own" in (results / "log").read_bytes()
    assert (results / "homes").read_text().split() == [configuration.ACCOUNTING.name]
    # the last word of its log is written while the homes are there
    assert (results / "at-the-end").read_text() == f"{configuration.HOMES} is a mountpoint\n"
    units = {"home-tunnel.service", "home-file-system.service", "home.mount"}
    assert units <= set((results / "after").read_text().split())

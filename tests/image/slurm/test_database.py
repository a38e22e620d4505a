"""The accounts' database on MariaDB itself, after a controller was lost with its disk."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

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
    done = ran(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-m",
            "tests.image.slurm.own_mariadb",
        ],
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_log_alone_has_all_that_the_first_controller_wrote(found):
    assert not found["first"]
    assert found["log alone"] == ["1 4 5001"]


def test_a_change_after_the_dump_is_known_and_so_is_who_cancelled_a_job(found):
    assert found["dump and log"] == ["1 4 5001", "2 4 0"]


def test_a_dump_ends_the_files_of_the_log_before_it(found):
    assert found["purged"] == "log.000002"


def test_where_nothing_changed_there_is_no_new_dump(found):
    assert found["dumps"] == [True, False]


def test_of_a_log_whose_last_change_is_cut_off_all_others_are_known(found):
    assert found["cut off"] == ["1 4 5001", "2 4 0", "3 3"]
    assert found["started again"] == found["on after that"]
    assert found["on after that"] == ["1 4 5001", "2 4 0", "3 3", "5 3"]


def test_a_filling_that_failed_is_begun_anew_and_spoils_no_dump(found):
    assert found["half a filling"] == found["on after that"]


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
    sources = (
        tmp_path,
        UNITS.parents[2],
        PROJECT / "image" / "gpu_fleet_image",
        sysconfig.get_path("purelib"),
    )
    subprocess.run([*NAMESPACES, "bash", "-c", ROOT, "root", *sources], timeout=150, check=False)
    return tmp_path / "results"


def test_mariadb_reaches_its_log_on_the_homes_and_nothing_else_there(results):
    assert b"CREATE DATABASE own" in (results / "log").read_bytes()
    assert (results / "homes").read_text().split() == [configuration.ACCOUNTING.name]
    # the last word of its log is written while the homes are there
    assert (results / "at-the-end").read_text() == f"{configuration.HOMES} is a mountpoint\n"
    units = {"home-tunnel.service", "home-file-system.service", "home.mount"}
    assert units <= set((results / "after").read_text().split())

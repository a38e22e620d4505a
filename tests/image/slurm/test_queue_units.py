"""The units of the queue under a separate systemd: Slurm and its jobs work in their sandboxes.

systemd runs as the first process of new namespaces, on this computer's files with a layer of memory above.
Units that write keys and configuration from the cloud are left out; the servers are Debian's.
"""

import json
import shutil
from pathlib import Path

import pytest

from gpu_fleet_image.recipe import build_requirements
from gpu_fleet_image.slurm import configuration
from gpu_fleet_image.slurm.configuration import Cluster
from tests.image.recipe.test_units_under_systemd import NAMESPACES
from tests.image.slurm.guests import AS_ROOT
from tests.image.slurm.real_sizes import PACKAGES
from tests.ran import ran

UNITS = Path(__file__).parents[3] / "image/gpu_fleet_image/recipe/rootfs/etc/systemd/system"
STATE = "/home/.gpu-fleet-queue/test"
pytestmark = [pytest.mark.queue, pytest.mark.timeout(240), AS_ROOT]

# $1: a folder that is ours, with `files` for the root and `results`
ROOT = r"""
set -euo pipefail
hostname localhost
mount --make-rprivate /
mkdir "$1/memory" && mount -t tmpfs tmpfs "$1/memory"
mkdir "$1/memory/"{upper,work,root}
root=$1/memory/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/memory/upper,workdir=$1/memory/work" "$root"
for fs in proc sysfs:sys tmpfs:run tmpfs:tmp tmpfs:home cgroup2:sys/fs/cgroup; do
    mount -t "${fs%%:*}" "${fs%%:*}" "$root/${fs#*:}"
done
mount --rbind /dev "$root/dev"
rm -rf "$root/etc/systemd/system" && mkdir "$root/results"
mount --bind "$1/results" "$root/results"
cp -r "$1/files/." "$root"
cd "$root"
mkdir before
pivot_root . before
umount --lazy /before
mount --make-rshared /
for unit in udevd udev-trigger networkd timesyncd modules-load sysctl random-seed remount-fs; do
    ln -sf /dev/null "/etc/systemd/system/systemd-$unit.service"
done
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=proof.target --log-target=null --show-status=no
"""
PROOF = rf"""#!/bin/bash
record() {{ local name=$1; shift; "$@" >"/results/$name.out" 2>&1; echo $? >"/results/$name"; }}
answers() {{ for _ in {{1..60}}; do "$@" >/dev/null 2>&1 && return; sleep 0.5; done; "$@"; }}
ip link set lo up
ip link add gf0 type bridge && ip address add 10.0.0.1/24 dev gf0 && ip link set gf0 up
mkdir -p /run/munge /run/mysqld && chown munge:munge /run/munge && chown mysql:mysql /run/mysqld
setpriv --reuid munge --regid munge --clear-groups /usr/sbin/munged
systemd-run --quiet --unit=database --uid=mysql mariadbd
answers mariadb-admin ping
mariadb -e "create database if not exists {configuration.DATABASE};
    create user if not exists slurm@localhost identified via unix_socket;
    grant all on {configuration.DATABASE}.* to slurm@localhost"
install -d -o slurm {STATE}
chown slurm /etc/slurm/slurmdbd.conf && chmod 600 /etc/slurm/slurmdbd.conf
record accounting systemctl start gpu-queue-accounting
record accounts answers sacctmgr --immediate add cluster test
record team sacctmgr --immediate add account nlp
record user sacctmgr --immediate add user root account=nlp
record controller systemctl start gpu-queue-controller
record answers answers sinfo
record takes-a-job answers sbatch --hold --wrap=true
record state answers test -s {STATE}/job_state
record watch systemctl start gpu-queue-watch
answers test -e /results/watched
readlink /proc/self/ns/mnt >/results/mounts
record node systemctl start gpu-queue-node
record joins answers sh -c 'sinfo --noheader --format=%T | grep -q idle'
as_nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"
record job srun --immediate=30 $as_nobody python3 -I /job.py
record as-root srun --immediate=30 python3 -I /job.py
journalctl --no-pager -o cat >/results/journal
for unit in accounting controller watch node; do
    systemctl is-active gpu-queue-$unit
done >/results/active
touch /results/done
systemctl exit --force --force
"""
# What gpu_fleet_image.slurm.controller does from its look to its look, each as a line.
WATCHED = rf"""
import os, pwd, subprocess
done = open("/results/watched.part", "w")
def tried(name, act):
    try:
        act()
    except BaseException as error:
        print(name, repr(error), file=done)
    else:
        print(name, file=done)
def ask(*words):
    subprocess.run(words, check=True, capture_output=True)
def write(path):
    with open(path + ".part", "w") as written:
        written.write("x")
    os.replace(path + ".part", path)
def give():
    os.makedirs("/home/.accounting/test")
    os.chown("/home/.accounting/test", pwd.getpwnam("mysql").pw_uid, 0)
tried("jobs", lambda: ask("squeue", "--json"))
tried("nodes", lambda: ask("scontrol", "show", "nodes"))
tried("word", lambda: ask("scontrol", "show", "job", "1"))
tried("accounts", lambda: ask("sacctmgr", "--immediate", "add", "account", "vision"))
tried("dump", lambda: ask("mariadb-dump", "--single-transaction", "{configuration.DATABASE}"))
tried("configuration", lambda: write("/etc/slurm/gres.conf"))
tried("homes", give)
tried("system", lambda: write("/usr/bin/gpu-fleet-x"))
tried("others", lambda: write("/etc/gpu-fleet-x"))
done.close()
os.rename("/results/watched.part", "/results/watched")
import time; time.sleep(600)
"""
# What a job finds that it may do: users' own ways must be open, the kernel's closed to root too.
JOB = r"""
import ctypes, json, os, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    return "done" if libc.syscall(*words) >= 0 else os.strerror(ctypes.get_errno())
def run(*words):
    return subprocess.run(words, capture_output=True).returncode == 0
print(json.dumps({
    "setuid": "NoNewPrivs:\t0" in open("/proc/self/status").read(),
    "container": run("unshare", "--user", "--map-root-user", "--uts", "--mount", "--pid", "--fork",
                     "sh", "-c", "hostname box && mount -t tmpfs none /mnt"),
    "debugger": call(135, 0x0040000) == "done",  # personality(ADDR_NO_RANDOMIZE)
    "netlink": bool(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
    "mounts": os.readlink("/proc/self/ns/mnt") == open("/results/mounts").read().strip(),
    "clock": call(227, 999, None),  # clock_settime of no clock, which is EINVAL where it is allowed
    "modules": call(176, b"none", 0),  # delete_module of none: ENOENT
    "reboot": call(169, 0, 0, 0, None),  # without its magic: EINVAL
}))
"""
NODE = "/usr/sbin/slurmd -D -Z -N i-0 --conf Feature=train --conf-server 10.0.0.1:6817"
USUAL = {"setuid": True, "container": True, "debugger": True, "netlink": True, "mounts": True}
KERNEL = dict.fromkeys(("clock", "modules", "reboot"), "Operation not permitted")
# of a node what this computer has not
LEFT_OUT = ("Prolog=", "Epilog=", "HealthCheck", "TaskProlog", "ProctrackType", "TaskPlugin", "GresTypes")
HERE = "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
OVERRIDES = {
    "node": f"ExecStartPre=\nExecStart=\nExecStart={NODE}\n",
    "accounting": "ExecStartPre=\n",
    "controller": "ExecStartPre=\n",
    "watch": "ExecStart=\nExecStart=/usr/bin/python3 -I /watched.py\n",
}


def files(folder: Path) -> None:
    """Write the files of the root: the units, Slurm's configuration, and the proof."""
    cluster = Cluster("test", "localhost", "10.0.0.1", {"train": 1000}, STATE)
    rows = [row for row in configuration.slurm_conf(cluster).splitlines() if not row.startswith(LEFT_OUT)]
    system = folder / "etc/systemd/system"
    system.mkdir(parents=True)
    for name, override in OVERRIDES.items():
        shutil.copy(UNITS / f"gpu-queue-{name}.service", system)
        (system / f"gpu-queue-{name}.service.d").mkdir()
        (system / f"gpu-queue-{name}.service.d/here.conf").write_text(f"[Service]\n{override}")
    (system / "proof.service").write_text("[Service]\nType=oneshot\nExecStart=/bin/bash /proof\n")
    (system / "proof.target").write_text("[Unit]\nRequires=proof.service\n")
    for path, text in {
        "etc/gpu-fleet/queue.json": "{}",
        "etc/slurm/slurm.conf": HERE + "\n".join(rows) + "\n",
        "etc/slurm/slurmdbd.conf": configuration.slurmdbd_conf("localhost", "10.0.0.1"),
        # a computer with both versions of cgroups is none for slurmd; here it uses neither
        "etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "etc/slurm/job_submit.lua": configuration.job_submit("gres:gpu"),
        "job.py": JOB,
        "proof": PROOF,
        "watched.py": WATCHED,
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Run the units; return the folder with a file for each result."""
    build_requirements.install(("mariadb-server", "slurmdbd", *PACKAGES))
    folder = tmp_path_factory.mktemp("units")
    (folder / "results").mkdir()
    files(folder / "files")
    words = [*NAMESPACES, "bash", "-c", ROOT, "root", str(folder)]
    done = ran(words, timeout=180)
    if not (folder / "results/accounting").exists():
        pytest.skip(f"no systemd of its own here: {done.stderr[-300:]}")
    return folder / "results"


def said(results: Path, name: str) -> str:
    return "\n".join((results / part).read_text() for part in (f"{name}.out", "journal"))[-3000:]


SERVERS = ("accounting", "accounts", "team", "user", "controller", "answers", "takes-a-job", "state")


@pytest.mark.parametrize("name", [*SERVERS, "watch", "joins"])
def test_slurm_works_in_the_sandboxes_of_its_units(results, name):
    assert (results / name).read_text() == "0\n", said(results, name)


def test_all_of_them_stay_up(results):
    assert (results / "active").read_text().split() == ["active"] * 4, said(results, "watch")


def test_the_watch_does_its_work_and_writes_nowhere_else(results):
    lines = (results / "watched").read_text().splitlines()

    assert lines[:7] == ["jobs", "nodes", "word", "accounts", "dump", "configuration", "homes"]
    assert all("Read-only file system" in line for line in lines[7:])
    assert len(lines) == 9


@pytest.mark.parametrize("job", ["job", "as-root"])
def test_jobs_have_their_usual_ways_and_none_to_the_kernels(results, job):
    """Setuid programs, containers of their own, debuggers, and mounts that their users' shells see."""
    lines = (results / f"{job}.out").read_text().splitlines()

    assert lines, said(results, job)
    assert json.loads(lines[-1]) == USUAL | KERNEL, said(results, job)

"""The units of agent, gate and trainer under a systemd of their own: it starts them, their sandboxes hold.

systemd runs as the first process of new namespaces, on this computer's files with a layer of memory above
them. Nothing of it reaches the computer. Programs that the units start are the product's.
"""

import json
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from image.payload import PROJECT
from image.reaper.agent.listening import CLOSED
from stacks.settings import people
from tests.reaper.instance_toml import INSTANCE_TOML
from tests.stacks.examples import stack

UNITS = PROJECT / "image/rootfs/etc/systemd/system"
NAMESPACES = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--net")
NO_GPU = INSTANCE_TOML.partition('[expected."')[0]
NOWHERE = (
    "Environment=AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:9"
    " AWS_ACCESS_KEY_ID=a AWS_SECRET_ACCESS_KEY=b"
)

# $1: a folder that is ours, $2: the rootfs of the recipe, $3: the image's modules, $4: packages
ROOT = r"""
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs tmpfs "$1/memory"
mkdir "$1/memory/"{upper,work,root}
root=$1/memory/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/memory/upper,workdir=$1/memory/work" "$root"
for fs in proc sysfs:sys tmpfs:run tmpfs:tmp cgroup2:sys/fs/cgroup; do
    mount -t "${fs%%:*}" "${fs%%:*}" "$root/${fs#*:}"
done
mount --rbind /dev "$root/dev"
mkdir -p "$root/opt/gpu-fleet/"{bin,lib,vendor,venv/bin} "$root/"{etc/gpu-fleet/jobs,results,secret}
mount --bind "$1/results" "$root/results"
mount --bind "$4" "$root/opt/gpu-fleet/vendor"
cp -r "$3" "$root/opt/gpu-fleet/lib/image"
cp "$2/opt/gpu-fleet/bin/run" "$root/opt/gpu-fleet/bin/run"
install -D "$2/usr/libexec/gpu-fleet/open-door" "$root/usr/libexec/gpu-fleet/open-door"
rm -rf "$root/etc/systemd/system"
cp -r "$2/etc/systemd/system" "$root/etc/systemd/system"
mkdir -p "$root/etc/"{sysusers.d,tmpfiles.d}
cp "$2/etc/sysusers.d/"* "$root/etc/sysusers.d"
cp "$2/etc/tmpfiles.d/"* "$root/etc/tmpfiles.d"
cp -r "$1/files/." "$root"
touch "$root/etc/gpu-fleet/jobs/demo.toml"
chmod 755 "$root/opt/gpu-fleet/venv/bin/python" "$root/proof"
for unit in udevd udev-trigger journald networkd timesyncd modules-load sysctl random-seed remount-fs; do
    ln -sf /dev/null "$root/etc/systemd/system/systemd-$unit.service"
done
mkdir "$root/before"
cd "$root"
pivot_root . before
umount --lazy /before
mount --make-rshared / # as systemd does where it knows of no container
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=proof.target --log-target=null --show-status=no
"""

PROOF = r"""#!/bin/bash
record() { local name=$1; shift; "$@" >"/results/$name.out" 2>&1; echo $? >"/results/$name"; }
ip link set lo up
systemd-sysusers; systemd-tmpfiles --create gpu-fleet.conf
record trainer-before-gate systemctl start trainer@demo
record gate systemctl start gpu-ready
cp /run/gpu-fleet/ready.json /results/passed.json
record trainer-after-gate systemctl start trainer@demo
systemctl stop trainer@demo
printf '[expected."g5.xlarge"]\ngpus = 1\ngpu_memory_gib = 24\n' >>/etc/gpu-fleet/instance.toml
record broken-gate systemctl restart gpu-ready
record trainer-after-broken-gate systemctl start trainer@demo
for door in /run/gpu-fleet/closed /run/nologin; do
    cp /closing $door; touch --date='66 minutes ago' $door
done
record door systemctl start gpu-door
ls /run/nologin /run/gpu-fleet/closed >/results/door.left 2>/dev/null
rm /run/gpu-fleet/*
record hung-gate systemctl start hung
cp /run/gpu-fleet/ready.json /results/hung.json
record accounts systemctl start gpu-accounts
record ada id -Gn ada
record home-of-ada stat -c '%U %a' /home/ada
mkdir -p /scratch; touch /run/gpu-fleet/ready
fleet() { /usr/bin/python3 -I /opt/gpu-fleet/bin/run image.console "$@"; }
start() { fleet start-run --run=digits-1 --sha256="$(printf '0%.0s' {1..64})" "$@"; }
record run-of-root start --account=root
record run-of-ada start --account=ada
for _ in {1..100}; do [ -e /scratch/runs/ada/busy ] && break; sleep 0.1; done
record second-run start --account=ada
touch /scratch/runs/ada/go
while [ "$(systemctl show gpu-run@ada --value --property=ActiveState)" = active ]; do sleep 0.1; done
cp /scratch/runs/ada/who /results/who
record left-by-ada pgrep --uid ada
rm /run/gpu-fleet/ready
unshare --net sleep 300 &
setpriv --reuid 4242 --clear-groups sleep 301 &
chown 4242 /secret; echo mine >/secret/own; chmod 700 /secret
systemctl start sandbox
mkdir -p /scratch; mount -t tmpfs tmpfs /scratch; touch /scratch/later
sleep 0.5; touch /run/go
while systemctl is-active --quiet sandbox; do sleep 0.2; done
sed -i '/expected/,$d' /etc/gpu-fleet/instance.toml
record agent systemctl start gpu-reaper
while systemctl is-active --quiet gpu-reaper; do sleep 0.2; done
cp /run/gpu-fleet/activity.json /results/activity.json
"""

# What the agent's sensors and answers do, one by one, in its sandbox; each says its name and what came of it.
IN_THE_SANDBOX = r"""
import ctypes, json, os, stat, subprocess, threading, time
LIBC = ctypes.CDLL(None, use_errno=True)
results = {}

def pid_of(word):
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        if open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[:2] == [b"sleep", word]:
            return pid

def container_network():
    answers, namespace = [], os.open(f"/proc/{pid_of(b'300')}/ns/net", os.O_RDONLY)
    thread = threading.Thread(target=lambda: answers.append(LIBC.setns(namespace, 0x40000000)))
    thread.start(); thread.join()
    return answers == [0]

def processes_of_others():
    where = f"/proc/{pid_of(b'301')}"
    return bool(open(where + "/io").read() and open(where + "/environ").read() and os.listdir(where + "/fd"))

def another_account():
    made = subprocess.Popen(["sleep", "99"], user=4243, group=4243, extra_groups=(), start_new_session=True)
    os.killpg(made.pid, 9)
    return made.wait() == -9

def device_of_a_driver_that_comes_later():
    os.mknod("/dev/gpu-fleet-probe", 0o600 | stat.S_IFCHR, os.makedev(195, 255))
    try:
        os.close(os.open("/dev/gpu-fleet-probe", os.O_RDWR))
    except PermissionError:
        return False
    except OSError:  # no such driver here
        pass
    finally:
        os.unlink("/dev/gpu-fleet-probe")
    return True

def disk():
    os.mknod("/dev/gpu-fleet-probe", 0o600 | stat.S_IFBLK, os.makedev(7, 0))

def disk_mounted_later():
    while not os.path.exists("/run/go"):
        time.sleep(0.1)
    return os.path.exists("/scratch/later")

WAYS = {
    "nologin": lambda: open("/run/nologin", "w").write("closed") > 0,
    "files of others": lambda: open("/secret/own").read() == "mine\n",
    "wall": lambda: subprocess.run(["wall", "hello"]).returncode == 0,
    "system files": lambda: open("/etc/planted", "w").write("x"),
    "mount": lambda: LIBC.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, None) == 0,
    **{way.__name__: way for way in (container_network, processes_of_others, another_account, disk,
       device_of_a_driver_that_comes_later, disk_mounted_later)},
}
for name, way in WAYS.items():
    try:
        results[name] = way()
    except OSError as error:
        results[name] = error.strerror
open("/run/results.json", "w").write(json.dumps(results))
"""


# A trainer, or an instance's part of a submitted run, which starts what it does not end.
VENV_PYTHON = """#!/bin/sh
[ "$3" = work ] || exec sleep 600
{ id -un; pwd; echo "$GPU_FLEET_RUN"; } >who
setsid sleep 600 &
touch busy
while [ ! -e go ]; do sleep 0.1; done
"""
ADA = {"ada": {"uid": 5001, "team": "vision", "admin": True}}


def changed(unit: str, **settings: str) -> str:
    """A unit with other settings, the last of which count."""
    lines = [
        line for line in (UNITS / unit).read_text().splitlines() if line.partition("=")[0] not in settings
    ]
    where = lines.index("[Service]") + 1
    return (
        "\n".join(lines[:where] + [f"{key}={value}" for key, value in settings.items()] + lines[where:])
        + "\n"
    )


def files() -> dict[str, str]:
    system = "etc/systemd/system"
    agent = "/usr/bin/python3 -I /opt/gpu-fleet/bin/run image.console agent --instance-id i-1"
    return {
        "etc/gpu-fleet/instance.toml": NO_GPU,
        "opt/gpu-fleet/venv/bin/python": VENV_PYTHON,
        "proof": PROOF,
        "var/lib/gpu-fleet/accounts.json": people.roster_text(stack(access={"people": ADA})),
        f"{system}/gpu-accounts.service.d/test.conf": f"[Service]\n{NOWHERE}\n"
        "StandardOutput=file:/results/accounts.log\nStandardError=file:/results/accounts.log\n",
        "closing": CLOSED + "\n",
        "sandbox.py": IN_THE_SANDBOX,
        f"{system}/gpu-ready.service.d/test.conf": f"[Service]\n{NOWHERE}\n",
        f"{system}/gpu-reaper.service.d/test.conf": f"[Service]\n{NOWHERE}\nRestart=no\nExecStart=\n"
        f"ExecStart={agent} --clock-speed 60 --duration 150\n"
        "ExecStopPost=-+/bin/cp /run/results.json /results\n",
        f"{system}/sandbox.service": changed(
            "gpu-reaper.service",
            ExecStart="/usr/bin/python3 /sandbox.py",
            ExecStopPost="+/bin/cp /run/results.json /results",
            Restart="no",
        ),
        f"{system}/hung.service": changed(
            "gpu-ready.service", ExecStart="/bin/sleep 60", TimeoutStartSec="2"
        ),
        f"{system}/proof.target": "[Unit]\nRequires=basic.target\nWants=proof.service\n",
        f"{system}/proof.service": "[Unit]\nAfter=basic.target\nSuccessAction=exit-force\n"
        "FailureAction=exit-force\n[Service]\nType=oneshot\nExecStart=/proof\n",
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The folder into which everything was written that came of it."""
    folder = tmp_path_factory.mktemp("systemd")
    for name in ("memory", "results", "files"):
        (folder / name).mkdir()
    for path, text in files().items():
        (folder / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "files" / path).write_text(text)
    if os.geteuid() != 0 or not Path("/lib/systemd/systemd").exists():
        pytest.skip("a systemd of its own needs root and the package systemd")
    sources = (folder, UNITS.parents[2], PROJECT / "image", sysconfig.get_path("purelib"))
    done = subprocess.run(
        [*NAMESPACES, "bash", "-c", ROOT, "root", *sources],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if not (folder / "results/trainer-before-gate").exists():
        pytest.skip(f"no systemd of its own here: {done.stderr[-300:]}")
    return folder / "results"


def status(results, name):
    return int((results / name).read_text())


def test_accounts_are_made_in_their_sandbox_of_the_last_roster_while_the_bucket_is_silent(results):
    log = (results / "accounts.log").read_text()

    assert status(results, "accounts") != 0
    assert "event=roster-not-read" in log
    assert "account-not-changed" not in log
    assert {"vision", "gpu-fleet-users", "gpu-fleet-admins"} <= set((results / "ada.out").read_text().split())
    assert (results / "home-of-ada.out").read_text() == "ada 700\n"


def test_a_submitted_run_starts_as_its_users_account_and_leaves_nothing_behind(results):
    assert status(results, "run-of-ada") == 0, (results / "run-of-ada.out").read_text()
    assert (results / "who").read_text() == "ada\n/scratch/runs/ada\ndigits-1\n"
    assert (results / "left-by-ada.out").read_text() == ""


def test_no_submitted_run_starts_as_root_nor_beside_another(results):
    assert status(results, "run-of-root") != 0
    assert "there is no account 'root' here" in (results / "run-of-root.out").read_text()
    assert "another run works here: gpu-run@ada.service" in (results / "second-run.out").read_text()


def test_no_trainer_starts_before_the_gate_has_passed(results):
    assert status(results, "trainer-before-gate") != 0
    assert "Assertion failed" in (results / "trainer-before-gate.out").read_text()


def test_a_trainer_starts_after_a_gate_that_passed(results):
    assert status(results, "gate") == 0
    assert json.loads((results / "passed.json").read_text())["ready"] is True
    assert status(results, "trainer-after-gate") == 0


def test_no_trainer_starts_after_a_gate_that_failed(results):
    assert status(results, "broken-gate") != 0
    assert status(results, "trainer-after-broken-gate") != 0


def test_a_door_that_no_agent_opened_in_time_is_opened_from_within_its_sandbox(results):
    assert status(results, "door") == 0, (results / "door.out").read_text()
    assert (results / "door.left").read_text() == ""


def test_a_gate_that_hangs_is_a_failed_one(results):
    assert status(results, "hung-gate") != 0
    assert json.loads((results / "hung.json").read_text())["ready"] is False


def test_the_agent_sees_all_it_must_from_within_its_sandbox(results):
    activity = json.loads((results / "activity.json").read_text())
    # its bucket is made up: whether that is known before the first minute ends is a matter of speed
    unseen = [
        reason for reason in activity["unknown"] if not reason.startswith("command: policy of the stack")
    ]

    assert status(results, "agent") == 0
    assert (activity["instance_id"], unseen) == ("i-1", [])


@pytest.mark.parametrize(
    "way",
    [
        *("nologin", "files of others", "wall", "container_network", "processes_of_others"),
        *("another_account", "device_of_a_driver_that_comes_later", "disk_mounted_later"),
    ],
)
def test_the_agents_sandbox_lets_it_do_its_work(results, way):
    assert json.loads((results / "results.json").read_text())[way] is True


@pytest.mark.parametrize(
    ("way", "refusal"),
    [
        ("system files", "Read-only file system"),
        ("disk", "Operation not permitted"),
        ("mount", False),
    ],
)
def test_the_agents_sandbox_keeps_it_from_all_else(results, way, refusal):
    assert json.loads((results / "results.json").read_text())[way] == refusal


# The agent's own limit is above 3.0 for what it is there for: it reads every process (CAP_SYS_PTRACE, no
# ProtectProc), enters containers' networks (CAP_SYS_ADMIN), and runs idle.command as another account
# (CAP_SETUID, CAP_KILL) that must see /tmp, homes and processes as its author does.
@pytest.mark.parametrize(
    ("unit", "most"),
    [
        ("gpu-ready.service", 30),
        ("gpu-accounts.service", 30),
        ("gpu-door.service", 30),
        ("gpu-reaper.service", 37),
    ],
)
def test_a_unit_is_exposed_no_more_than_its_work_asks_for(unit, most):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")

    scored = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=yes", f"--threshold={most}", UNITS / unit],
        capture_output=True,
        text=True,
        check=False,
    )

    assert scored.returncode == 0, scored.stdout[-200:] + scored.stderr

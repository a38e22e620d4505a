"""The units of agent, gate and trainer under a systemd of their own: it starts them, their sandboxes hold.

systemd runs as the first process of new namespaces, on this computer's files with a layer of memory above
them. Nothing of it reaches the computer. Programs that the units start are the product's.
"""

import json
import os
import re
import shutil
import sysconfig
from pathlib import Path

import pytest

from gpu_fleet_image.instance.agent.listening import CLOSED
from gpu_fleet_image.recipe import payload
from gpu_fleet_image.recipe.payload import PROJECT
from gpu_fleet_stacks.settings import people
from tests.image.instance_toml import INSTANCE_TOML
from tests.ran import ran
from tests.stacks.examples import stack

UNITS = PROJECT / "image/gpu_fleet_image/recipe/rootfs/etc/systemd/system"
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
chmod 755 "$root/run"
mount --rbind /dev "$root/dev"
mkdir -p "$root/opt/gpu-fleet/"{bin,lib,vendor,venv/bin} "$root/"{etc/gpu-fleet/jobs,results,secret}
mount --bind "$1/results" "$root/results"
mount --bind "$4" "$root/opt/gpu-fleet/vendor"
cp -r "$3" "$root/opt/gpu-fleet/lib/gpu_fleet_image"
cp "$2/opt/gpu-fleet/bin/run" "$root/opt/gpu-fleet/bin/run"
install -D -t "$root/usr/libexec/gpu-fleet" "$2/usr/libexec/gpu-fleet/"{open-door,idle-command,mount-home}
rm -rf "$root/etc/systemd/system"
cp -r "$2/etc/systemd/system" "$root/etc/systemd/system"
mkdir -p "$root/etc/"{sysusers.d,tmpfiles.d}
cp "$2/etc/sysusers.d/"* "$root/etc/sysusers.d"
cp "$2/etc/tmpfiles.d/"* "$root/etc/tmpfiles.d"
install -D -m 644 -t "$root/usr/share/gpu-fleet" "$2/usr/share/gpu-fleet/metadata.nft"
cp -r "$2/etc/environment.d" "$root/etc"
find "$1/files" -type f \( -path '*/bin/*' -o -name proof \) -exec chmod 755 {} +
cp -r "$1/files/." "$root"
touch "$root/etc/gpu-fleet/jobs/demo.toml"
mknod -m 666 "$root/gpu" c 195 254
mknod -m 666 "$root/disk" b 7 251
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
ended() { for _ in {1..100}; do [ ! -e "$1" ] || return 0; sleep 0.1; done; }
record trainer-before-gate systemctl start trainer@demo
install -m 4755 /usr/bin/id /usr/local/bin/idle-setuid
touch /tmp/of-others
record gate systemctl start gpu-ready
cp /run/gpu-fleet/ready.json /results/passed.json
install -d -o 4242 /scratch/runs/gpu-fleet # somebody's, in the place of the trainer's home
record trainer-after-gate systemctl start trainer@demo
ended /scratch/runs/demo/tried
cp /scratch/runs/demo/tried /results/trainer.json
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
sed -i 's/^home_file_system = .*/home_file_system = "homes.example"/' /etc/gpu-fleet/instance.toml
listens() { for _ in {1..50}; do ss -Hltn 'sport = :20049' | grep . && return; sleep 0.1; done; false; }
if command -v stunnel4; then
    record tunnel systemctl start home-tunnel
    record tunnel-listens listens
    tunnel=$(systemctl show home-tunnel --value --property=MainPID)
    record own-mounts-of-tunnel readlink /proc/self/ns/mnt "/proc/$tunnel/ns/mnt"
    systemctl stop home-tunnel
fi
sed -i 's/^home_file_system = .*/home_file_system = ""/' /etc/gpu-fleet/instance.toml
if command -v nft; then
    nft --file /usr/share/gpu-fleet/metadata.nft && nft flush ruleset
    record flushed nft list chain inet gpu_fleet asked
fi
record accounts systemctl start gpu-accounts
record ada id -Gn ada
if command -v nft; then record closed-again nft list chain inet gpu_fleet asked; fi
later() { # what an account has begun by cron and by at, before either runs
    echo "@reboot touch /ran/cron-of-$1" | crontab -u "$1" -
    echo "touch /ran/at-of-$1" | runuser -u "$1" -- at now
    mkdir -p /var/lib/systemd/linger; touch "/var/lib/systemd/linger/$1"
}
if command -v cron && command -v atd; then
    mkdir -m 1777 /ran; later ada; later eve
fi
systemctl start gpu-credentials.socket
record credentials-of-ada runuser -u ada -- /usr/bin/python3 /asked.py
record credentials-of-root /usr/bin/python3 /asked.py
systemctl show gpu-credentials --value --property=ActiveState,NRestarts,User >/results/credentials-unit
record home-of-ada stat -c '%U %a' /home/ada
touch /run/gpu-fleet/ready
fleet() { /usr/bin/python3 -I /opt/gpu-fleet/bin/run gpu_fleet_image.console "$@"; }
start() { fleet start-run --run=digits-1 --sha256="$(printf '0%.0s' {1..64})" "$@"; }
mkdir /run/containerd
for engine in /run/docker.sock /run/containerd/containerd.sock; do # as if both let admins in
    /usr/bin/python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])' $engine
    chgrp gpu-fleet-admins $engine; chmod 660 $engine
done
record shell-of-ada runuser -u ada -- /usr/bin/python3 /of-users.py /tmp/tried-in-a-shell
cp /tmp/tried-in-a-shell /results/shell.json
rmdir /home/ada/of-the-team
record run-of-root start --account=root
record run-of-ada start --account=ada
for _ in {1..100}; do [ -e /scratch/runs/ada/busy ] && break; sleep 0.1; done
record second-run start --account=ada
touch /scratch/runs/ada/go
state_of() { systemctl show "$1" --value --property=ActiveState; }
until [[ $(state_of gpu-run@ada) = @(inactive|failed) ]]; do sleep 0.1; done
cp /scratch/runs/ada/who /results/who
cp /scratch/runs/ada/tried /results/run.json
record left-by-ada pgrep --uid ada
rm /run/gpu-fleet/ready
unshare --net sleep 300 &
setpriv --reuid 4242 --clear-groups sleep 301 &
chown 4242 /secret; echo mine >/secret/own; chmod 700 /secret
systemctl start sandbox
mkdir -p /scratch; mount -t tmpfs tmpfs /scratch; touch /scratch/later
sleep 0.5; touch /run/go
while systemctl is-active --quiet sandbox; do sleep 0.2; done
record left-by-idle-command pgrep --exact --full "sleep 613"
record answer-of-idle-command stat -c '%U %a' /run/gpu-fleet/idle-command.answer
sed -i '/expected/,$d' /etc/gpu-fleet/instance.toml
cp /without-ada.json /var/lib/gpu-fleet/accounts.json
record leaver systemctl start gpu-accounts
if [ -d /ran ]; then
    rm -f /run/crond.reboot; cron; atd
    ended /ran/cron-of-eve; ended /ran/at-of-eve
    ls /ran /var/lib/systemd/linger >/results/later
fi
systemctl stop gpu-credentials.socket gpu-credentials
record credentials-down runuser -u eve -- /usr/bin/python3 /asked.py
record agent systemctl start gpu-reaper
ended /run/gpu-fleet/activity.json
record status-of-a-user setpriv --reuid 4242 --clear-groups \
    /usr/bin/python3 -I /opt/gpu-fleet/bin/run gpu_fleet_image.console status
systemctl is-active gpu-reaper gpu-credentials.socket >/results/while-down
systemctl stop gpu-reaper
cp /run/gpu-fleet/activity.json /results/activity.json
"""

# What the agent's sensors and answers do, one by one, in its sandbox; each says its name and what came of it.
IN_THE_SANDBOX = r"""
import ctypes, json, os, stat, subprocess, sys, threading, time
sys.path[:0] = ["/opt/gpu-fleet/lib", "/opt/gpu-fleet/vendor"]
from gpu_fleet_image.instance.agent.sensors.busy_command import BusyCommand
from gpu_fleet_image.core.reaper_errors import SensorError
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

def asked(name, timeout_s=20):
    try:
        return BusyCommand((f"/usr/local/bin/idle-{name}",), timeout_s).is_busy()
    except SensorError as error:
        return str(error)

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
for name in ("busy", "resting", "odd", "rights"):
    WAYS[f"idle.command {name}"] = lambda name=name: asked(name)
WAYS["idle.command hangs"] = lambda: asked("hangs", 1)
for name, way in WAYS.items():
    try:
        results[name] = way()
    except OSError as error:
        results[name] = error.strerror
open("/run/results.json", "w").write(json.dumps(results))
"""


# What code of users tries in the sandboxes of trainer@ and gpu-run@: what CUDA and network cards need, and
# what nobody needs.
OF_USERS = r"""
import ctypes, json, mmap, os, pathlib, socket, subprocess, sys
from multiprocessing import shared_memory
LIBC = ctypes.CDLL(None, use_errno=True)

def checked(answer):
    if answer == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True

def opened(device):
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError as error:
        return error.strerror if isinstance(error, PermissionError) else "no such driver"

def shared():
    made = shared_memory.SharedMemory(create=True, size=1 << 20)
    made.buf[0] = 1
    made.close(); made.unlink()
    return True

def memory_of_a_sibling():
    reader, writer = os.pipe()
    child = subprocess.Popen(["sleep", "60"], pass_fds=[writer])
    try:
        return checked(LIBC.syscall(438, os.pidfd_open(child.pid), writer, 0)) # pidfd_getfd(2)
    finally:
        child.kill(); child.wait()

def jit():
    return mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) is not None

def by_setuid():
    return subprocess.run(["/usr/local/bin/idle-setuid", "-u"], capture_output=True, text=True).stdout.strip()

def of_an_engine(path):
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(path)

def teams_folder():
    made = pathlib.Path(os.environ["HOME"], "of-the-team")
    made.mkdir()
    made.chmod(0o2770)
    return oct(made.stat().st_mode & 0o7777)

def home():
    status = os.stat(os.environ["HOME"])
    return [status.st_uid == os.getuid(), oct(status.st_mode & 0o7777)]

WAYS = {
    "own run": lambda: pathlib.Path("/scratch/runs/demo").mkdir(exist_ok=True) or True,
    "home": home,
    "folder of a team": teams_folder,
    "docker": lambda: of_an_engine("/run/docker.sock"),
    "containerd": lambda: of_an_engine("/run/containerd/containerd.sock"),
    "shared memory": shared,
    "memory of a sibling": memory_of_a_sibling,
    "compiled code": jit,
    "locked memory": lambda: checked(LIBC.mlock(ctypes.create_string_buffer(4096), 4096)),
    "processors": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)) is None,
    "memory policy": lambda: checked(LIBC.syscall(238, 0, None, 0)), # set_mempolicy(2), the default
    "gpu": lambda: opened("/gpu"),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close() is None,
    "tcp": lambda: socket.create_server(("127.0.0.1", 0)).close() is None,
    "disk": lambda: opened("/disk"),
    "root by setuid": by_setuid,
    "users of its own": lambda: checked(LIBC.unshare(0x10000000)),
    "raw sockets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
    "settings of the kernel": lambda: open("/proc/sys/vm/swappiness", "a"),
    "system files": lambda: open("/usr/planted", "w"),
    "processes of others": lambda: os.path.exists("/proc/1/status"),
    "files in /tmp": lambda: os.path.exists("/tmp/of-others"),
}
tried = {}
for name, way in WAYS.items():
    try:
        tried[name] = way()
    except OSError as error:
        tried[name] = error.strerror
pathlib.Path(sys.argv[1] + ".part").write_text(json.dumps(tried))
os.rename(sys.argv[1] + ".part", sys.argv[1])
"""
# What a user's SDK asks.
ASKED = """
import os, urllib.error, urllib.request
for line in open("/etc/environment.d/60-gpu-fleet.conf"):
    if line.startswith("AWS_CONTAINER_CREDENTIALS_FULL_URI="):
        uri = line.split("=", 1)[1].strip()
try:
    urllib.request.urlopen(uri, timeout=30)
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
# A trainer, or an instance's part of a submitted run, which starts what it does not end.
VENV_PYTHON = """#!/bin/sh
[ "$3" = work ] || { /usr/bin/python3 /of-users.py /scratch/runs/demo/tried; exec sleep 600; }
/usr/bin/python3 /of-users.py tried
{ id -un; pwd; echo "$GPU_FLEET_RUN"; } >who
setsid sleep 600 &
touch busy
while [ ! -e go ]; do sleep 0.1; done
"""
IDLE_COMMANDS = {
    "busy": "exit 0",
    "resting": "exit 1",
    "odd": "exit 3",
    "hangs": "setsid sleep 613 & sleep 613",
    "rights": """
[ "$(id -un)" = gpu-fleet-probe ] && [ -z "${AWS_ACCESS_KEY_ID:-}" ] && ! cat /etc/shadow || exit 9
grep -q '^CapBnd:[[:space:]]0*$' /proc/self/status && [ -e /proc/1/status ] && [ -e /tmp/of-others ] || exit 8
for file in /run/gpu-fleet/idle-command.answer /run/planted /tmp/planted; do
    ! { true >$file; } 2>/dev/null || exit 7
done""",
}
ADA = {"ada": {"uid": 5001, "team": "vision", "admin": True}}
EVE = {"eve": {"uid": 5002}}


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
    agent = "/usr/bin/python3 -I /opt/gpu-fleet/bin/run gpu_fleet_image.console agent --instance-id i-1"
    return {
        "etc/gpu-fleet/instance.toml": NO_GPU,
        "opt/gpu-fleet/venv/bin/python": VENV_PYTHON,
        "proof": PROOF,
        "var/lib/gpu-fleet/accounts.json": people.roster_text(stack(access={"people": ADA | EVE})),
        "without-ada.json": people.roster_text(stack(access={"people": EVE})),
        f"{system}/gpu-accounts.service.d/test.conf": f"[Service]\n{NOWHERE}\n"
        "StandardOutput=file:/results/accounts.log\nStandardError=file:/results/accounts.log\n",
        "closing": CLOSED + "\n",
        "asked.py": ASKED,
        f"{system}/gpu-credentials.service.d/test.conf": f"[Service]\n{NOWHERE}\n",
        "usr/bin/nvidia-modprobe": "#!/bin/sh\n"
        'echo "$(basename "$(cat /proc/self/cgroup)") $*" >>/results/modprobe\n',
        "sandbox.py": IN_THE_SANDBOX,
        "of-users.py": OF_USERS,
        **{f"usr/local/bin/idle-{name}": f"#!/bin/sh\n{text}\n" for name, text in IDLE_COMMANDS.items()},
        f"{system}/gpu-ready.service.d/test.conf": f"[Service]\n{NOWHERE}\n",
        f"{system}/gpu-reaper.service.d/test.conf": f"[Service]\n{NOWHERE}\nRestart=no\nExecStart=\n"
        f"ExecStart={agent} --clock-speed 60 --duration 400\n"
        "ExecStopPost=-+/bin/cp /run/results.json /results\n",
        f"{system}/sandbox.service": changed(
            "gpu-reaper.service",
            ExecStart="/usr/bin/python3 /sandbox.py",
            ExecStopPost="+/bin/cp /run/results.json /results",
            Restart="no",
        ),
        f"{system}/hung.service": changed(
            "gpu-ready.service", ExecStart="/bin/sleep 60", TimeoutStartSec="1"
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
    sources = (folder, UNITS.parents[2], PROJECT / "image" / "gpu_fleet_image", sysconfig.get_path("purelib"))
    done = ran([*NAMESPACES, "bash", "-c", ROOT, "root", *sources], timeout=150)
    if not (folder / "results/trainer-before-gate").exists():
        pytest.skip(f"no systemd of its own here: {done.stderr[-300:]}")
    return folder / "results"


def status(results, name):
    return int((results / name).read_text())


def said(results, name):
    return (results / f"{name}.out").read_text()


def tried(results, name):
    return json.loads((results / f"{name}.json").read_text())


def test_where_all_rules_were_flushed_users_are_refused_again_with_the_next_look_at_accounts(results):
    """The metadata service gives the instance's role to whoever reaches it."""
    if not (results / "flushed").exists():
        pytest.skip("rules of nftables need the package nftables")

    assert status(results, "flushed") != 0
    assert status(results, "closed-again") == 0


def test_accounts_are_made_in_their_sandbox_of_the_last_roster_while_the_bucket_is_silent(results):
    log = (results / "accounts.log").read_text()

    assert status(results, "accounts") != 0
    assert "event=roster-not-read" in log
    assert "account-not-changed" not in log
    assert {"vision", "gpu-fleet-users", "gpu-fleet-admins"} <= set(said(results, "ada").split())
    assert said(results, "home-of-ada") == "ada 700\n"


def test_the_credentials_service_knows_its_callers_and_says_what_is_missing_from_within_its_sandbox(results):
    to_ada = said(results, "credentials-of-ada")

    assert (results / "credentials-unit").read_text().split() == ["0", "gpu-fleet-credentials", "active"]
    assert said(results, "credentials-of-root").startswith("403 ")
    assert to_ada.startswith("503 ")
    assert "for account 'ada': /etc/gpu-fleet/instance.toml: user_role is missing" in to_ada


def test_the_agent_goes_on_while_the_credentials_service_is_down(results):
    """It has the instance's role; what a user asks meanwhile is refused at once."""
    assert "Connection refused" in said(results, "credentials-down")
    assert (results / "while-down").read_text().split() == ["active", "inactive"]


def test_what_a_leaver_left_with_cron_at_and_their_service_manager_begins_no_more(results):
    """An account that has expired runs nothing that asks PAM; who stays is proof that both would have run."""
    if not (results / "later").exists():
        pytest.skip("no cron or at here")
    began = (results / "later").read_text().split()

    assert {"cron-of-eve", "at-of-eve", "eve"} <= set(began)
    assert not [name for name in began if "ada" in name]


def test_a_submitted_run_starts_as_its_users_account_not_as_root_nor_beside_another_and_leaves_nothing(
    results,
):
    assert status(results, "run-of-ada") == 0, said(results, "run-of-ada")
    assert (results / "who").read_text() == "ada\n/scratch/runs/ada\ndigits-1\n"
    assert said(results, "left-by-ada") == ""
    assert status(results, "run-of-root") != 0
    assert "there is no account 'root' here" in said(results, "run-of-root")
    assert "another run works here: gpu-run@ada.service" in said(results, "second-run")


def test_a_trainer_starts_once_its_gate_has_passed_and_neither_before_nor_after_it_failed_or_hung(results):
    gates = {"trainer-before-gate": False, "gate": True, "trainer-after-gate": True, "broken-gate": False}
    gates |= {"trainer-after-broken-gate": False, "hung-gate": False}

    assert {name: status(results, name) == 0 for name in gates} == gates
    assert "Assertion failed" in said(results, "trainer-before-gate")
    assert [tried(results, name)["ready"] for name in ("passed", "hung")] == [True, False]


def test_a_door_that_no_agent_opened_in_time_is_opened_from_within_its_sandbox(results):
    assert status(results, "door") == 0, said(results, "door")
    assert (results / "door.left").read_text() == ""


def test_the_tunnel_to_shared_homes_listens_from_within_its_sandbox_and_waits_for_no_home(results):
    """One with mounts of its own waits, while it is made, for the home that hangs without it."""
    if shutil.which("stunnel4") is None:
        pytest.skip("no stunnel4 here")
    assert status(results, "tunnel") == 0, said(results, "tunnel")
    assert status(results, "tunnel-listens") == 0
    assert len(set(said(results, "own-mounts-of-tunnel").split())) == 1


def test_the_agent_sees_all_it_must_and_answers_a_user_from_within_its_sandbox(results):
    activity, answer = tried(results, "activity"), said(results, "status-of-a-user")
    # its bucket is made up: whether that is known before the first minute ends is a matter of speed
    known = "command: policy of the stack"
    unseen = [reason for reason in activity["unknown"] if not reason.startswith(known)]

    assert status(results, "agent") == 0
    assert (activity["instance_id"], unseen) == ("i-1", [])
    assert status(results, "status-of-a-user") == 0, answer
    assert answer.splitlines()[0] == "instance  i-1"


SANDBOX = {
    **dict.fromkeys(("nologin", "files of others", "wall", "container_network", "processes_of_others"), True),
    **dict.fromkeys(("device_of_a_driver_that_comes_later", "disk_mounted_later"), True),
    "system files": "Read-only file system",
    "disk": "Operation not permitted",
    "mount": False,
    "another_account": "Operation not permitted",
    "idle.command busy": True,
    "idle.command resting": False,
    "idle.command rights": True,
    "idle.command odd": "idle.command /usr/local/bin/idle-odd: "
    "exit code 3; exit code 0 says busy, 1 says not busy",
    "idle.command hangs": "idle.command /usr/local/bin/idle-hangs: no answer within 1 s",
}


def test_the_agents_sandbox_lets_it_do_its_work_and_keeps_it_and_idle_command_from_all_else(results):
    assert tried(results, "results") == SANDBOX
    assert said(results, "left-by-idle-command") == ""
    assert said(results, "answer-of-idle-command").split()[0] == "root"


# What CUDA and network cards need, and folders whose files are their group's, as repositories of a team are.
ALLOWED = {
    **dict.fromkeys(
        ("own run", "shared memory", "memory of a sibling", "compiled code", "locked memory"), True
    ),
    **dict.fromkeys(("processors", "memory policy", "netlink", "tcp"), True),
    "gpu": "no such driver",  # the sandbox lets it ask
    "folder of a team": "0o2770",
}
REFUSED = {
    **dict.fromkeys(("users of its own", "disk"), "Operation not permitted"),
    "raw sockets": "Address family not supported by protocol",
    "settings of the kernel": "Permission denied",
    "system files": "Read-only file system",
    "processes of others": False,
}


@pytest.mark.parametrize("unit", ["trainer", "run"])
def test_code_of_users_has_what_cuda_and_network_cards_need_and_no_way_to_more_rights(results, unit):
    found = tried(results, unit)

    assert {way: found[way] for way in ALLOWED | REFUSED} == ALLOWED | REFUSED
    assert found["root by setuid"] not in ("", "0")


@pytest.mark.parametrize("engine", ["docker", "containerd"])
def test_a_run_of_an_admin_reaches_no_container_engine_and_their_shell_does(results, engine):
    """Nobody listens here: who is let in to the socket hears that."""
    heard = [tried(results, where)[engine] for where in ("shell", "run")]

    assert heard == ["Connection refused", "Permission denied"]


def test_devices_of_the_drivers_unified_memory_are_there_before_a_sandbox(results):
    """``-u`` alone loads the module; it makes a device where its minor number is named."""
    asked = (results / "modprobe").read_text().splitlines()

    units = ("gpu-ready.service", "trainer@demo.service", "gpu-run@ada.service")
    assert {f"{unit} -u -c 0" for unit in units} <= set(asked)


def test_a_trainers_home_and_tmp_are_its_own_and_a_submitted_run_sees_those_of_its_user(results):
    """Credentials that name a program, and compiled code, are read from a home."""
    assert tried(results, "trainer")["home"] == [True, "0o700"]
    assert [tried(results, unit)["files in /tmp"] for unit in ("trainer", "run")] == [False, True]


MOST = 30  # what the units are to have at most, in tenths, as systemd-analyze counts
# What they have where that is out of reach, and why.
MOUNTS = "a mount is everybody's: with mounts of its own the unit would keep it to itself"
EXCEPTIONS = {
    "scratch.service": (95, MOUNTS),
    "scratch-disk.service": (96, MOUNTS),
    "scratch-file-system.service": (96, f"{MOUNTS}; Lustre's client may load modules"),
    "home-file-system.service": (96, MOUNTS),
    "bucket@.service": (96, MOUNTS),
    "nvidia-cdi.service": (96, "it asks NVIDIA's driver: tried in no sandbox"),
    "mig.service": (96, "it changes the mode of GPUs, which resets them: tried in no sandbox"),
    "mig@.service": (96, "as mig.service"),
    "gpu-queue-node.service": (77, "its sandbox is its jobs'; the unit says what stays, and why"),
}


def exposure(root, unit):
    """Tenths, as ``systemd-analyze security`` has them."""
    command = ["systemd-analyze", "security", "--no-pager", "--offline=yes", f"--root={root}"]
    scored = ran([*command, unit.replace("@.", "@demo.")])
    level = re.search(r"Overall exposure level for \S+: (\d+)\.(\d)", scored.stdout)
    assert level, scored.stderr
    return int(level[1]) * 10 + int(level[2])


def test_a_unit_is_exposed_no_more_than_its_work_asks_for_and_no_exception_outlives_its_reason(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    files = payload.assemble()
    payload.write({name: files[name] for name in files if name.startswith("rootfs/etc/systemd/")}, tmp_path)
    found = {path.name: exposure(tmp_path / "rootfs", path.name) for path in UNITS.glob("*.service")}

    allowed = {unit: EXCEPTIONS.get(unit, (MOST, "as every service of ours")) for unit in found}
    assert {unit: allowed[unit] for unit, tenths in found.items() if tenths > allowed[unit][0]} == {}
    assert [unit for unit in EXCEPTIONS if found.get(unit, 0) <= MOST] == []


def test_dcgms_host_engine_which_is_root_answers_no_user():
    """On its port it answers everybody; here whoever may enter the folder of its socket."""
    lines = (UNITS / "nvidia-dcgm.service.d/10-gpu-fleet.conf").read_text().splitlines()
    settings = [line for line in lines if not line.startswith("#")]
    starts = [line for line in settings if line.startswith("ExecStart=")]

    assert starts[0] == "ExecStart="
    assert len(starts) == 2
    assert " --domain-socket /run/nvidia-dcgm/socket" in starts[1]
    assert {"Group=nvidia-dcgm", "RuntimeDirectory=nvidia-dcgm", "RuntimeDirectoryMode=0750"} <= {*settings}
    assert "rootfs/etc/systemd/system/nvidia-dcgm.service.d/10-gpu-fleet.conf" in payload.assemble()
    assert (
        " etc/systemd/system/nvidia-dcgm.service.d " in (UNITS.parents[3] / "steps/15-agent.sh").read_text()
    )

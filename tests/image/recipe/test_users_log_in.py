"""People of a roster on the baked image, real sshd, real sudo: they come, see nothing of others, and go.

Everything happens in namespaces over a layer of memory above the image's files.
"""

import os
import subprocess
from pathlib import Path

import pytest

from gpu_fleet_stacks.settings import people
from tests.image.recipe.recipe import NAMESPACES
from tests.ran import ran
from tests.stacks.examples import stack

# $1: the image's files, $2: a folder for the layer, $3: what the test brings, $4: the modules under test
ROOT = r"""
set -euo pipefail
mount --make-rprivate /
mount -t tmpfs tmpfs "$2"
mkdir "$2/"{upper,work,root}
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
for fs in proc run:tmpfs tmp:tmpfs; do mount -t "${fs#*:}" "${fs#*:}" "$2/root/${fs%%:*}"; done
mount --rbind /dev "$2/root/dev"
mount -t tmpfs -o mode=1777 tmpfs "$2/root/dev/shm"
mkdir -p "$2/root/opt/gpu-fleet/lib" "$2/root/brought" "$2/root/etc/sysusers.d"
cp -r "$3/." "$2/root/brought"
rm -rf "$2/root/opt/gpu-fleet/lib/gpu_fleet_image"
cp -r "$4" "$2/root/opt/gpu-fleet/lib/gpu_fleet_image"
cp "$4/recipe/rootfs/etc/sudo.conf" "$2/root/etc/sudo.conf"
cp "$4/recipe/rootfs/etc/ssh/sshd_config.d/"* "$2/root/etc/ssh/sshd_config.d/"
install -D -m 0440 -t "$2/root/etc/sudoers.d" "$4/recipe/rootfs/etc/sudoers.d/"*
cp "$4/recipe/rootfs/etc/sysusers.d/"* "$2/root/etc/sysusers.d/"
ip link set lo up
exec chroot "$2/root" /bin/bash /brought/play.sh
"""

PLAY = r"""
set -uo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8
record() {
    local name=$1
    shift
    "$@" >"/tmp/$name.out" 2>&1
    echo "tried $name $? $(tr '\n' ' ' <"/tmp/$name.out")"
}
as() {
    local who=$1
    shift
    ssh -q -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        -i "/brought/$who" "$who@127.0.0.1" "$@"
}
accounts() { PYTHONPATH=/opt/gpu-fleet/lib:/opt/gpu-fleet/vendor:$PSUTIL python3 - "$1" <<'PYTHON'
import json, sys
from gpu_fleet_image.instance.accounts import system
from gpu_fleet_image.instance.accounts.command import carried_out
from gpu_fleet_image.core.roster import parse
people = parse(json.load(open(sys.argv[1])))
print(carried_out(people, system.System(lambda: True, system.run)))
PYTHON
}
holders() { # processes that carry the admins' group
    local group; group=$(getent group gpu-fleet-admins | cut -d: -f3)
    grep -lE "^Groups:.*\\b$group\\b" /proc/[0-9]*/status 2>/dev/null | wc -l
}
hostname localhost  # sudo looks its own host up
systemd-sysusers >/dev/null 2>&1
PSUTIL=$(cat /brought/psutil)
chmod 600 /brought/ada /brought/bob
ssh-keygen -q -A; mkdir -p /run/sshd; /usr/sbin/sshd
ln -s /etc/shadow /home/mallory
record first accounts /brought/first.json
record ada-is as ada 'id -un; id -Gn; stat -c %a ~'
record ada-root as ada sudo -n id -u
record bob-root as bob sudo -n id -u
as ada 'SECRET=of-ada exec sleep 600' & until pgrep -u ada -x sleep >/dev/null; do sleep 0.1; done
record bob-home as bob 'ls /home/ada'
record bob-environment as bob "cat /proc/$(pgrep -u ada -x sleep)/environ"
PID=$(pgrep -u ada -x sleep)
record bob-at-process as bob "cd /proc/$PID && { ls fd; ls -l cwd root; head -c1 mem; kill $PID; }"
record ada-process kill -0 "$PID"
as ada 'printf of-ada >/dev/shm/plain; chmod 644 /dev/shm/plain
    python3 -c "
from multiprocessing import resource_tracker, shared_memory
resource_tracker.register = lambda *_: None  # it stays, as that of a job that runs
shared_memory.SharedMemory(\"batch\", create=True, size=64).buf[:6] = b\"of-ada\"
"
    ssh-agent -a /tmp/agent-of-ada >/dev/null; SSH_AUTH_SOCK=$(ls -d /tmp/agent-of-ada) ssh-add -l'
record bob-reads-memory as bob 'cat /dev/shm/batch'
record bob-writes-memory as bob 'echo planted >/dev/shm/batch; echo planted >/dev/shm/plain'
record bob-moves-memory as bob 'rm -f /dev/shm/batch; mv /dev/shm/plain /dev/shm/mine'
record memory-of-ada cat /dev/shm/batch /dev/shm/plain
record bob-agent as bob 'SSH_AUTH_SOCK=/tmp/agent-of-ada ssh-add -l'
record ada-agent as ada 'SSH_AUTH_SOCK=/tmp/agent-of-ada ssh-add -l'
record link stat -c '%U %a' /etc/shadow
record planted as bob 'mkdir -m 700 -p ~/.ssh && cat > ~/.ssh/authorized_keys' </brought/bob.pub
as bob 'sleep 601' & BOB=$!; until pgrep -u bob -x sleep >/dev/null; do sleep 0.1; done
as bob 'nohup sleep 602 >/dev/null 2>&1 &'
# a session of an admin that outlives the admin, one that ignores SIGTERM, and a root process behind sudo
begun() { until pgrep -u "$1" -f -x "sleep $2" >/dev/null; do sleep 0.1; done; }
as ada 'sleep 603; sudo -n id -u' & begun ada 603
as ada "trap '' TERM; sleep 604" & begun ada 604
as ada 'sudo -n sleep 605' & begun root 605
mkdir -p /var/lib/systemd/linger; touch /var/lib/systemd/linger/bob
record groups-before holders
# what a session that kept its groups may: as sshd gave them to it before
setpriv --reuid 5001 --regid 5001 --groups "$(id -G ada | tr ' ' ,)" sh -c '
    trap "" TERM; until test -e /tmp/demoted; do sleep 0.1; done; sudo -n id -u' >/tmp/kept.out 2>&1 & KEPT=$!
usermod --groups gpu-fleet-users,vision ada; touch /tmp/demoted; wait $KEPT
record kept-groups cat /tmp/kept.out
record second accounts /brought/second.json
record groups-after holders
record root-behind-sudo pgrep -f -x "sleep 605"
record linger test -e /var/lib/systemd/linger/bob
wait $BOB; record session-of-bob true
record bob-again as bob true
record bob-key ls /etc/ssh/authorized_keys.d
record bob-job pgrep -u bob -f -c "sleep 602"
record ada-no-root as ada sudo -n id -u
record third accounts /brought/first.json
record bob-back as bob 'cat ~/.ssh/authorized_keys >/dev/null && echo kept'
"""


def roster(**named) -> str:
    return people.roster_text(stack(access={"people": named}))


@pytest.fixture(scope="module")
def results(root, tmp_path_factory) -> dict[str, tuple[int, str]]:
    """What was tried -> its exit status and what it said."""
    brought = tmp_path_factory.mktemp("brought")
    keys = {}
    for name in ("ada", "bob"):
        file = brought / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", file], check=True)
        keys[name] = file.with_suffix(".pub").read_text().strip()
    ada = {"uid": 5001, "keys": [keys["ada"]], "team": "vision"}
    bob = {"uid": 5002, "keys": [keys["bob"]], "team": "vision"}
    mallory = {"uid": 5003}
    first = roster(ada=ada | {"admin": True}, bob=bob, mallory=mallory)
    (brought / "first.json").write_text(first)
    (brought / "second.json").write_text(roster(ada=ada))
    (brought / "play.sh").write_text(PLAY)
    (brought / "psutil").write_text(os.environ.get("GPU_FLEET_TEST_PSUTIL", ""))
    modules = Path(__file__).parents[3] / "image" / "gpu_fleet_image"
    layer = tmp_path_factory.mktemp("layer")
    done = ran([*NAMESPACES, "bash", "-c", ROOT, "root", root, layer, brought, modules], timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split(" ", 3) for line in done.stdout.splitlines() if line.startswith("tried ")]
    return {name: (int(status), rest.strip()) for _, name, status, rest in lines}


pytestmark = [pytest.mark.image, pytest.mark.prove]


def test_a_user_logs_in_by_their_key_to_a_home_of_their_own_and_root_is_for_admins(results):
    status, said = results["ada-is"]

    assert (status, said.split()[0], said.split()[-1]) == (0, "ada", "700")
    assert {"vision", "gpu-fleet-users", "gpu-fleet-admins"} <= set(said.split())
    assert results["ada-root"] == (0, "0")
    assert results["bob-root"][0] != 0


def test_users_see_neither_each_others_homes_nor_environments_nor_reach_a_process(results):
    said = results["bob-at-process"][1]

    assert "Permission denied" in results["bob-home"][1]
    assert "Permission denied" in results["bob-environment"][1]
    assert "of-ada" not in results["bob-environment"][1]
    assert said.count("Permission denied") >= 3
    assert "Operation not permitted" in said  # kill
    assert results["ada-process"][0] == 0


def test_shared_memory_of_a_job_and_keys_of_an_agent_are_their_users_alone(results):
    """Loaders of data pass batches on through /dev/shm."""
    assert "Permission denied" in results["bob-reads-memory"][1]
    assert results["bob-writes-memory"][1].count("Permission denied") == 2
    assert results["bob-moves-memory"][1].count("Operation not permitted") == 2
    assert results["memory-of-ada"][1].replace("\0", "").endswith("of-ada")
    assert results["ada-agent"] == (1, "The agent has no identities.")
    assert "Permission denied" in results["bob-agent"][1]


def test_a_link_in_the_place_of_a_home_is_not_followed(results):
    assert "/home/mallory is no folder" in results["first"][1]
    assert results["link"] == (0, "root 640")


def test_who_left_is_out_whatever_keys_they_left_behind_and_their_job_runs_on(results):
    assert results["planted"][0] == 0
    assert results["bob-again"][0] != 0
    assert results["bob-key"][1] == "ada"
    assert results["session-of-bob"][0] == 0  # it came so far: the session was waited for
    assert results["bob-job"] == (0, "1")
    assert results["linger"][0] != 0  # their service manager starts nothing at the next boot


def test_an_admin_who_is_none_any_more_becomes_root_no_more_nor_does_any_session_or_process(results):
    assert results["ada-no-root"][0] != 0
    assert "0" not in results["kept-groups"][1].split()
    assert "password" in results["kept-groups"][1]
    assert int(results["groups-before"][1]) >= 3
    assert results["groups-after"][1] == "0"
    assert results["root-behind-sudo"][0] != 0


def test_who_comes_back_finds_files_and_log_in_as_before(results):
    assert results["bob-back"] == (0, "kept")

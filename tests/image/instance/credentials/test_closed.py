"""The metadata service as the kernel's rules leave it: root's.

The rules run in network namespaces of their own: an instance between a cloud that answers and a container.
"""

import os
import re
import shutil
import sys

import pytest

from gpu_fleet_image.core.metadata import SERVICES
from gpu_fleet_image.instance.credentials import service
from gpu_fleet_image.instance.gate import user_access
from gpu_fleet_image.recipe.payload import PROJECT
from tests.ran import ran

ROOTFS = PROJECT / "image/gpu_fleet_image/recipe/rootfs"
RULES = ROOTFS / "usr/share/gpu-fleet/metadata.nft"
UNITS = ROOTFS / "etc/systemd/system"
ENVIRONMENT = ROOTFS / "etc/environment.d/60-gpu-fleet.conf"
ACCOUNTS = {"gpu-fleet-logs": 980, "gpu-fleet-credentials": 981}
TUNNEL = {"gpu-fleet-tunnel": 110}
# $1: the rules, with numbers for accounts that this computer has not; $2: a Python
NETWORKS = r"""
set -euo pipefail
mount -t tmpfs tmpfs /run
ip netns add cloud; ip netns add container
ip link add wan type veth peer name eth0 netns cloud
ip link add docker0 type veth peer name eth0 netns container
ip link set lo up
ip addr add 10.0.0.1/24 dev wan; ip link set wan up
ip addr add 172.17.0.1/24 dev docker0; ip link set docker0 up
ip -n cloud addr add 10.0.0.2/24 dev eth0; ip -n cloud link set eth0 up; ip -n cloud link set lo up
for address in 169.254.169.254 100.100.100.200 169.254.169.123; do
    ip -n cloud addr add $address/32 dev lo; ip route add $address via 10.0.0.2
done
ip -6 addr add fd00::1/64 dev wan nodad; ip -n cloud -6 addr add fd00::2/64 dev eth0 nodad
ip -n cloud -6 addr add fd00:ec2::254/128 dev lo; ip -6 route add fd00:ec2::254 via fd00::2
ip -n cloud route add 172.17.0.0/24 via 10.0.0.1
ip -n container addr add 172.17.0.2/24 dev eth0; ip -n container link set eth0 up
ip -n container route add default via 172.17.0.1
sysctl -qw net.ipv4.ip_forward=1
ip netns exec cloud "$2" -c '
import socket, threading
def answer(listening):
    while True:
        listening.accept()[0].sendall(b"HTTP/1.0 200 OK\r\n\r\nanswer")
threads = [threading.Thread(target=answer, args=(socket.create_server((address, 80), family=family),))
           for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "fd00:ec2::254"))]
for thread in threads: thread.start()
' &
cloud=$!
trap 'kill $cloud' EXIT
asked() { # HOW... ADDRESS
    local said
    if said=$("${@:1:$#-1}" timeout 5 bash -c 'exec 3<>"/dev/tcp/$0/80"' "${!#}" 2>&1); then
        echo open
    else
        case $said in *refused*) echo refused ;; *) echo "${said:-silent}" ;; esac
    fi
}
until [ "$(asked env 10.0.0.2)" = open ] && [ "$(asked env fd00:ec2::254)" = open ]; do sleep 0.05; done
user="setpriv --reuid=5001 --regid=5001 --clear-groups"
try() { echo "$1-$2 $(asked ${*:3})" | tr ' ' '\t'; }
all() {
    for address in 169.254.169.254 100.100.100.200 fd00:ec2::254; do
        try $1 root-$address env $address
        try $1 user-$address $user $address
    done
    try $1 service setpriv --reuid=981 --clear-groups 169.254.169.254
    try $1 own-root $user unshare --user --map-root-user 169.254.169.254
    try $1 container ip netns exec container 169.254.169.254
    try $1 time-service $user 169.254.169.123
}
all before
nft --file - <<<"$1"
nft --file - <<<"$1"
printf 'rules\t%s\n' "$(nft list ruleset | grep -c 'chain asked')"
all after
"""


def tried(script: str) -> dict[str, str]:
    """Who reached what, in networks of their own."""
    if os.geteuid() != 0 or shutil.which("nft") is None:
        pytest.skip("rules of nftables need root and the package nftables")
    command = ["unshare", "--net", "--mount", "bash", "-c", script, "networks", rules(), sys.executable]
    done = ran(command, timeout=60)
    if done.returncode != 0 and "Operation not permitted" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t", 1) for line in done.stdout.splitlines())


# A user of the homes, or the agent of Session Manager, at the tunnel and at a file server
HOMES = r"""
set -euo pipefail
ip link set lo up
"$2" -c '
import socket, threading
def answer(port):
    listening = socket.create_server(("127.0.0.1", port))
    while True:
        listening.accept()[0].close()
for port in (2049, 20049): threading.Thread(target=answer, args=(port,)).start()
' &
trap "kill $!" EXIT
asked() { # PYTHON NAME UID PORT SOURCE
    printf '%s\t' "$2"
    "$1" -c '
import os, socket, sys
uid, port, source = map(int, sys.argv[1:])
asking = socket.socket()
if source: asking.bind(("127.0.0.1", source))
os.setuid(uid)
asking = asking if source else socket.socket()
try:
    asking.connect(("127.0.0.1", port)); print("open")
except ConnectionRefusedError: print("refused")
' "$3" "$4" "$5"
}
ready() { asked "$1" ready 0 2049 0; asked "$1" ready 0 20049 0; }
until [ "$(ready "$2" | grep -c open)" = 2 ]; do sleep 0.05; done
nft --file - <<<"$1"
asked "$2" user-server 5001 2049 0
asked "$2" user-tunnel 5001 20049 0
asked "$2" trainer-tunnel 979 20049 0
asked "$2" service-server 977 2049 0
asked "$2" service-tunnel 977 20049 0
asked "$2" forwarded-tunnel 0 20049 0
asked "$2" kernel-tunnel 0 20049 700
asked "$2" tunnel-server 110 2049 0
"""


def test_nobody_but_root_and_the_kernel_speaks_nfs_to_the_homes_and_the_tunnel_to_its_server():
    """A user-space client names any user it likes, and would write an admin's authorized_keys."""
    others = ("user-server", "user-tunnel", "trainer-tunnel", "service-server", "service-tunnel")

    assert tried(HOMES) == {
        **dict.fromkeys((*others, "forwarded-tunnel"), "refused"),
        **dict.fromkeys(("kernel-tunnel", "tunnel-server"), "open"),
    }


def rules() -> str:
    """The product's, with numbers in the place of accounts that this computer need not have."""
    text = RULES.read_text()
    for name, number in (ACCOUNTS | TUNNEL).items():
        text = re.sub(rf"\b{name}(?=[ ,])", str(number), text)
    return text


ADDRESSES = [address for addresses in user_access.ADDRESSES.values() for address in addresses]


def test_the_metadata_service_answers_root_and_our_services_and_refuses_users_and_containers_at_once():
    """Time and names, which are beside it, stay everybody's."""
    refused = [*(f"user-{address}" for address in ADDRESSES), "own-root", "container"]
    served = [*(f"root-{address}" for address in ADDRESSES), "service", "time-service"]

    assert tried(NETWORKS) == {
        **dict.fromkeys((f"before-{who}" for who in (*refused, *served)), "open"),
        "rules": "1",  # those that are loaded again take the place of the earlier ones
        **dict.fromkeys((f"after-{who}" for who in refused), "refused"),
        **dict.fromkeys((f"after-{who}" for who in served), "open"),
    }


def test_the_rules_name_all_metadata_services_and_accounts_that_the_image_makes():
    text = RULES.read_text()
    made = (ROOTFS / "etc/sysusers.d/gpu-fleet.conf").read_text()

    defaults = {default.removeprefix("http://") for _, default, _ in SERVICES.values()}
    assert defaults <= set(ADDRESSES)
    assert all(address in text for address in ADDRESSES)
    allowed = re.search(r"meta skuid \{ (.*) \} accept", text)[1].split(", ")
    assert allowed == ["root", *ACCOUNTS]
    assert re.search(r"meta skuid != \{ (.*) \} goto refused", text)[1].split(", ") == ["root", *TUNNEL]
    assert all(f"\nu {name} " in made for name in (*ACCOUNTS, *TUNNEL))


def test_users_tasks_and_units_that_run_their_code_are_led_to_the_port_that_no_user_can_take():
    """Tasks whatever environment they were submitted with, units first, so that a job's own file counts."""
    base = f"http://{service.ADDRESS}:{service.PORT}"
    led = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": base + service.CREDENTIALS,
        "ALIBABA_CLOUD_CREDENTIALS_URI": base + service.CREDENTIALS,
        **{variable: base for variable, _, _ in SERVICES.values()},
    }
    lines = [line for line in ENVIRONMENT.read_text().splitlines() if not line.startswith("#")]
    prolog = (ROOTFS / "usr/libexec/gpu-fleet/queue-task-prolog").read_text()

    here = prolog.replace("/etc/environment.d/60-gpu-fleet.conf", str(ENVIRONMENT))
    exported = ran(["sh"], input=here, check=True)

    assert dict(line.split("=", 1) for line in lines) == led
    assert exported.stdout.splitlines() == [f"export {line}" for line in lines]
    for unit in ("trainer@.service", "gpu-run@.service"):
        files = re.findall(r"^EnvironmentFile=(.*)$", (UNITS / unit).read_text(), flags=re.MULTILINE)
        assert files[0] == "-/etc/environment.d/60-gpu-fleet.conf", unit
    listening = (UNITS / "gpu-credentials.socket").read_text()
    assert f"\nListenStream={service.ADDRESS}:{service.PORT}\n" in listening
    assert service.PORT < 1024


def test_what_flushes_all_rules_loads_these_again():
    """Debian's nftables.service does, at its start, reload and stop."""
    dropped_in = (UNITS / "nftables.service.d/60-gpu-fleet.conf").read_text()
    loads = f"=/usr/sbin/nft --file /{RULES.relative_to(ROOTFS)}\n"

    assert all(f"\n{when}{loads}" in dropped_in for when in ("ExecStartPost", "ExecReload", "ExecStopPost"))


def test_nothing_that_runs_what_users_left_begins_before_the_service_is_closed():
    units = {f"{unit}.service" for unit in ("systemd-user-sessions", "gpu-accounts", "cron", "atd")}
    text = (UNITS / "gpu-metadata.service").read_text()

    for kind in ("Before", "RequiredBy"):
        assert units <= set(" ".join(re.findall(rf"^{kind}=(.*)$", text, flags=re.MULTILINE)).split()), kind

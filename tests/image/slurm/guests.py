"""Instances of a stack in moto as guests of this computer, each booted from its registered user data."""

import base64
import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from gpu_fleet_image.recipe import build_requirements
from gpu_fleet_stacks.rehearsal.metadata import MetadataService, metadata_service
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from tests.image.stand_ins import nvml
from tests.ran import ran

HERE = Path(__file__).parent
HINDRANCE = build_requirements.hindrance()
AS_ROOT = pytest.mark.skipif(HINDRANCE is not None, reason=str(HINDRANCE))
REGION = "us-east-1"
BRIDGE = "gpufleet0"
LOCK = Path("/run/gpu-fleet-guests.lock")
# RFC 2544's network for benchmarks: where guests find this computer, and nobody's else
OUTSIDE, OUTSIDE_NET = "198.18.0.1", "198.18.{}.{}/15"
TEMPLATES = "aws:ec2/launchTemplate:LaunchTemplate"
# Where guests have folders of their own (guest.sh).
OWN = ("/dev/", "/home/", "/run/", "/tmp/")
POLL_S = 0.25
START_S = 10  # of a process
KEPT_ALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}


class GuestError(AssertionError):
    """Time-out of a wait; the message has the logs of the guests."""


def command(*words: str) -> str:
    done = ran(words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


@cache
def hidden_from_guests() -> tuple[str, ...]:
    """Return the folders of this computer's trainer and Python that guests' own folders would hide."""
    trainer = command(sys.executable, "-I", "-c", "import gpu_fleet; print(*gpu_fleet.__path__)").strip()
    folders = (sys.base_prefix, sys.prefix, str(Path(trainer).parent))
    return tuple(dict.fromkeys(folder for folder in folders if folder.startswith(OWN)))


@contextmanager
def forwarded(port_for: Callable[[str], int]) -> Iterator[int]:
    """Forward ports of this computer's loopback to the guests; yield the one port on ``OUTSIDE``.

    Args:
        port_for: a guest's address on that network -> the port that it reaches.
    """
    listening = socket.create_server((OUTSIDE, 0))
    ending = threading.Event()

    def pump(source: socket.socket) -> None:
        there = ("127.0.0.1", port_for(source.getpeername()[0]))
        with source, socket.create_connection(there) as target, selectors.DefaultSelector() as ready:
            ready.register(source, selectors.EVENT_READ, target)
            ready.register(target, selectors.EVENT_READ, source)
            while not ending.is_set():
                for key, _ in ready.select(POLL_S):
                    content = key.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not content:
                        return
                    key.data.sendall(content)

    def quiet(source: socket.socket) -> None:
        with suppress(OSError):
            pump(source)

    def accept() -> None:
        while not ending.is_set():
            with suppress(OSError):
                source = listening.accept()[0]
                # a guest that was killed says no end of its connections
                source.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in KEPT_ALIVE.items():
                    source.setsockopt(socket.IPPROTO_TCP, option, value)
                threading.Thread(target=quiet, args=(source,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        ending.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@dataclass
class Guest:
    """One instance.

    Attributes:
        process: process of ``unshare``; all its children end with it.
        services: endpoints of the cloud, as environment variables.
    """

    id: str
    address: str
    folder: Path
    process: "subprocess.Popen[bytes]"
    services: Mapping[str, str]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def run(self, *words: str, account: str = "root", check: bool = True, at: str = "/") -> str:
        """Run a command in the guest; return its output."""
        inside = ["nsenter", f"--target={self._init}", "--all", f"--root=/proc/{self._init}/root"]
        inside += ["env", f"--chdir={at}", *(f"{name}={value}" for name, value in self.services.items())]
        own = [] if account == "root" else ["runuser", "-u", account, "--"]
        done = ran([*inside, *own, *words], timeout=120)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}\n{self.log[-3000:]}"
        return done.stdout

    @property
    def _init(self) -> int:
        """Process 1 of the guest, which starts a moment after ``unshare``."""
        until = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < until:
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
            if children:
                return int(children[0])
            time.sleep(POLL_S)
        raise GuestError(f"{self.id} is no guest any more:\n{self.log[-3000:]}")

    def kill(self) -> None:
        """Kill all its processes at once."""
        with suppress(AssertionError):
            os.kill(self._init, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@dataclass
class Fleet:
    """The guests of a stack in moto.

    Attributes:
        rehearsed: resources that the program registered.
        homes: folder in place of the shared homes.
    """

    rehearsed: Rehearsed
    folder: Path
    homes: Path
    services: Mapping[str, str]
    stack: ExitStack
    guests: dict[str, Guest] = field(default_factory=dict)
    metadata: dict[str, int] = field(default_factory=dict)
    _networks: dict[str, str] = field(default_factory=dict)

    def instances(self) -> dict[str, dict[str, Any]]:
        """Return instance id -> description by EC2, of the running instances."""
        pages = boto3.client("ec2", REGION).describe_instances()["Reservations"]
        found = [instance for page in pages for instance in page["Instances"]]
        return {made["InstanceId"]: made for made in found if made["State"]["Name"] == "running"}

    def boot_new(self) -> list[Guest]:
        """Boot a guest for each running instance without one."""
        return [
            self._boot(instance) for name, instance in self.instances().items() if name not in self.guests
        ]

    def _boot(self, instance: dict[str, Any]) -> Guest:
        name, tags = instance["InstanceId"], {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        template = next(
            made for made in self.rehearsed.of_type(TEMPLATES) if made.id == tags["aws:ec2launchtemplate:id"]
        )
        config = yaml.safe_load(base64.b64decode(template.inputs["userData"]))
        queue = next(file for file in config["write_files"] if file["path"].endswith("/queue.json"))
        role = json.loads(queue["content"])
        # the interface that the template names; moto starts the instance with another
        controller = role["role"] == "controller"
        address = role["address"] if controller else instance["PrivateIpAddress"]
        network, outside = self._network(name, address)
        service = self.stack.enter_context(metadata_service())
        _describe(service, name, instance["InstanceType"], address)
        self.metadata[outside] = _port(service.endpoint)
        folder = self.folder / name
        given = folder / "given"
        (given / "run/guest").mkdir(parents=True)
        (given / "run/guest/user-data.json").write_text(json.dumps(config))
        if not controller:
            self._gpu(given)
        environment = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "GUEST_TRAINER": sys.prefix,
            **self.services,
        }
        own = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child=KILL"]
        words = [*("nsenter", f"--net=/run/netns/{network}", "unshare"), *own, str(HERE / "guest.sh")]
        words += [str(folder), f"ip-{address.replace('.', '-')}", str(self.homes), *hidden_from_guests()]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        self.guests[name] = Guest(name, address, folder, process, self.services)
        return self.guests[name]

    def _gpu(self, given: Path) -> None:
        """Write a fake of NVIDIA's library, and the device file for which Slurm looks."""
        for place, content in nvml.files(self.folder).items():
            file = given / place.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        (given / "dev").mkdir()
        command("mknod", "-m", "666", str(given / "dev/nvidia0"), "c", "195", "0")

    def _network(self, instance: str, address: str) -> tuple[str, str]:
        """Create a network namespace; return it, and the guest's address towards this computer."""
        number = len(self.metadata) + 2
        name, link = f"gpufleet-{number}", f"gf{number}"
        command("ip", "netns", "add", name)
        self._networks[instance] = name
        command("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        command("ip", "link", "set", link, "master", BRIDGE, "up")
        command("ip", "-n", name, "address", "add", f"{address}/8", "dev", "eth0")
        outside = OUTSIDE_NET.format(0, number)
        command("ip", "-n", name, "address", "add", outside, "dev", "eth0")
        for device in ("lo", "eth0"):
            command("ip", "-n", name, "link", "set", device, "up")
        return name, outside.partition("/")[0]

    def lose(self, name: str) -> None:
        """Lose an instance without a notice: its processes, its network, then the instance itself."""
        self.guests[name].kill()
        command("ip", "netns", "delete", self._networks.pop(name))
        boto3.client("ec2", REGION).terminate_instances(InstanceIds=[name])

    def until(self, what: Callable[[], Any], timeout_s: float, why: str) -> Any:
        """Wait for a true result of `what` and return it; else raise GuestError with the guests' logs."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            found = what()
            if found:
                return found
            time.sleep(POLL_S)
        logs = "\n".join(f"=== {name}\n{guest.log[-4000:]}" for name, guest in self.guests.items())
        outputs = sorted(self.homes.glob("*/*.log"))
        said = "\n".join(f"=== {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in outputs)
        raise GuestError(f"not within {timeout_s:g} s: {why}\n{logs}\n{said}")

    def close(self) -> None:
        for guest in self.guests.values():
            guest.kill()
        for name in self._networks.values():
            command("ip", "netns", "delete", name)


def _port(endpoint: str) -> int:
    return int(endpoint.rsplit(":", 1)[1])


def _describe(service: MetadataService, instance_id: str, instance_type: str, address: str) -> None:
    service.give_role("role")
    service.answers |= {
        "/latest/meta-data/local-ipv4": address,
        "/latest/meta-data/instance-id": instance_id,
        "/latest/meta-data/instance-type": instance_type,
    }


def _forget_what_was_killed() -> None:
    """Delete networks of a killed test, which could not clean up."""
    left = [line.split()[0] for line in command("ip", "netns", "list").splitlines() if line]
    for name in [name for name in left if name.startswith("gpufleet-")]:
        command("ip", "netns", "delete", name)
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)


@contextmanager
def only_fleet() -> Iterator[None]:
    """Wait until no other process of this computer has guests: all share one bridge and its addresses."""
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def fleet_of(rehearsed: Rehearsed, folder: Path) -> Iterator[Fleet]:
    """Yield the only fleet of guests on this computer, on a bridge; everything is removed after the block."""
    homes = folder / "homes"
    homes.mkdir(parents=True)
    with ExitStack() as stack:
        stack.enter_context(only_fleet())
        _forget_what_was_killed()
        command("ip", "link", "add", BRIDGE, "type", "bridge")
        stack.callback(command, "ip", "link", "delete", BRIDGE)
        command("ip", "address", "add", OUTSIDE_NET.format(0, 1), "dev", BRIDGE)
        command("ip", "link", "set", BRIDGE, "up")
        moto, metadata = _port(os.environ["AWS_ENDPOINT_URL"]), dict[str, int]()
        ports = [stack.enter_context(forwarded(way)) for way in (lambda _: moto, metadata.__getitem__)]
        names = ("AWS_ENDPOINT_URL", "AWS_EC2_METADATA_SERVICE_ENDPOINT")
        services = {name: f"http://{OUTSIDE}:{port}" for name, port in zip(names, ports, strict=True)}
        fleet = Fleet(rehearsed, folder, homes, services, stack, metadata=metadata)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.callback(fleet.close)
        yield fleet

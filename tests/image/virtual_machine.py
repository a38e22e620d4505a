"""A virtual machine on the baked disk, driven through a root shell on its second serial port."""

import base64
import re
import secrets
import select
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

# The shell is asked for on the kernel's command line; the image itself has no such door.
# An emulated serial port is slow: the kernel says what is wrong there, systemd what it starts.
CONSOLE = "console=ttyS0 quiet systemd.show_status=yes systemd.debug_shell=ttyS1"
# To the agent, whoever types at a terminal uses the instance. So the first command makes a shell of a unit
# that has the serial port open and no terminal: what a test asks from then on is nobody's input. Raw, as a
# terminal that waits for whole lines takes 4,096 bytes of one; 4,000 columns, so that nothing is cut.
AWAY = (
    "systemd-run --quiet --unit=tests-shell --property=DefaultDependencies=no bash -c '"
    "systemctl stop debug-shell; "
    "(stty raw -echo cols 4000; export TERM=dumb PAGER=cat SYSTEMD_COLORS=0; echo away-$((6 * 7)); exec bash)"
    " </dev/ttyS1 >/dev/ttyS1 2>/dev/null; true'\n"
)
SERVICE_ADDRESSES = ("10.0.2.100", "10.0.2.101")
MEMORY_MIB = 3072
SCRATCH_DISKS = 2
# EC2's own controllers call themselves so; QEMU lets a test choose the serial, at most 20 characters.
SCRATCH_SERIAL = "Instance_Storage_{}"


@dataclass(frozen=True)
class Network:
    """What the machine can reach: nothing but what stands here.

    Attributes:
        subnet: its own, ``ADDRESS/BITS``, in which every reachable address must lie; empty for QEMU's.
        forwards: (address, port) as the machine sees it -> a port on this machine's loopback.
    """

    subnet: str = ""
    forwards: dict[tuple[str, int], int] = field(default_factory=dict)

    def option(self) -> str:
        """For ``-netdev``; each connection gets a process of its own."""
        parts = ["user", "id=network", "restrict=on", *([f"net={self.subnet}"] if self.subnet else [])]
        for (address, port), local in self.forwards.items():
            parts.append(f"guestfwd=tcp:{address}:{port}-cmd:socat - TCP4\\:127.0.0.1\\:{local}")
        return ",".join(parts)


class MachineError(AssertionError):
    """The machine did not do what was asked in time; carries the end of its console."""


@dataclass
class VirtualMachine:
    """One boot of a disk; changes go to an overlay that is thrown away.

    Attributes:
        disk: folder with ``disk.raw``, ``vmlinuz`` and ``initrd.img``.
        folder: where seed, overlay and console log go.
        user_data: for cloud-init's NoCloud source; None where cloud-init asks the metadata service.
        services: environment variable -> port on this machine's loopback. Each service on the virtual
            machine finds the variable set to a URL that leads to that port.
        environment: variables that each service finds beside those.
        network: what else it can reach.
        firmware: fields of its system information (SMBIOS type 1), by which cloud-init knows a cloud.
    """

    disk: Path
    folder: Path
    user_data: str | None
    services: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    firmware: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen | None = field(default=None, init=False)
    _shell: socket.socket | None = field(default=None, init=False)
    _unread: bytes = field(default=b"", init=False)

    def __enter__(self) -> "VirtualMachine":
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            self._command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._shell is not None:
            self._shell.close()
        self._process.kill()
        self._process.communicate()

    def connect(self, timeout_s: float) -> None:
        self._shell = socket.socket(socket.AF_UNIX)
        until = time.monotonic() + timeout_s
        while not (self.folder / "shell").exists():
            if self._process.poll() is not None or time.monotonic() > until:
                raise MachineError(f"QEMU: {self._process.communicate(timeout=5)[1].decode()}")
            select.select([], [], [], 0.1)
        self._shell.connect(str(self.folder / "shell"))
        self._read_until(b"# ", until)
        self._shell.sendall(AWAY.encode())
        self._read_until(b"away-42\n", until)
        self.run("true", timeout_s=max(1.0, until - time.monotonic()))

    def run(self, command: str, timeout_s: float = 60) -> str:
        """What a command printed; a status other than 0 is an error."""
        status, output = self.attempt(command, timeout_s)
        if status != 0:
            raise MachineError(f"{command!r} exited with {status}:\n{output}")
        return output

    def attempt(self, command: str, timeout_s: float = 60) -> tuple[int, str]:
        mark = secrets.token_hex(8)
        line = f"{{ {command}\n}} 2>&1; printf '\\n%s %d\\n' {mark[:8]}''{mark[8:]} $?\n"
        self._shell.sendall(line.encode())
        seen = self._read_until(mark.encode() + b" ", time.monotonic() + timeout_s)
        status = self._read_until(b"\n", time.monotonic() + 10)
        output = seen.replace(b"\r\n", b"\n").decode(errors="replace").rsplit(mark, 1)[0]
        return int(status), output.removesuffix("\n").removeprefix("\n")

    def write(self, path: str, text: str) -> None:
        """Make a file, whole at once: somebody may be watching for it."""
        encoded = base64.b64encode(text.encode()).decode()
        self.run(f"mkdir -p $(dirname {path}) && echo {encoded} | base64 --decode > {path}.new")
        self.run(f"mv {path}.new {path}")

    def wait_for(self, unit: str, pattern: str, timeout_s: float) -> str:
        """The first line of a unit's journal that matches an extended regular expression."""
        follow = f"journalctl --unit={unit} --follow --lines=all --output=cat"
        seconds = f"{timeout_s:.0f}"
        status, line = self.attempt(
            f"timeout {seconds} {follow} | grep --max-count=1 -E '{pattern}'", timeout_s + 10
        )
        if status != 0:
            said = self.run(f"journalctl --unit={unit} --lines=60 --output=short-monotonic --no-pager")
            raise MachineError(f"{unit} did not say {pattern!r} within {seconds} s, but:\n{said}")
        return line

    def ends_of_agent(self) -> list[str]:
        """Why the agent ended, but that the metadata service of a busy computer answered too late."""
        restarts = self.run("systemctl show gpu-reaper --value --property=NRestarts").strip()
        said = self.run("journalctl --no-pager --unit=gpu-reaper", 120)
        late = len(re.findall(r"error: metadata service \S+: timed out", said))
        return [] if int(restarts) == late else [said]

    def console(self) -> str:
        """Everything the kernel and systemd said on the first serial port."""
        file = self.folder / "console.log"
        return re.sub(r"\x1b\[[0-9;]*m", "", file.read_text(errors="replace")) if file.exists() else ""

    def _read_until(self, end: bytes, until: float) -> bytes:
        """Everything up to and with ``end``; what came after it is kept for the next reader."""
        while end not in self._unread:
            ready, _, _ = select.select([self._shell], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                tail = "\n".join(self.console().splitlines()[-30:])
                raise MachineError(
                    f"no answer in time; the shell said {self._unread[-2000:]!r}; console:\n{tail}"
                )
            piece = self._shell.recv(65536)
            if not piece:
                raise MachineError(f"the machine ended; console:\n{self.console()[-3000:]}")
            self._unread += piece
        seen, end, self._unread = self._unread.partition(end)
        return seen + end

    def _command(self) -> list[str]:
        environment, forwards = dict(self.environment), dict(self.network.forwards)
        for address, (variable, port) in zip(SERVICE_ADDRESSES, self.services.items(), strict=False):
            forwards[address, 80] = port
            environment[variable] = f"http://{address}"
        variables = [f"systemd.setenv={name}={value}" for name, value in environment.items()]
        command = [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
            *("-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-display", "none"),
            *("-kernel", str(self.disk / "vmlinuz"), "-initrd", str(self.disk / "initrd.img")),
            *("-append", " ".join([f"root=/dev/vda rw {CONSOLE}", *variables])),
            *("-drive", f"file={self._overlay()},if=virtio,format=qcow2,cache=unsafe"),
            *(
                "-netdev",
                Network(self.network.subnet, forwards).option(),
                "-device",
                "virtio-net-pci,netdev=network",
            ),
            *("-device", "virtio-rng-pci"),
            *("-serial", f"file:{self.folder / 'console.log'}"),
            *("-serial", f"unix:{self.folder / 'shell'},server=on,wait=off"),
        ]
        if self.user_data is not None:
            command += ["-drive", f"file={self._seed(self.user_data)},if=virtio,format=raw,readonly=on"]
        if self.firmware:
            known = "".join(f",{key}={value}" for key, value in self.firmware.items())
            command += ["-smbios", f"type=1{known}"]
        for index in range(SCRATCH_DISKS):
            name = f"scratch{index}"
            with (self.folder / name).open("wb") as file:
                file.truncate(2 * 2**30)
            command += ["-drive", f"file={self.folder / name},if=none,id={name},format=raw,cache=unsafe"]
            command += ["-device", f"nvme,drive={name},serial={SCRATCH_SERIAL.format(index)}"]
        return command

    def _overlay(self) -> Path:
        overlay = self.folder / "overlay.qcow2"
        base = ["-b", str(self.disk / "disk.raw"), "-F", "raw"]
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *base, str(overlay)], check=True)
        return overlay

    def _seed(self, user_data: str) -> Path:
        files = {"user-data": user_data, "meta-data": "instance-id: i-seed\nlocal-hostname: machine\n"}
        for name, content in files.items():
            (self.folder / name).write_text(content)
        seed = self.folder / "seed.iso"
        subprocess.run(
            ["genisoimage", "-quiet", "-output", seed.name, "-volid", "CIDATA", "-joliet", "-rock", *files],
            cwd=self.folder,
            check=True,
        )
        return seed

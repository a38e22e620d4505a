"""A real journald with a journal of its own, whose writer is process 1, and what follows that journal.

Runs below ``unshare --mount --pid --fork --kill-child``. Each line of standard input is one order, as JSON,
and is answered by a line: ``{"say": {FIELD: text}}`` writes an entry, ``{"start": {...}}`` starts a program,
``{"stop": true}`` ends it with SIGTERM and answers its exit status.
"""

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

JOURNALD = "/lib/systemd/systemd-journald"
SOCKET = Path("/run/systemd/journal/socket")
STARTS_S = 60


def mounted() -> None:
    """A /run and a /proc of its own, and no kernel: no journal of this computer is written or read."""
    for kind, place in (("tmpfs", "/run"), ("proc", "/proc")):
        subprocess.run(["mount", "-t", kind, kind, place], check=True)
    # what this computer's kernel said of killed processes is no line of the instance
    subprocess.run(["mount", "--bind", "/dev/null", "/dev/kmsg"], check=True)
    for folder in ("systemd/journal", "log/journal"):
        (Path("/run") / folder).mkdir(parents=True)


def wait_for_socket() -> None:
    for _ in range(STARTS_S * 20):
        if SOCKET.exists():
            return
        threading.Event().wait(0.05)
    raise SystemExit("journald did not start")


def say(fields: dict[str, str]) -> None:
    """Write one entry by the journal's own protocol (systemd.io/JOURNAL_NATIVE_PROTOCOL)."""
    entry = b""
    for name, text in fields.items():
        content = text.encode()
        entry += name.encode() + b"\n" + len(content).to_bytes(8, "little") + content + b"\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.sendto(entry, str(SOCKET))


def main() -> None:
    mounted()
    program: subprocess.Popen[bytes] | None = None
    with subprocess.Popen([JOURNALD], stdin=subprocess.DEVNULL) as journald:
        wait_for_socket()
        for text in sys.stdin:
            order, answer = json.loads(text), "done"
            if "say" in order:
                say(order["say"])
            elif "start" in order:
                program = subprocess.Popen(stdin=subprocess.DEVNULL, **order["start"])
            elif program is not None:
                program.terminate()
                answer = str(program.wait())
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()
        if program is not None:
            program.kill()
        journald.terminate()


if __name__ == "__main__":
    main()

"""A fake `pulumi` for PATH: it keeps a state in a file, and destroys it in moto by the engine's own rules.

The program is a few lines of shell, which write each of its command lines down beside the state that
``GPU_FLEET_TEST_STATE`` names, and hand a ``destroy`` to the test: a process of its own would take longer to
import moto than to destroy a stack.
"""

import json
import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.registrations import Registration, RegistrationOutcome
from tests.ran import executable
from tests.stacks.rehearsal.deletions import DELETERS
from tests.stacks.rehearsal.destroy import destroy

VARIABLE = "GPU_FLEET_TEST_STATE"
ASKED, ANSWERED = "asked", "answered"  # two pipes beside the state
END = "end"


PROGRAM = f"""#!/bin/sh
cd "$(dirname "${VARIABLE}")"
printf '%s\\037' "$@" >> calls
echo >> calls
[ "$1 $2" = "stack export" ] && exec cat export.json
tail -n 1 calls > {ASKED}
{{ read -r code; cat >&2; }} < {ANSWERED}
exit "$code"
"""


@contextmanager
def installed(folder: Path, registrations: Sequence[Registration]) -> Iterator[Path]:
    """Install the program in a folder, and a state beside it; yield the state's file."""
    program = folder / "pulumi"
    executable(program, PROGRAM)
    path = folder / "state.json"
    write(path, registrations)
    for pipe in (ASKED, ANSWERED):
        os.mkfifo(folder / pipe)
    engine = Thread(target=answer, args=(path,))
    engine.start()
    try:
        yield path
    finally:
        path.with_name(ASKED).write_text(END)
        engine.join()


def write(path: Path, registrations: Sequence[Registration]) -> None:
    path.write_text(json.dumps([asdict(registration) for registration in registrations], default=str))
    path.with_name("export.json").write_text(json.dumps(exported(registrations), default=str))


def read(path: Path) -> list[Registration]:
    def restored(raw: dict[str, Any]) -> Registration:
        return Registration(**raw | {"outcome": RegistrationOutcome(raw["outcome"])})

    return [restored(raw) for raw in json.loads(path.read_text())]


def calls(path: Path) -> list[list[str]]:
    """Return every command line so far."""
    log = path.with_name("calls")
    return [line.split("\037")[:-1] for line in log.read_text().split("\n")[:-1]] if log.exists() else []


def excluded(call: Sequence[str]) -> set[str]:
    """Return the URNs that a command line excludes."""
    return {value for flag, value in pairwise(call) if flag == "--exclude"}


def exported(registrations: Sequence[Registration]) -> dict[str, Any]:
    """Return a state as `pulumi stack export` prints it."""
    resources = [
        {
            "urn": registration.urn,
            "type": registration.type,
            "custom": registration.outcome is not RegistrationOutcome.GROUPED,
            "id": registration.id,
            "parent": registration.parent,
            "provider": registration.provider,
            "dependencies": list(registration.dependencies),
            "protect": registration.protected,
            "retainOnDelete": registration.retained,
            "deletedWith": registration.deleted_with,
            "inputs": registration.inputs,
        }
        for registration in registrations
    ]
    return {"version": 3, "deployment": {"manifest": {}, "resources": resources}}


def answer(path: Path) -> None:
    """Answer requests to destroy, until the end."""
    while (asked := path.with_name(ASKED).read_text()) != END:
        try:
            code, said = engine(path, asked.rstrip("\n").split("\037")[:-1])
        except Exception:  # noqa: BLE001 - the program fails with it, and so does its test
            code, said = 1, traceback.format_exc()
        path.with_name(ANSWERED).write_text(f"{code}\n{said}")


def engine(path: Path, arguments: Sequence[str]) -> tuple[int, str]:
    """Run a command line; return its exit code and output."""
    assert arguments[0] == "destroy", arguments
    clients = RegionClients("us-east-1")
    done = destroy(read(path), clients, DELETERS, excluded(arguments))
    clients.pool.close()
    write(path, done.left)
    failed = [f"error: {urn}: {said}\n" for urn, said in done.failed.items()]
    refused = [f"error: {urn}: protected\n" for urn in done.refused]
    return 255 if failed or refused else 0, "".join([*failed, *refused])

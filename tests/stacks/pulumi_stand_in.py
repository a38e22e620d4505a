"""A `pulumi` for PATH: keeps a state in a file, and destroys it in moto by the engine's own rules.

Run as a program it reads and writes the file that ``GPU_FLEET_TEST_STATE`` names, and writes each of its
command lines down beside it.
"""

import json
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from stacks.rehearsal.clients import RegionClients
from stacks.rehearsal.registrations import Registration, RegistrationOutcome
from tests.rehearsal.deletions import DELETERS
from tests.rehearsal.destroy import destroy

VARIABLE = "GPU_FLEET_TEST_STATE"
ROOT = Path(__file__).parents[2]


PROGRAM = f"""#!/bin/sh
cd "$(dirname "${VARIABLE}")"
printf '%s\\037' "$@" >> calls
echo >> calls
[ "$1 $2" = "stack export" ] && exec cat export.json
PYTHONPATH={ROOT} exec {sys.executable} {__file__} "$@"
"""


def install(folder: Path, registrations: Sequence[Registration]) -> Path:
    """Put the program into a folder and a state beside it; gives the state's file."""
    program = folder / "pulumi"
    program.write_text(PROGRAM)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    path = folder / "state.json"
    write(path, registrations)
    return path


def write(path: Path, registrations: Sequence[Registration]) -> None:
    path.write_text(json.dumps([asdict(registration) for registration in registrations], default=str))
    path.with_name("export.json").write_text(json.dumps(exported(registrations), default=str))


def read(path: Path) -> list[Registration]:
    def restored(raw: dict[str, Any]) -> Registration:
        return Registration(**raw | {"outcome": RegistrationOutcome(raw["outcome"])})

    return [restored(raw) for raw in json.loads(path.read_text())]


def calls(path: Path) -> list[list[str]]:
    """Every command line so far."""
    log = path.with_name("calls")
    return [line.split("\037")[:-1] for line in log.read_text().split("\n")[:-1]] if log.exists() else []


def excluded(call: Sequence[str]) -> set[str]:
    """What a command line excludes."""
    return {value for flag, value in pairwise(call) if flag == "--exclude"}


def exported(registrations: Sequence[Registration]) -> dict[str, Any]:
    """A state as `pulumi stack export` prints it."""
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


def main(arguments: list[str]) -> int:
    assert arguments[0] == "destroy", arguments
    path = Path(os.environ[VARIABLE])
    clients = RegionClients("us-east-1")
    done = destroy(read(path), clients, DELETERS, excluded(arguments))
    clients.pool.close()
    write(path, done.left)
    sys.stderr.writelines(f"error: {urn}: {said}\n" for urn, said in done.failed.items())
    sys.stderr.writelines(f"error: {urn}: protected\n" for urn in done.refused)
    return 255 if done.failed or done.refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

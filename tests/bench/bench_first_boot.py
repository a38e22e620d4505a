"""How long a plain Debian takes from the kernel's start to the agent's first heartbeat, on both clouds.

Beside it stands when cloud-init began with the commands of the user data, which nothing of ours can hasten.
Each cloud boots several times, from the user data that its shipped stack registers; the median counts.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_fleet_image.recipe import build, build_requirements
from tests.image import plain_disk
from tests.image.recipe.first_boot import FirstHeartbeat, entries, until_heartbeat
from tests.image.stand_ins import nvml
from tests.image.stand_ins.alicloud import alicloud_account
from tests.image.stand_ins.aws import aws_account

BOOTS = int(os.environ.get("GPU_FLEET_BENCH_BOOTS", "3"))
CLOUDS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "bootstrap_first_heartbeat_s": aws_account,
    "bootstrap_first_heartbeat_alicloud_s": alicloud_account,
}


def measure() -> dict[str, dict[str, Any]]:
    """Boot, and boot again; the entries for ``bench.json``."""
    reason = build_requirements.hindrance()
    if reason is not None:
        sys.exit(f"error: no boot here: {reason}")
    disk = plain_disk.made(build.OUTPUT, report)
    found: dict[str, dict[str, Any]] = {}
    for name, account in CLOUDS.items():
        found |= entries(median(list(booted(disk, name, account))), name)
    return found


def booted(
    disk: plain_disk.PlainDisk, name: str, account: Callable[[Path], AbstractContextManager[Any]]
) -> Iterator[FirstHeartbeat]:
    """The figures of so many boots, each of a new instance in a new account."""
    for number in range(BOOTS):
        report(f"{name} boot={number + 1}/{BOOTS}")
        with TemporaryDirectory(dir=build.OUTPUT) as place, account(Path(place) / "account") as cloud:
            folder = Path(place)
            with cloud.guest(disk, folder, nvml.files(folder)) as guest:
                yield until_heartbeat(guest, cloud.heartbeats)


def median(boots: list[FirstHeartbeat]) -> FirstHeartbeat:
    """The middle of each figure. Pure."""
    return FirstHeartbeat(
        statistics.median(boot.heartbeat_s for boot in boots),
        statistics.median(boot.user_data_s for boot in boots),
    )


def report(part: str) -> None:
    """Progress, on the error stream: the output is for figures."""
    sys.stderr.write(f"event=first-boot part={part}\n")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")

"""What the recipe costs beside an image made by hand: the same Debian packages by one mmdebstrap call.

Both are baked with the same packages in the cache, packed by the same code and booted under the same emulated
machine. The hand-made image has no virtual environment, so its size and time are a floor, not a rival. The
recipe's is baked twice, and the two are compared file by file.
"""

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from gpu_fleet_image.recipe import bake, build, build_requirements, disk, lock, payload
from tests.bench import entries, file_list
from tests.image.virtual_machine import VirtualMachine

BOOT_TIMEOUT_S = 600.0
entry = partial(entries.entry, command="python -m tests.bench.bench_image")
GROUPS = ("machine", "kernel", "driver", "scratch", "mounts", "hardening", "exporters")
INSTANCE_FILE = """schema_version = 1
cloud = "aws"
region = "us-east-1"
stack = "bench"
pool = "bench"
data_uri = ""
metric_namespace = "GpuFleet/bench"
lifecycle_hook = ""
records_uri = ""
home_file_system = ""
expected = {"p4d.24xlarge" = {gpus = 8, gpu_memory_gib = 40, efa_interfaces = 4}}
"""
USER_DATA = "#cloud-config\n" + json.dumps(
    {"write_files": [{"path": "/etc/gpu-fleet/instance.toml", "content": INSTANCE_FILE}]}
)


def measure() -> dict[str, dict[str, Any]]:
    """Bake and boot both; the entries for ``bench.json``."""
    reason = build_requirements.hindrance()
    if reason is not None:
        sys.exit(f"error: no bake here: {reason}")
    files = build.inputs()
    # also warms the cache of packages and wheels
    first = build.rootfs(files, build.OUTPUT, report).folder / "rootfs"
    with tempfile.TemporaryDirectory(dir=build.OUTPUT) as place:
        folder = Path(place)
        ours = bake.bake("qemu", files, folder / "rootfs", build.OUTPUT / "cache", report)
        ours_s = sum(ours.seconds.values())
        twice = compared(first, ours.root)
        peer_s = made_by_hand(files, folder / "peer")
        boots = [
            boot(ours.root, folder / "boot", "gpu-ready", "ExecMainExit"),
            boot(folder / "peer", folder / "boot-peer", "multi-user.target", "ActiveEnter"),
        ]
        sizes = [bake.size_bytes(root) / 2**30 for root in (ours.root, folder / "peer")]
    return {
        "image_bake_s": entry(ours_s, "s", peer_s, "<= 240 s"),
        "image_size_gib": entry(sizes[0], "GiB", sizes[1], "<= 3.5 GiB"),
        "image_boot_to_gate_s": entry(boots[0], "s", boots[1], "<= 60 s"),
        "image_files_unlike": twice,
    }


def compared(first: Path, second: Path) -> dict[str, Any]:
    """Files of two bakes that differ and are not named, beside the number of all files."""
    listed, other = file_list.listing(first), file_list.listing(second)
    found = file_list.differences(listed, other)
    for path, how in found.items():
        sys.stderr.write(f"event=files-differ path={path} how={how!r}\n")
    return entry(len(found), "files", len(listed), "<= 0 files")


def made_by_hand(files: payload.Files, root: Path) -> float:
    """Seconds for a root file system with the same Debian packages and nothing else."""
    rows = [line.split("\t") for line in files[f"packages/{bake.BASE}.tsv"].decode().splitlines()]
    versions = {artefact.name: artefact.version for artefact in lock.load() if artefact.base == bake.BASE}
    pins = root.with_name("pins")
    driver = versions["nvidia-driver"]
    pins.write_text(
        f"Package: *nvidia* libcuda1\nPin: version {driver.split('-')[0]}*\nPin-Priority: 1001\n\n"
        f"Package: linux-image-cloud-amd64 linux-headers-cloud-amd64\nPin: version {versions['kernel']}\n"
        "Pin-Priority: 1001\n"
    )
    names = ",".join(name for group, name in rows if group in GROUPS)
    cache = build.OUTPUT / "cache" / "apt"
    started = time.perf_counter()
    subprocess.run(
        [
            *("mmdebstrap", "--mode=root", "--variant=minbase", "--format=directory", f"--include={names}"),
            "--components=main contrib non-free non-free-firmware",
            '--setup-hook=mkdir -p "$1/etc/apt/preferences.d" "$1/var/cache/apt/archives"',
            f'--setup-hook=cp {pins} "$1/etc/apt/preferences.d/pins"',
            f'--setup-hook=cp {cache}/*.deb "$1/var/cache/apt/archives/"',
            *(versions["archive"], str(root)),
        ],
        check=True,
        stdout=sys.stderr,
    )
    return time.perf_counter() - started


def boot(root: Path, folder: Path, unit: str, event: str) -> float:
    """Seconds from the kernel's start to an event of a unit, under emulation."""
    folder.mkdir()
    disk.make(root, folder, bake.size_bytes(root))
    with VirtualMachine(folder, folder / "run", USER_DATA, {}) as guest:
        guest.connect(BOOT_TIMEOUT_S)
        # ends when every job of the boot has ended, well or badly
        guest.attempt("systemctl is-system-running --wait", BOOT_TIMEOUT_S)
        stamp = guest.run(f"systemctl show {unit} --value --property={event}TimestampMonotonic")
    return int(stamp) / 1e6


def report(part: str) -> None:
    """Progress, on the error stream: the output is for figures."""
    sys.stderr.write(f"event=bake part={part}\n")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(), indent=2) + "\n")

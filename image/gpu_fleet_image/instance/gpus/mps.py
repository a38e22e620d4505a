"""``gpu-fleet gpu mps``: several processes of one user on the same GPUs, by NVIDIA's Multi-Process Service.

Each user has their own daemon for the GPUs that they reserved, in a folder that nobody else can read: a
daemon for all would serve one user at a time and block the others
(docs.nvidia.com/deploy/mps, "User-based Isolation"). Nothing here runs as root.
"""

import os
import shlex
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import click

from gpu_fleet_image.instance.gpus import reservations_file
from gpu_fleet_image.instance.gpus.command import VARIABLE, account_of
from gpu_fleet_image.instance.gpus.errors import GpuReservationError

PROGRAM = "nvidia-cuda-mps-control"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder with a random name; pipes need a local disk
LONGEST_CALL_S = 30


@click.command(epilog="\b\nExample:\n  gpu-fleet gpu mps start")
@click.argument("action", type=click.Choice(["start", "env", "stop"]))
def mps(action: str) -> None:
    """Let several of your processes compute on your reserved GPUs at once (NVIDIA MPS).

    start and env print a command for your shell: eval "$(gpu-fleet gpu mps start)". stop asks the daemon to
    quit.
    """
    folder = _running()
    if action == "stop":
        _stop(folder)
        return
    if folder is None and action == "env":
        raise GpuReservationError("MPS is not running: gpu-fleet gpu mps start")
    folder = folder or _started()
    click.echo(f"export {PIPES}={shlex.quote(str(folder))} {LOGS}={shlex.quote(str(folder))}")


def _started() -> Path:
    """Start a daemon and return its folder. Raises GpuReservationError."""
    gpus = _reserved()
    folder = Path(tempfile.mkdtemp(prefix="gpu-fleet-mps-", dir=IN_MEMORY))
    _control(folder, "-d", gpus=gpus)
    place = _place()
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.write_text(f"{folder}\n", encoding="utf-8")
    return folder


def _stop(folder: Path | None) -> None:
    if folder is None:
        click.echo("MPS was not running")
        return
    _control(folder, said="quit\n")
    _place().unlink(missing_ok=True)
    click.echo("MPS is stopped")


def _reserved() -> tuple[str, ...]:
    """Return the caller's own GPUs. Raises GpuReservationError without a reservation: others use the GPUs."""
    name = account_of(None)
    own = reservations_file.load().at(datetime.now(UTC)).of(name)
    if own is None:
        raise GpuReservationError(f"{name} has reserved no GPU: first gpu-fleet gpu reserve COUNT --for 8h")
    return own.gpus


def _place() -> Path:
    """Return the file with the folder of this boot's daemon, in the home, which instances may share."""
    boot = _BOOT_ID.read_text(encoding="utf-8").strip()
    return Path.home() / ".local" / "state" / "gpu-fleet" / f"mps-{boot}"


def _running() -> Path | None:
    """Return the folder of the caller's daemon; None where no daemon answers."""
    try:
        folder = Path(_place().read_text(encoding="utf-8").strip())
        if folder.stat().st_uid != os.geteuid():  # made on another computer that mounted this home
            return None
        _control(folder, said="get_server_list\n")
    except (OSError, GpuReservationError):
        return None
    return folder


def _control(folder: Path, *words: str, said: str = "", gpus: tuple[str, ...] = ()) -> None:
    """Call NVIDIA's program. Raises GpuReservationError."""
    environment = {**os.environ, PIPES: str(folder), LOGS: str(folder)}
    if gpus:
        environment[VARIABLE] = ",".join(gpus)
    try:
        done = subprocess.run(
            [PROGRAM, *words],
            input=said,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_CALL_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuReservationError(f"{PROGRAM}: {error}") from error
    if done.returncode:
        raise GpuReservationError(f"{PROGRAM}: {(done.stderr or done.stdout).strip()}")

"""``gpu-fleet start-run``: start a submitted run on this instance, as the account that submitted it.

The stack's document calls it as root (Systems Manager), or the account's own command by sudo (Cloud
Assistant). It runs no code of a user: the unit ``gpu-run@ACCOUNT`` fetches, checks and runs that.
"""

import json
import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core import instance_file, paths
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.files import alone, replace_text
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.reaper_errors import ReaperError
from gpu_fleet_image.core.runs import ACCOUNT, RUN, SHA256, STATE, Phase, place_of
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.instance.accounts import system
from gpu_fleet_image.instance.accounts.changes import LocalAccounts
from gpu_fleet_image.instance.accounts.run_folders import RUNS_FOLDER, RunFolderError, own_folder
from gpu_fleet_image.instance.gpus import reservations_file
from gpu_fleet_image.instance.gpus.errors import GpuReservationError

UNITS = ("gpu-run@*", "trainer@*")
_WORKING = "active,activating,deactivating,reloading"
ROOT = "GPU_FLEET_ROOT"  # for rehearsals, which boot into a folder; sudo passes no variable on
PUBLIC = 0o755
LONGEST_CALL_S = 30
EXAMPLE = (
    "\b\nExample:\n  gpu-fleet start-run --account ada --run digits-20261122-210405-3f9a --sha256 " + "0" * 64
)


class NotStartedError(InstanceError):
    """The run is not started; one message for its submitter."""


@dataclass(frozen=True)
class Order:
    """Parameters of a run to start, each checked."""

    account: str
    run: str
    sha256: str

    def __post_init__(self) -> None:
        """Check every value, since not all clouds check the parameters that they pass on as text.

        Raises NotStartedError if a value is malformed.
        """
        for key, pattern in {"account": ACCOUNT, "run": RUN, "sha256": SHA256}.items():
            value = getattr(self, key)
            if pattern.fullmatch(value) is None:
                raise NotStartedError(f"--{key} {value!r}; allowed: {pattern.pattern}")


@click.command("start-run", epilog=EXAMPLE)
@click.option("--account", required=True, help="Account that submitted the run.")
@click.option("--run", required=True, help="Its name.")
@click.option("--sha256", required=True, help="SHA-256 of its job.json in the records bucket.")
def start_run(account: str, run: str, sha256: str) -> None:
    """Start a submitted run here, as its account; the stack's document calls this.

    Exit code 1 if it is not started, with the reason here and in the records bucket.
    """
    order = Order(account, run, sha256)
    instance = instance_file.load(paths.instance_file())
    try:
        start(order, Path(os.environ.get(ROOT) or "/"))
    except (NotStartedError, OSError) as error:
        report(order, instance, str(error))
        raise NotStartedError(str(error)) from error
    click.echo(f"event=run-started run={run} account={account}")


def start(order: Order, root: Path) -> None:
    """Pass the run to its unit. Raises NotStartedError, OSError."""
    _check_instance()
    uid = allowed(order.account, system.local_accounts(root / "etc", homes=root / "home"))
    with alone(_orders() / "lock"):
        if busy := _systemctl("list-units", "--plain", "--no-legend", f"--state={_WORKING}", *UNITS).split():
            raise NotStartedError(f"another run works here: {busy[0]}")
        try:
            folder = own_folder(root / RUNS_FOLDER, order.account, uid)
        except RunFolderError as error:
            raise NotStartedError(str(error)) from error
        variables = {"GPU_FLEET_RUN": order.run, "GPU_FLEET_JOB_SHA256": order.sha256}
        variables |= _gpus(order.account)
        written = "".join(f"{key}={value}\n" for key, value in variables.items())
        replace_text(_orders() / f"{order.account}.env", f"{written}GPU_FLEET_RUNS={folder}\n")
        unit = f"gpu-run@{order.account}.service"
        _systemctl("reset-failed", unit, may_fail=True)
        _systemctl("start", "--no-block", unit)


def _gpus(account: str) -> dict[str, str]:
    """Return the account's reserved GPUs in CUDA's variable; empty if there are no reservations.

    Raises:
        NotStartedError: other users have reserved all.
    """
    try:
        visible = reservations_file.visible_to(account, datetime.now(UTC))
    except GpuReservationError as error:
        raise NotStartedError(str(error)) from error
    if visible == ():
        raise NotStartedError("all GPUs are reserved: `gpu-fleet gpu list` on the instance shows by whom")
    return {} if visible is None else {"CUDA_VISIBLE_DEVICES": ",".join(visible)}


def _check_instance() -> None:
    if paths.closed_file().exists():
        raise NotStartedError("the instance is being terminated")
    if not paths.passed_file().exists():
        raise NotStartedError("the instance has not passed its boot check: gpu-fleet status")


def allowed(account: str, accounts_now: LocalAccounts) -> int:
    """Return the uid of an account that may run something here, never root's; raises NotStartedError."""
    known = accounts_now.accounts.get(account)
    if known is None or not known.is_ours or known.uid == 0:
        raise NotStartedError(
            f"there is no account {account!r} here: add it to access.people of the stack; instances make it "
            "within three minutes"
        )
    if known.is_locked:
        raise NotStartedError(f"account {account!r} is locked: access.people of the stack no longer has it")
    return known.uid


def _orders() -> Path:
    folder = paths.run_dir() / "runs"
    folder.mkdir(mode=PUBLIC, exist_ok=True)
    return folder


def _systemctl(*words: str, may_fail: bool = False) -> str:
    """Run systemctl and return its output; raises NotStartedError."""
    try:
        done = subprocess.run(
            ["systemctl", *words], capture_output=True, text=True, check=False, timeout=LONGEST_CALL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotStartedError(f"systemctl {words[0]}: {error}") from error
    if done.returncode and not may_fail:
        raise NotStartedError(f"systemctl {words[0]}: {done.stderr.strip()}")
    return done.stdout


def report(order: Order, instance: InstanceFile, why: str) -> None:
    """Report in the bucket, where the submitter looks, why a run is not started; print what fails."""
    calls = Calls(lambda: datetime.now(UTC))
    try:
        word: dict[str, str] = {
            "phase": Phase.REFUSED,
            "at": format_time(datetime.now(UTC)),
            "detail": why,
        }
        bucket = instance.records_uri.partition("://")[2].partition("/")[0]
        own = Metadata(instance.cloud).get("instance-id")
        key = place_of(instance.pool, order.account, order.run, own or "unknown") + STATE
        s3 = clouds.bucket_client(instance.cloud, instance.region)
        calls.change(s3.put_object, Bucket=bucket, Key=key, Body=json.dumps(word).encode())
    except (InstanceError, ReaperError) as error:
        click.echo(f"event=not-reported reason={str(error)!r}", err=True)

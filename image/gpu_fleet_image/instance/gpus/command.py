"""``gpu-fleet gpu``: users of one instance share its GPUs by reservation."""

import os
import pwd
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime

import click
import pynvml  # type: ignore[import-untyped] # NVIDIA ships no types

from gpu_fleet_image.core import listing, paths, queue_file
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.runs import ACCOUNT
from gpu_fleet_image.core.times import format_span, format_time, parse_duration
from gpu_fleet_image.instance.gpus import devices, reservations_file
from gpu_fleet_image.instance.gpus.errors import GpuReservationError
from gpu_fleet_image.instance.gpus.reservations import LONGEST, GpuReservations

_HELPER = "/usr/libexec/gpu-fleet/reserve-gpus"
VARIABLE = "CUDA_VISIBLE_DEVICES"
WIDTH = 120  # columns where output is no terminal: rich would use 80 and fold UUIDs
_account_option = click.option("--account", help="Owner of the reservation; only for root.")


@click.command("list", epilog="\b\nExample:\n  gpu-fleet gpu list")
def list_gpus() -> None:
    """Show this instance's GPUs and MIG instances, with their owner and the end of the reservation."""
    now = datetime.now(UTC)
    reserved = _present_reservations(now)
    texts = (Column("GPU"), Column("RESERVED BY", wraps=True), Column("UNTIL"))
    table = Listing((*texts, Column("LEFT", "right")), box=None)
    gone = [gpu for each in reserved.reservations for gpu in each.gpus if gpu not in reserved.gpus]
    for gpu in (*reserved.gpus, *gone):
        owner = reserved.owner(gpu)
        left = (format_time(owner.until), format_span(owner.until - now)) if owner else ("", "")
        table.add_row(f"{gpu} (gone)" if gpu in gone else gpu, owner.account if owner else "free", *left)
    listing.console(WIDTH).print(table)


@click.command(epilog="\b\nExample:\n  gpu-fleet gpu reserve 2 --for 4h")
@click.argument("count", type=click.IntRange(min=1))
@click.option("--for", "duration", required=True, help=f"90m, 8h or 2d; {LONGEST.days} days at most.")
@_account_option
def reserve(count: int, duration: str, account: str | None) -> None:
    """Reserve COUNT GPUs (or MIG instances of partitioned GPUs) of this instance for yourself.

    Replaces your current reservation. Log-in shells and submitted runs that start later see only these GPUs.
    A reservation does not keep the instance: the sweep counts reserved GPUs that rest as idle.
    """
    span = parse_duration(duration)
    if span > LONGEST:
        raise GpuReservationError(f"--for {duration}; allowed: {LONGEST.days}d at most")
    if queue_file.path().exists():
        raise GpuReservationError("this stack's queue shares the GPUs out: gpu-fleet submit, or srun --gpus")
    _as_root(account, "reserve", str(count), duration)
    name = account_of(account)
    with reservations_file.locked():
        now = datetime.now(UTC)
        reserved = _present_reservations(now).reserved(name, count, now + span)
        reservations_file.save(reserved)
    own = reserved.visible(name) or ()
    click.echo(f"{name} has {counted(len(own), 'GPU')} until {format_time(now + span)}: {', '.join(own)}")
    click.echo('new log-in shells see them alone; this one: eval "$(gpu-fleet gpu env)"')


@click.command(epilog="\b\nExample:\n  gpu-fleet gpu unreserve")
@_account_option
def unreserve(account: str | None) -> None:
    """End your reservation of GPUs early."""
    _as_root(account, "unreserve")
    name = account_of(account)
    with reservations_file.locked():
        reserved = reservations_file.load().at(datetime.now(UTC))
        reservations_file.save(reserved.without(name))
    click.echo(f"{name} has reserved no GPU any more" if reserved.of(name) else f"{name} had reserved no GPU")


@click.command(epilog="\b\nExample:\n  gpu-fleet gpu env")
def env() -> None:
    """Print a command for your shell that shows it only your GPUs; without a reservation, the free ones.

    In an open shell: eval "$(gpu-fleet gpu env)"
    """
    visible = reservations_file.visible_to(account_of(None), datetime.now(UTC))
    shown = ",".join(visible or ())
    click.echo(f"unset {VARIABLE}" if visible is None else f"export {VARIABLE}={shlex.quote(shown)}")


def _present_reservations(now: datetime) -> GpuReservations:
    """Return the current reservations with the GPUs that exist now. Raises GpuReservationError."""
    return replace(reservations_file.load().at(now), gpus=devices.listed(pynvml))


def account_of(account: str | None) -> str:
    """Return the account: root's choice, else the user who called sudo, else the caller.

    Raises GpuReservationError if a user other than root named an account, or the name is not valid.
    """
    if account is not None:
        if not _may_write():
            raise GpuReservationError(f"--account {account}: for root alone; leave it out for yourself")
        if ACCOUNT.fullmatch(account) is None:
            raise GpuReservationError(f"--account {account!r}; allowed: {ACCOUNT.pattern}")
        return account
    by_sudo = os.environ.get("SUDO_USER") if os.geteuid() == 0 else None
    return by_sudo or pwd.getpwuid(os.geteuid()).pw_name


def _may_write() -> bool:
    """Return whether the caller may write the file: on an instance only root may."""
    return os.access(paths.run_dir(), os.W_OK)


def _as_root(account: str | None, *words: str) -> None:
    """Continue as root by the one program that sudo allows to every user of the stack.

    Raises:
        GpuReservationError: this is no instance, or a user other than root named an account.
    """
    if not paths.instance_file().exists():
        raise GpuReservationError(f"{paths.instance_file()} is missing: reservations are made on an instance")
    if _may_write():
        return
    account_of(account)
    sys.stdout.flush()
    try:
        os.execvp("sudo", ["sudo", "--non-interactive", _HELPER, *words])  # noqa: S606 - sudo's own policy decides
    except OSError as error:
        raise GpuReservationError(f"sudo cannot be started: {error.strerror}") from error

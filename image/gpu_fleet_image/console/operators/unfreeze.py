"""``gpu-fleet unfreeze``: let training pools start instances again, although the budget is spent."""

import getpass
import os
import sys
from datetime import UTC, datetime
from decimal import Decimal

import click

from gpu_fleet_image.controllers.meter import freezer
from gpu_fleet_image.controllers.meter.budget_check import read_spending
from gpu_fleet_image.controllers.meter.freeze_rules import FreezeStage
from gpu_fleet_image.core.cloud import connect
from gpu_fleet_image.core.options import subject_options
from gpu_fleet_image.core.place import Asked, subject
from gpu_fleet_image.core.reaper_errors import ConfigurationError


def login() -> str:
    """Return the caller's login name, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"


@click.command(epilog="\b\nExample:\n  gpu-fleet unfreeze --stack aws-dev --reason 'approved by finance'")
@click.option("--reason", required=True, help="Reason, for the budget's owner; it is recorded.")
@subject_options
def unfreeze(reason: str, asked: Asked) -> None:
    """Let frozen pools start instances again, despite the present spending, until the month ends.

    Reaching a higher threshold later freezes them again.
    """
    reason = " ".join(reason.split())
    if not reason:
        raise ConfigurationError(
            "--reason is empty; allowed: a few words, say 'deadline, approved by finance'"
        )
    meant = subject(asked)
    policy = meant.policy
    now = datetime.now(UTC)
    cloud = connect(policy, lambda: datetime.now(UTC), environ=meant.environ)
    fleet = cloud.instances.fleet()
    spending = read_spending(cloud, policy, fleet, now)
    spent = spending.reading.month_cost if spending else Decimal(0)
    actor = freezer.Actor(login(), reason)
    lifted, failures = freezer.Freezer(cloud, policy, fleet.groups, spent).unfreeze(now, actor)
    for failure in failures:
        click.echo(f"failed: {failure.instance_id}: {failure.step}: {failure.error}", err=True)
    if failures:
        sys.exit(1)
    if lifted.lifted is FreezeStage.OPEN:
        click.echo("nothing is frozen")
    else:
        click.echo(f"pools start instances again; {lifted.lifted.word} is lifted until {lifted.month} ends")

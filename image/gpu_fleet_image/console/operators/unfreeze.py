"""``gpu-fleet unfreeze``: let training pools start instances again, although the budget is spent."""

import getpass
import os
import sys
from datetime import UTC, datetime
from decimal import Decimal

import click

from gpu_fleet_image.controllers.meter import freezer, team_budgets
from gpu_fleet_image.controllers.meter.budget_check import read_spending
from gpu_fleet_image.controllers.meter.freeze_rules import FreezeStage
from gpu_fleet_image.core.cloud import SweepCloud, connect
from gpu_fleet_image.core.options import subject_options
from gpu_fleet_image.core.place import Asked, subject
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import ConfigurationError


def login() -> str:
    """Return the caller's login name, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return f"user {os.getuid()}"


@click.command(epilog="\b\nExample:\n  gpu-fleet unfreeze --stack aws-dev --reason 'approved by finance'")
@click.option("--reason", required=True, help="Reason, for the budget's owner; it is recorded.")
@click.option("--team", help="A team whose own budget froze it, instead of the training pools.")
@subject_options
def unfreeze(reason: str, team: str | None, asked: Asked) -> None:
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
    if team is not None:
        _lift_team(cloud, policy, team, now, reason)
        return
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


def _lift_team(cloud: SweepCloud, policy: Policy, team: str, now: datetime, reason: str) -> None:
    """Lift a team's freeze. Raises CloudError, ConfigurationError."""
    if cloud.store is None:
        raise ConfigurationError(f"--team {team!r} needs GPU_FLEET_LEDGER_URI")
    before = team_budgets.lift(cloud.store, policy, team, now, freezer.Actor(login(), reason))
    if before.frozen:
        click.echo(f"team {team} starts instances and jobs again until {now:%Y-%m} ends")
    else:
        click.echo(f"team {team} was not frozen, and nothing freezes it until {now:%Y-%m} ends")

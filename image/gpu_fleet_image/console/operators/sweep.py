"""``gpu-fleet sweep``: run the scheduled sweep by hand or by cron."""

import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from gpu_fleet_image.controllers.meter.spending import line_of
from gpu_fleet_image.controllers.sweep.handler import conclude
from gpu_fleet_image.controllers.sweep.results import Result
from gpu_fleet_image.controllers.sweep.sweep import SweepOptions
from gpu_fleet_image.controllers.sweep.sweep import sweep as sweep_once
from gpu_fleet_image.core.cloud import connect
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.model import ENDS, Verdict
from gpu_fleet_image.core.options import now_option, subject_options
from gpu_fleet_image.core.place import Asked, subject
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.shared_options import OutputFile
from gpu_fleet_image.core.times import format_span, format_time

EXIT_FAILED = 1
STYLES = {Verdict.MARK: "yellow", Verdict.WAIT: "yellow", Verdict.ALERT: "red", Verdict.KEEP_UNKNOWN: "red"}


@click.command(epilog="\b\nExample:\n  gpu-fleet sweep --stack aws-dev")
@subject_options
@click.option("--dry-run/--live", default=True, show_default=True, help="Decide and report only, or act.")
@now_option
@click.option("--report", type=OutputFile(), help="Write the report here as JSON.")
@click.option("--override-breaker", is_flag=True, help="Override the mass-idle breaker.")
def sweep(
    asked: Asked,
    now: datetime | None,
    report: Path | None,
    *,
    dry_run: bool,
    override_breaker: bool,
) -> None:
    """Mark idle instances, and terminate those past their grace period; with --live only.

    Exit code 1 if anything failed or the mass-idle breaker tripped.
    """
    if now is not None and not dry_run:
        raise ConfigurationError(
            "--now with --live; allowed: --now with --dry-run only, because a live sweep at another time "
            "would move the meter, freeze pools and terminate instances as of that time"
        )
    meant = subject(asked)
    policy = meant.policy
    options = SweepOptions(
        clock=lambda: now or datetime.now(UTC),
        holder=f"{socket.gethostname()} {os.getpid()}",
        dry_run=dry_run or policy.dry_run,
        check_clock=now is None,
        override_breaker=override_breaker,
    )
    cloud = connect(policy, options.clock, read_only=options.dry_run, environ=meant.environ)
    result = sweep_once(cloud, policy, options)
    if not options.dry_run:
        result = conclude(cloud, policy, result)
    _show(result)
    if report is not None:
        report.write_text(json.dumps(result.to_json(), indent=1) + "\n", encoding="utf-8")
    if result.failed:
        sys.exit(EXIT_FAILED)


def _show(result: Result) -> None:
    console = Console(markup=False, width=None if sys.stdout.isatty() else 160)
    console.print(_table(result))
    for failure in result.done.failures:
        console.print(
            f"failed: {failure.instance_id}: {failure.step}: {failure.error}", style="red", markup=False
        )
    for who, why in result.done.unreached.items():
        console.print(f"could not be notified: {who}: {why}", style="yellow", markup=False, soft_wrap=True)
    if result.plan.breaker:
        text = "mass-idle breaker: an unusual share of a pool is idle; the reasons say how long it holds"
        console.print(text, style="red")
    if result.spending is not None:
        console.print(line_of(result.spending), markup=False, soft_wrap=True)
    if result.watched_until is not None and result.watch is not None:
        seen = (
            f"{counted(len(result.watch.would_end), 'instance')} would have been stopped or terminated so far"
        )
        text = f"watch mode until {format_time(result.watched_until)}: {seen}"
        console.print(text, style="yellow", soft_wrap=True)
    marked = "dry run, nothing was changed" if result.dry_run else f"{len(result.done.marked)} marked"
    ended = f"{len(result.done.ended)} terminated or stopped"
    saved = f"{result.done.saved_per_month} {result.currency} a month saved"
    console.print(
        f"{counted(len(result.plan.decisions), 'instance')}, {marked}, {ended}, {saved}; "
        f"{result.read_calls} read and {result.write_calls} write calls"
    )


def _table(result: Result) -> Listing:
    texts = (Column(heading) for heading in ("instance", "pool", "owner", "verdict"))
    numbers = (Column(heading, "right") for heading in ("idle", "an hour"))
    table = Listing((*texts, *numbers, Column("reason", wraps=True)), box=None)
    for decision in result.plan.decisions:
        style = "bold red" if decision.verdict in ENDS else STYLES.get(decision.verdict, "")
        idle = "" if decision.idle_since is None else format_span(result.now - decision.idle_since)
        price = "" if decision.hourly_price is None else f"{decision.hourly_price} {result.currency}"
        row = (
            decision.instance.id,
            decision.instance.pool,
            decision.instance.owner,
            str(decision.verdict),
            idle,
            price,
            decision.reason,
        )
        table.add_row(*row, style=style)
    return table

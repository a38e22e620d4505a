"""``gpu-fleet status``: every instance with its owner, idle time, due time and cost."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import click
from rich.console import Console

from gpu_fleet_image.console.users import own_agent
from gpu_fleet_image.controllers.meter import daily_report
from gpu_fleet_image.controllers.meter.budget_check import read_spending
from gpu_fleet_image.controllers.meter.spending import line_of
from gpu_fleet_image.controllers.sweep import watch as watching
from gpu_fleet_image.controllers.sweep.results import Result
from gpu_fleet_image.controllers.sweep.sweep import SweepOptions, sweep
from gpu_fleet_image.core.cloud import SweepCloud, connect
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.marks import hold_of
from gpu_fleet_image.core.model import ENDS, Decision, Instance, Verdict
from gpu_fleet_image.core.options import now_option, subject_options
from gpu_fleet_image.core.place import Asked, subject
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.shared_options import CSV, TABLE, form_option
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_span, format_time

WIDTH = 150  # columns of a table in a file or a pipe
# Of `-o csv`; the keys of an instance in `-o json`.
COLUMNS = (
    *("instance", "owner", "pool", "type", "launched_at", "verdict", "reason", "idle_s", "ends"),
    *("price_per_hour", "warning"),
)
STYLES = {
    Verdict.KEEP_BUSY: "green",
    Verdict.MARK: "yellow",
    Verdict.WAIT: "yellow",
    Verdict.KEEP_UNKNOWN: "red",
    Verdict.ALERT: "red",
}


@dataclass(frozen=True)
class InstanceRow:
    """One instance, for users.

    Attributes:
        idle: its idle time, or an empty text if that is unknown.
        warning: a problem that its owner should correct.
    """

    instance: str
    owner: str
    what: str
    verdict: Verdict
    idle: str
    ends: str
    an_hour: str
    warning: str


@click.command(epilog="\b\nExample:\n  gpu-fleet status --stack aws-dev")
@subject_options
@form_option
@now_option
@click.option("--here", is_flag=True, help="Show only this instance, from its own agent.")
def status(asked: Asked, now: datetime | None, *, here: bool, form: str) -> None:
    """Show every instance of the stack and their cost; on an instance without --stack, only that one.

    Changes nothing. Exit code 1 if anything could not be read.
    """
    if here or (asked.is_silent and own_agent.is_meant(asked, None)):
        own_agent.refuse_form(form)
        own_agent.ask("status")
        return
    if form != TABLE:
        policy, _, result = dry_sweep(asked, now, "status")
        shown = document(result, policy)
        text = csv_text(COLUMNS, shown["instances"]) if form == CSV else json.dumps(shown, indent=1) + "\n"
        click.echo(text, nl=False)
        sys.exit(1 if result.done.failures else 0)
    console = Console(markup=False, width=None if sys.stdout.isatty() else WIDTH)
    policy, cloud, result = dry_sweep(asked, now, "status")
    show(console, result, policy)
    if policy.watch_days and cloud.store is not None:
        console.print(watched(watching.load(cloud.store, result.now), policy, result.now), soft_wrap=True)
    if spending := read_spending(cloud, policy, result.fleet, result.now):
        console.print(line_of(spending), markup=False, soft_wrap=True)
    if cloud.store is not None and (said := yesterday(cloud.store, result.now)):
        console.print(said, markup=False, soft_wrap=True)
    if result.done.failures:
        sys.exit(1)


def yesterday(store: Store, now: datetime) -> str:
    """Return the GPUs' use on the last complete day, by pool; empty without a report."""
    try:
        return daily_report.hours_of(store, f"{now - timedelta(days=1):%Y-%m-%d}")
    except CloudError as error:
        return f"yesterday's GPU use could not be read: {error}"


def dry_sweep(asked: Asked, now: datetime | None, holder: str) -> tuple[Policy, SweepCloud, Result]:
    """Run a sweep of the selected stack without changes, at ``now`` or the present. Raises ReaperError."""
    meant = subject(asked)
    clock: Callable[[], datetime] = lambda: now or datetime.now(UTC)  # noqa: E731 - a clock
    options = SweepOptions(clock, holder, dry_run=True, check_clock=False, orphans=False)
    cloud = connect(meant.policy, clock, read_only=True, environ=meant.environ)
    return meant.policy, cloud, sweep(cloud, meant.policy, options)


def watched(watch: watching.Watch, policy: Policy, now: datetime) -> str:
    """Return whether the stack's sweep only watches, and what it has seen."""
    if now >= watch.until(policy):
        return f"watch mode ended {format_time(watch.until(policy))}; the sweep acts"
    seen = f"{counted(len(watch.would_end), 'instance')} would have been stopped or terminated so far"
    return f"watch mode until {format_time(watch.until(policy))}, nothing is terminated: {seen}"


def document(result: Result, policy: Policy) -> dict[str, Any]:
    """Return the status for programs; docs/reference/json.md has the keys. Pure."""
    return {
        "stack": policy.stack,
        "as_of": format_time(result.now),
        "currency": policy.currency,
        "instances": [described(decision, policy, result.now) for decision in result.plan.decisions],
        "failures": [
            {"instance": failure.instance_id, "step": failure.step, "error": failure.error}
            for failure in result.done.failures
        ],
    }


def described(decision: Decision, policy: Policy, now: datetime) -> dict[str, Any]:
    """Return one instance of a plan, for programs. Pure."""
    instance, price = decision.instance, decision.hourly_price
    return {
        "instance": instance.id,
        "owner": instance.owner,
        "pool": instance.pool,
        "type": instance.type,
        "launched_at": format_time(instance.launched_at),
        "verdict": str(decision.verdict),
        "reason": decision.reason,
        "idle_s": decision.idle_s,
        "ends": ends_if_unused(decision, policy, now),
        "price_per_hour": None if price is None else str(price),
        "warning": row(decision, policy, now).warning,
    }


def show(console: Console, result: Result, policy: Policy) -> None:
    """Print table, total, warnings and failures."""
    made = [row(decision, policy, result.now) for decision in result.plan.decisions]
    console.print(table(made))
    for warned in filter(lambda result: result.warning, made):
        console.print(f"warning: {warned.instance}: {warned.warning}", style="yellow", markup=False)
    for failure in result.done.failures:
        line = f"failed: {failure.instance_id}: {failure.step}: {failure.error}"
        console.print(line, style="red", markup=False)
    idle = [
        decision
        for decision in result.plan.decisions
        if decision.verdict in {Verdict.MARK, Verdict.WAIT, *ENDS}
    ]
    cost = sum((decision.hourly_price or Decimal(0) for decision in idle), Decimal(0))
    console.print(f"{len(idle)} of {len(made)} instances idle, at {cost} {policy.currency} an hour")
    if said := images(decision.instance for decision in result.plan.decisions):
        console.print(said, soft_wrap=True)


def images(instances: Iterable[Instance]) -> str:
    """Return the number of instances of each image, the most frequent first; empty if unknown. Pure."""
    counted = Counter(instance.image for instance in instances if instance.image)
    listed = ", ".join(f"{image} ({count})" for image, count in counted.most_common())
    return f"images: {listed}" if listed else ""


def row(decision: Decision, policy: Policy, now: datetime) -> InstanceRow:
    """Return the row of one instance of a plan."""
    instance = decision.instance
    hold = hold_of(instance, now)
    price = decision.hourly_price
    return InstanceRow(
        instance=instance.id,
        owner=instance.owner or "nobody",
        what=f"{instance.pool} {instance.type}",
        verdict=decision.verdict,
        idle="" if decision.idle_s is None else format_span(timedelta(seconds=decision.idle_s)),
        ends=ends_if_unused(decision, policy, now),
        an_hour="unknown" if price is None else f"{price} {policy.currency}",
        warning=hold.problem if hold else "",
    )


def ends_if_unused(decision: Decision, policy: Policy, now: datetime) -> str:
    """Return when an instance would be terminated if it stays unused."""
    hold = hold_of(decision.instance, now)
    if hold is not None:
        return f"kept until {hold.until:%Y-%m-%d %H:%M}" if hold.until else "kept: its tag cannot be read"
    if decision.verdict in ENDS:
        return "with the next sweep"
    if decision.reap_after is not None:
        left = decision.reap_after - now
        return f"in {format_span(left)}" if left > timedelta(0) else "after the next checks"
    if decision.verdict in {Verdict.KEEP_UNKNOWN, Verdict.ALERT}:
        return "not before it is known to be idle"
    pool = policy.pools.get(decision.instance.pool)
    if pool is None or decision.idle_s is None or decision.verdict is Verdict.KEEP_PROTECTED:
        return "never"
    terms = pool.terms()
    left = max(timedelta(0), terms.idle_after + terms.grace - timedelta(seconds=decision.idle_s))
    return f"in {format_span(left)}"


def table(rows: list[InstanceRow]) -> Listing:
    """Return the rows as a table, in which colours mark the instances that are due first."""
    columns = (
        *(Column("instance"), Column("owner", wraps=True), Column("pool and type", wraps=True)),
        *(Column("verdict"), Column("idle", "right"), Column("due if unused", wraps=True)),
        Column("an hour", "right"),
    )
    made = Listing(columns, box=None)
    for row in rows:
        style = "bold red" if row.verdict in ENDS else STYLES.get(row.verdict, "")
        cells = (row.instance, row.owner, row.what, str(row.verdict), row.idle, row.ends, row.an_hour)
        made.add_row(*cells, style=style)
    return made

"""``gpu-fleet explain``: the reasons of a sweep's decision on one instance, and the heartbeats behind it."""

import json
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from gpu_fleet_image.console.users import explain_live, own_agent, timeline
from gpu_fleet_image.console.users.status import WIDTH, described, dry_sweep, row
from gpu_fleet_image.console.users.timeline import LEGEND, Cell, PeriodRow
from gpu_fleet_image.controllers.sweep.evidence import LOOK_AHEAD
from gpu_fleet_image.controllers.sweep.results import Result
from gpu_fleet_image.core.cloud import Query, Span, SweepCloud
from gpu_fleet_image.core.marks import mark_of
from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY
from gpu_fleet_image.core.model import Decision
from gpu_fleet_image.core.options import now_option, stack_options
from gpu_fleet_image.core.place import Asked
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import ConfigurationError, nearest
from gpu_fleet_image.core.shared_options import inert, json_option
from gpu_fleet_image.core.times import format_span, format_time, marking_rule

STYLES = {Cell.ACTIVE: "green", Cell.IDLE: "yellow", Cell.UNKNOWN: "red", Cell.HUNG: "bold red"}
_SHORTEST_WINDOW = timedelta(hours=24)


@click.command(
    epilog="\b\nExamples:\n  gpu-fleet explain\n  gpu-fleet explain i-0123456789abcdef0 --stack aws-dev\n"
    "  sudo gpu-fleet explain --live"
)
@click.argument("instance_id", required=False)
@click.option("--live", "is_live", is_flag=True, help="On an instance: show each sensor's present reading.")
@stack_options
@json_option
@now_option
def explain(
    instance_id: str | None, asked: Asked, now: datetime | None, *, is_live: bool, as_json: bool
) -> None:
    """Show what a sweep would do with an instance, and the heartbeats that it reads.

    On an instance, without its name: show its agent's judgement, and when its pool marks it. With --live, on
    an instance and as root: show each sensor's present reading, and what makes the instance busy. Changes
    nothing. Exit code 1 if anything could not be read.
    """
    if is_live:
        Console(width=None if sys.stdout.isatty() else WIDTH).print(
            explain_live.table(list(explain_live.lines(*explain_live.poll())))
        )
        return
    if (asked.is_silent or instance_id is None) and own_agent.is_meant(asked, instance_id):
        own_agent.refuse_form("json" if as_json else "table")
        own_agent.ask("explain", instance_id)
        return
    if instance_id is None:
        raise click.UsageError("name an instance; only on an instance is its own the default")
    policy, cloud, result = dry_sweep(asked, now, "explain")
    decision = _decision_on(instance_id, result)
    if as_json:
        said = document(cloud, decision, policy, result.now)
        click.echo(json.dumps(said, indent=1))
        sys.exit(1 if said["failures"] else 0)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    for line in facts(decision, policy, result.now):
        console.print(inert(line), markup=False, highlight=False, soft_wrap=True)
    shown, period, failed = read_rows(cloud, decision, policy, result.now)
    for text in picture(shown, period):
        console.print(text, soft_wrap=True)
    for failure in failed:
        console.print(f"failed: {failure}", style="red", markup=False)
    if failed or any(failure.instance_id in (instance_id, "*") for failure in result.done.failures):
        sys.exit(1)


def _decision_on(instance_id: str, result: Result) -> Decision:
    """Return the plan's decision on one instance. Raises ConfigurationError."""
    decisions = {decision.instance.id: decision for decision in result.plan.decisions}
    if instance_id not in decisions:
        hint = nearest(instance_id, decisions)
        raise ConfigurationError(f"{instance_id}: no existing instance of this stack{hint}")
    return decisions[instance_id]


def document(cloud: SweepCloud, decision: Decision, policy: Policy, now: datetime) -> dict[str, Any]:
    """Return the explanation for programs; docs/reference/json.md has the keys."""
    shown, period, failed = read_rows(cloud, decision, policy, now)
    mark = mark_of(decision.instance)
    return {
        **described(decision, policy, now),
        "due_after": None if mark is None else format_time(mark.reap_after),
        "heartbeats": {
            "period_s": period,
            "rows": [
                {"start": format_time(each.start), "cells": [LEGEND[cell] for cell in each.cells]}
                for each in shown
            ],
        },
        "failures": failed,
    }


def facts(decision: Decision, policy: Policy, now: datetime) -> Iterator[str]:
    """Yield the facts about the instance, one a line."""
    shown = row(decision, policy, now)
    launched = _launched(decision)
    yield f"{shown.instance}: {shown.what}, {shown.owner}, {shown.an_hour} an hour, up since {launched}"
    yield f"verdict: {decision.verdict}: {decision.reason}"
    yield f"due if unused: {shown.ends}"
    mark = mark_of(decision.instance)
    if mark is not None:
        yield f"marked: idle since {format_time(mark.idle_since)}; due after {format_time(mark.reap_after)}"
    if shown.warning:
        yield f"warning: {shown.warning}"
    pool = policy.pools.get(decision.instance.pool)
    if pool is not None:
        idle_after = pool.terms().idle_after
        name, percent = decision.instance.pool, pool.coverage_percent
        yield marking_rule(name, idle_after, percent, pool.action, pool.grace_minutes)


def _launched(decision: Decision) -> str:
    return format_time(decision.instance.launched_at)


def read_rows(
    cloud: SweepCloud, decision: Decision, policy: Policy, now: datetime
) -> tuple[list[PeriodRow], int, list[str]]:
    """Return the heartbeats of the pool's window as (rows, seconds of a period, errors)."""
    pool = policy.pools.get(decision.instance.pool)
    window = max(_SHORTEST_WINDOW, pool.terms().idle_after if pool else _SHORTEST_WINDOW)
    period = timeline.period_s(window)
    start = timeline.start_of(now, window, period)
    query = Query(decision.instance.id, METRIC_SECONDS_SINCE_ACTIVITY, period)
    answers, failures = cloud.heartbeats.read([query], Span(start, now + LOOK_AHEAD))
    shown = list(timeline.rows(answers[query].points, start, now, period))
    return shown, period, [f"{failure.step}: {failure.error}" for failure in failures]


def picture(shown: list[PeriodRow], period: int) -> Iterator[Text]:
    """Yield the rows with their times, and a legend of the characters."""
    yield Text(f"heartbeats, {format_span(timedelta(seconds=period))} a character, UTC")
    for period_row in shown:
        text = Text(f"  {period_row.start:%Y-%m-%d %H:%M} ")
        for cell in period_row.cells:
            text.append(str(cell), style=STYLES.get(cell, ""))
        yield text
    count = timeline.counts(shown)
    meant = (
        f"{cell if cell.strip() else 'blank'} {LEGEND[cell]} {count[cell]}" for cell in Cell if count[cell]
    )
    yield Text("  " + ", ".join(meant))

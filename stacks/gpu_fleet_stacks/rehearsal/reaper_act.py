"""Fourth act: instances that are busy, idle, silent, kept and just started; the sweep dry, then for real.

Every heartbeat comes from an agent that the stack's own user data and payload installed in a folder, and that
watches a real process; only its clock runs fast. The operator's sweep command sets the mark. The function
terminates: it runs from the archive that the stack uploads, in an interpreter without this project's modules.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpu_fleet_stacks.rehearsal import instances, sweeps
from gpu_fleet_stacks.rehearsal.cast import KEPT_FILE, Player, cast, keep, listening, live, wait_for_answers
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Idle, Stack

# Sweeps run every few minutes, so an instance is terminated some time after the grace period ends.
SLACK = timedelta(minutes=10)
# How long the older instances had run before the first heartbeat of their agents.
BEFORE = timedelta(hours=1)
KEPT_FOR = "8h"


@dataclass(frozen=True)
class Reaped:
    """Results of the act.

    Attributes:
        reaped: instances that had to be terminated and were.
        false_kills: instances that were terminated and had to stay.
        changed_by_dry_run: instances that the dry sweep changed.
        saved_usd_per_month: what a month without the terminated instances saves, at list price.
        kept_files_saved: files of ``/scratch/keep`` that reached the bucket before the end.
        ledger_entries: confirmed terminations in the ledger of the stack's bucket.
        read_calls, write_calls: of the sweep that terminated them.
    """

    reaped: int
    false_kills: int
    changed_by_dry_run: int
    saved_usd_per_month: Decimal
    kept_files_saved: int
    ledger_entries: int
    read_calls: int
    write_calls: int
    seconds: float


@dataclass(frozen=True)
class ActTimeline:
    """Moments of the act.

    Attributes:
        mark: the sweep that finds the idle instance.
        end: the present, when the function terminates it.
    """

    begin: datetime
    mark: datetime
    end: datetime


def timeline(idle: Idle, now: datetime) -> ActTimeline:
    """Return the act's moments for a pool's idle policy: the end is now, the others are earlier. Pure."""
    mark = now - timedelta(minutes=idle.grace_minutes) - SLACK
    return ActTimeline(mark - timedelta(hours=idle.after_hours) - SLACK, mark, now)


def play(
    console: Console, clients: RegionClients, settings: Stack, rehearsed: Rehearsed, folder: Path
) -> Reaped:
    """Let the instances run for some hours, and sweep three times: dry run, mark, terminate.

    Raises:
        ChildError: an agent or a sweep fails.
        RehearsalError: there are fewer instances than roles.
    """
    started = time.perf_counter()
    function = sweeps.unpacked(rehearsed, folder / "function")
    templates = rehearsed.outputs["launch_template_ids"]
    user_data = {pool: instances.user_data(clients, template) for pool, template in templates.items()}
    before = instances.launched(clients, settings.name)
    with cast(clients, before, user_data, folder) as players:
        moments = timeline(settings.pools[0].idle, datetime.now(UTC))
        _past_the_watch(clients, settings, rehearsed.outputs["bucket_uris"]["records"], moments)
        reports, touched = _through_the_hours(clients, settings.name, players, moments, function)
    gone = instances.running(before) - instances.running(instances.launched(clients, settings.name))
    console.print(table(players, reports, gone))
    ending, buckets = reports[-1], rehearsed.outputs["bucket_uris"]
    had_to_go = {player.instance.id for player in players if player.part.goes}
    return Reaped(
        reaped=len(gone & had_to_go),
        false_kills=len(gone - had_to_go),
        changed_by_dry_run=touched,
        saved_usd_per_month=Decimal(ending["saved_usd_per_month"]),
        kept_files_saved=clients.count_objects(buckets["data"], f"/{KEPT_FILE}"),
        ledger_entries=clients.count_objects(f"{buckets['records']}/reaper/ledger", ".ended.json"),
        read_calls=ending["calls"]["read"],
        write_calls=ending["calls"]["write"],
        seconds=time.perf_counter() - started,
    )


def _past_the_watch(clients: RegionClients, settings: Stack, records: str, moments: ActTimeline) -> None:
    """Write an earlier first sweep, so that a stack with ``reaper.watch_days`` is past its watch period."""
    if not settings.reaper.watch_days:
        return
    began = moments.begin - timedelta(days=settings.reaper.watch_days + 1)
    watch = {"began": began.isoformat(), "marks": {}, "would_end": [], "summed_up": True}
    bucket = records.removeprefix("s3://")
    clients("s3").put_object(Bucket=bucket, Key="reaper/watch.json", Body=json.dumps(watch).encode())


def _through_the_hours(
    clients: RegionClients,
    stack: str,
    players: Sequence[Player],
    moments: ActTimeline,
    function: sweeps.Function,
) -> tuple[tuple[sweeps.Report, ...], int]:
    """Run from first heartbeat to end; return three reports, and how many instances the dry run changed."""
    for player in players:
        old = player.part.share > 0
        instances.date_back(clients, player.instance.id, moments.begin - BEFORE if old else moments.mark)
        if player.part.kept:
            keep(player, KEPT_FOR)
    first_hours = moments.mark - moments.begin
    live(
        [
            (player, moments.begin, moments.begin + first_hours * player.part.share)
            for player in players
            if player.part.share
        ]
    )
    untouched = instances.pictures(clients, stack)
    dry = sweeps.by_command(function, moments.mark)
    touched = sum(
        untouched[instance_id] != picture
        for instance_id, picture in instances.pictures(clients, stack).items()
    )
    marking = sweeps.by_function(function, moments.mark)
    for player in players:
        player.mirror_tags(clients)
    alive = [player for player in players if player.part.share in (0.0, 1.0)]
    live([(player, moments.mark, moments.end) for player in alive])
    with listening(alive, datetime.now(UTC)):
        asked = [player.instance.id for player in alive if player.part.goes]
        wait_for_answers(clients, function.environment["GPU_FLEET_LEDGER_URI"], asked)
        return (dry, marking, sweeps.by_function(function)), touched


def table(players: Sequence[Player], reports: Sequence[sweeps.Report], gone: set[str]) -> Table:
    """Return each instance's role, its verdict in the three sweeps, and whether it still exists."""
    # without lines between the columns, three verdicts fit beside an id in 80 characters
    view = Table(
        title="three sweeps over five instances", title_justify="left", box=None, padding=(0, 1, 0, 0)
    )
    for heading in ("instance", "part", "dry run", "marking", "function", "end"):
        view.add_column(heading, no_wrap=True)
    said = [
        {verdict["instance_id"]: verdict["verdict"] for verdict in report["verdicts"]} for report in reports
    ]
    for player in players:
        went = player.instance.id in gone
        right = went is player.part.goes
        outcome = ("gone" if went else "stays") + ("" if right else ", WRONG")
        verdicts = [verdict.get(player.instance.id, "") for verdict in said]
        view.add_row(
            player.instance.id, player.part.name, *verdicts, outcome, style="" if right else "bold red"
        )
    return view


def summary(reaped: Reaped) -> str:
    """Return the act in one line."""
    return (
        f"idle instances terminated: {reaped.reaped}, others: {reaped.false_kills}; "
        f"saved: {reaped.saved_usd_per_month:.2f} USD a month; "
        f"files of their users saved before: {reaped.kept_files_saved}"
    )

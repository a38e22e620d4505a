"""``gpu-fleet runs``, ``logs`` and ``cancel``: submitted runs, as their instances report them."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

import click

from gpu_fleet_image.console.runs import queue_view
from gpu_fleet_image.console.runs.bucket import RunBucket, run_bucket
from gpu_fleet_image.console.runs.choice import account_name, is_silent
from gpu_fleet_image.console.users.take import caller_of
from gpu_fleet_image.controllers.mover import mover
from gpu_fleet_image.core import listing
from gpu_fleet_image.core.options import stack_options, subject_options
from gpu_fleet_image.core.place import Asked, Place, subject
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import ConfigurationError, nearest
from gpu_fleet_image.core.runs import OVER, Job, NodeState, Phase, node_prefix, overall
from gpu_fleet_image.core.shared_options import TABLE, form_option, inert, note
from gpu_fleet_image.core.times import format_span, parse_time

HEADINGS = ("run", "pool", "nodes", "phase", "step", "loss", "ETTR", "time", "at most")
WIDTH = 150  # columns of a table in a file or a pipe
LOOK_EVERY_S = 5.0
SECONDS_PER_HOUR = 3600
_as_option = click.option(
    "--as", "account", metavar="ACCOUNT", help="Your account; by default your name in the cloud."
)


@dataclass(frozen=True)
class Viewer:
    """The caller of a command, and their stack."""

    policy: Policy
    place: Place
    bucket: RunBucket
    account: str
    caller: str

    def job(self, run: str) -> Job:
        """Return a run by its name; raises ConfigurationError, CloudError."""
        job = self.bucket.job(self.account, run)
        if job is None:
            known = [job.run for job in self.bucket.jobs(self.account)]
            raise ConfigurationError(
                f"RUN {run!r}: no run of account {self.account}{nearest(run, known)}; see gpu-fleet runs"
            )
        return job


def _viewer(policy: Policy, asked: Asked, account: str | None) -> Viewer:
    place = Place(policy.stack, policy.cloud, policy.region, asked.account_id or "")
    caller = caller_of(place)
    return Viewer(policy, place, run_bucket(place), account_name(account, caller), caller)


@click.command(epilog="\b\nExample:\n  gpu-fleet runs --stack aws-dev")
@_as_option
@subject_options
@form_option
def runs(asked: Asked, account: str | None, form: str) -> None:
    """List your submitted runs, the newest first: phase, step, loss, ETTR and cost so far."""
    if (policy := subject(asked).policy).has_queue:
        queue_view.show_runs(queue_view.opened(policy, asked, account), form)
        return
    viewer = _viewer(policy, asked, account)
    now = datetime.now(UTC)
    jobs = viewer.bucket.jobs(viewer.account)
    said = {job.run: viewer.bucket.states(job) for job in jobs}
    rows = [cells(job, said[job.run], viewer.policy, now) for job in jobs]
    if form != TABLE:
        click.echo(queue_view.document(HEADINGS, rows, form))
        return
    listing.console(WIDTH).print(queue_view.table(HEADINGS, rows))
    for run, states in said.items():
        for why in dict.fromkeys(state.detail for state in states if state.phase is Phase.REFUSED):
            click.echo(inert(f"{run}: refused: {why}"))
    if not jobs:
        click.echo(f"account {viewer.account} has submitted none")


def cells(job: Job, states: Sequence[NodeState], policy: Policy, now: datetime) -> tuple[str, ...]:
    """Return a run as a row, with the figures of rank 0. Pure."""
    first = states[0]
    phase = overall(states)
    silent = [
        member.id
        for member, state in zip(job.instances, states, strict=True)
        if state.phase not in OVER and is_silent(job, state, now)
    ]
    end = max((parse_time(state.at) for state in states if state.at), default=now)
    lasted = (end if phase in OVER or silent else now) - parse_time(job.at)
    spent = Decimal(lasted.total_seconds()) / SECONDS_PER_HOUR * len(job.instances)
    price = mover.prices(policy, now).get(job.pool)
    return (
        job.run,
        job.pool,
        str(len(job.instances)),
        f"{phase}, no report from {', '.join(silent)}" if silent else str(phase),
        "" if first.step is None else str(first.step),
        "" if first.loss is None else f"{first.loss:.4g}",
        "" if first.ettr is None else f"{first.ettr:.0%}",
        format_span(lasted),
        "unknown" if price is None else f"{price * spent:,.2f} {policy.currency}",
    )


@click.command(epilog="\b\nExample:\n  gpu-fleet logs -f digits-20261122-210405-3f9a --stack aws-dev")
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the run ends.")
@click.option("--node", type=click.IntRange(0), default=0, show_default=True, help="The log of this rank.")
@_as_option
@stack_options
def logs(run: str, asked: Asked, account: str | None, node: int, *, follow: bool) -> None:
    """Print the log of RUN (in a queue: name or number), which its instances upload every 15 seconds.

    With -f the exit code is 1 if the run failed.
    """
    if (policy := subject(asked).policy).has_queue:
        if node:
            raise ConfigurationError(f"--node {node}: the instances of a queue's job share one log")
        if not queue_view.show_log(queue_view.opened(policy, asked, account), run, follow=follow):
            sys.exit(1)
        return
    viewer = _viewer(policy, asked, account)
    job = viewer.job(run)
    if node >= len(job.instances):
        raise ConfigurationError(f"--node {node}; allowed: 0 to {len(job.instances) - 1}")
    if not shown(viewer.bucket, job, node, follow=follow):
        sys.exit(1)


def shown(bucket: RunBucket, job: Job, node: int, *, follow: bool) -> bool:
    """Print the log, with -f as it grows; return whether the run did not fail. Raises CloudError."""
    printed: set[str] = set()
    show = queue_view.log_printer()
    while True:
        states = bucket.states(job)  # before the log, which then has the last lines
        for key in bucket.log_keys(node_prefix(job, job.instances[node].id), job.account):
            if key not in printed:
                printed.add(key)
                show(bucket.part(key, job.account))
        state = states[node]
        silent = state.phase not in OVER and is_silent(job, state, datetime.now(UTC))
        if state.phase in OVER or silent or not follow:
            said = f"{state.phase}{f': {state.detail}' if state.detail else ''}"
            note(f"{job.run}: {said}{', and no further report' if silent else ''}")
            return not follow or (overall(states) not in (Phase.FAILED, Phase.REFUSED) and not silent)
        time.sleep(LOOK_EVERY_S)


@click.command(epilog="\b\nExample:\n  gpu-fleet cancel digits-20261122-210405-3f9a --stack aws-dev")
@click.argument("run")
@_as_option
@stack_options
def cancel(run: str, asked: Asked, account: str | None) -> None:
    """Ask RUN to save and stop; its instances check every 15 seconds. It resumes when you submit it again."""
    if (policy := subject(asked).policy).has_queue:
        click.echo(queue_view.cancel_run(queue_view.opened(policy, asked, account), run))
        return
    viewer = _viewer(policy, asked, account)
    job = viewer.job(run)
    phase = overall(viewer.bucket.states(job))
    if phase in OVER:
        raise ConfigurationError(f"RUN {run}: is {phase}; there is nothing to cancel")
    viewer.bucket.cancel(job.account, job.run, viewer.caller, datetime.now(UTC))
    click.echo(f"{run} is asked to save and stop: gpu-fleet runs shows when it has")

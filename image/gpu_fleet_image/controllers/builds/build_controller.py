"""One pass over the builds of a stack's image: retry, promote, and report problems to operators.

The controller keeps no state: every decision follows from the cloud's list of builds and from the promoted
image. A pass that is missed or run twice does no harm.
"""

import json
import re
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from zoneinfo import ZoneInfo

from gpu_fleet_image.core import keys
from gpu_fleet_image.core.document import parse
from gpu_fleet_image.core.reaper_errors import ConfigurationError

METRIC = "ImageBuildProblems"  # 1 while an operator must look, else 0; without a dimension
PLAN_FILE = keys.BUILDS_FILE
# Builds are repeated for so long if there is no instance to build or test on, from the first try on.
TRIED_FOR = timedelta(hours=6)
# A build starts each week and takes an hour or two; the limits of its steps add up to less than 12 hours.
SILENT_AFTER, HANGS_AFTER = timedelta(days=8), timedelta(hours=12)
# Sunday, as in the schedule of AWS's pipelines (stacks/gpu_fleet_stacks/aws/image.py).
_WEEKDAY, HOUR, _STARTS_WITHIN = 6, time(3), timedelta(hours=1)
# docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html; ECS: OperationDenied.NoStock. The
# zone has no capacity left, or does not sell the type.
NO_ROOM = re.compile(
    r"Insufficient\w*Capacity|(?i:insufficient capacity)|not supported in your requested|NoStock"
)


class BuildStage(StrEnum):
    """State of a build."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Cause(StrEnum):
    """Cause of a failed build; it decides whether another try may help."""

    NO_ROOM = "no room"
    BUILDING = "building"
    TESTING = "testing"


@dataclass(frozen=True)
class PipelineBuild:
    """One run of a stack's pipeline.

    Attributes:
        began: when it began, UTC.
        image_id: the image that it made; empty until then.
        place: index of its pipeline in the plan; there is one pipeline for each zone.
        scheduled: the cloud's own schedule started it.
    """

    id: str
    state: BuildStage
    began: datetime
    image_id: str = ""
    place: int = 0
    scheduled: bool = False


@dataclass(frozen=True)
class BuildFailure:
    """Cause and reason of a failed build, for the log."""

    cause: Cause
    reason: str


@dataclass(frozen=True)
class Promoted:
    """The image that instances boot from now on.

    Attributes:
        since: when it was last written; None if nothing was written.
    """

    image_id: str
    since: datetime | None


@dataclass(frozen=True)
class BuildsPlan:
    """Settings of the stack's builds.

    Attributes:
        stack: its name.
        pipelines: their names; the first is the weekly one.
        parameter: the parameter with the promoted image's id (AWS); empty if launch templates hold it.
        scan: promote only images whose scan found nothing critical; the controller does that, not the
            pipeline.
        weekly: the cloud has no schedule of its own, so the controller starts the weekly build.
    """

    stack: str
    pipelines: tuple[str, ...]
    parameter: str
    scan: bool
    weekly: bool


@dataclass(frozen=True)
class Report:
    """Result of one pass.

    Attributes:
        problem: message for operators; empty if all is well.
        action: what the controller did; empty for nothing.
    """

    problem: str = ""
    action: str = ""


class Pipelines(Protocol):
    """The stack's pipelines on its cloud; every method raises ``CloudError`` if the cloud gives no answer."""

    def declared(self) -> datetime:
        """Return when the pipeline was created."""

    def history(self) -> Sequence[PipelineBuild]:
        """Return the builds of all pipelines, the newest first."""

    def failure(self, build: PipelineBuild) -> BuildFailure:
        """Return why a build failed."""

    def start(self, place: int, after: str) -> str:
        """Start a build and return its id; a second call after the same build returns the same new build."""

    def promoted(self) -> Promoted:
        """Return the image that instances boot."""

    def promote(self, image_id: str) -> None:
        """Let instances boot an image."""

    def unfit(self, build: PipelineBuild) -> str:
        """Return why a build's scan forbids promotion; empty if it is complete and found nothing critical."""


def reconcile(builds: Pipelines, plan: BuildsPlan, zone: ZoneInfo, now: datetime) -> Report:
    """Run one pass: start, retry or promote a build, and report problems."""
    history = builds.history()
    newest = history[0] if history else None
    due = last_due(now, zone)
    late = newest is None or newest.began < due
    running = newest is not None and newest.state is BuildStage.RUNNING
    if plan.weekly and late and not running and now < due + _STARTS_WITHIN:
        return Report(action=f"began build {builds.start(0, due.isoformat())} of the week")
    since = newest.began if newest else builds.declared()
    if newest is None or now - since > SILENT_AFTER:
        silent = f"no build has begun since {since:%Y-%m-%d %H:%M} UTC"
        return Report(problem=silent if now - since > SILENT_AFTER else "")
    if newest.state is BuildStage.FAILED:
        return _failed(builds, plan, history, zone, now)
    if newest.state is BuildStage.DONE:
        return _judged(builds, plan, newest)
    hangs = now - newest.began > HANGS_AFTER
    return Report(problem=f"build {newest.id} runs since {newest.began:%Y-%m-%d %H:%M} UTC" if hangs else "")


def last_due(now: datetime, zone: ZoneInfo) -> datetime:
    """Return when the latest weekly build was due: Sunday morning, in the stack's time zone. Pure."""
    local = now.astimezone(zone)
    day = local.date() - timedelta(days=(local.weekday() - _WEEKDAY) % 7)
    due = datetime.combine(day, HOUR, zone)
    return due if due <= local else datetime.combine(day - timedelta(days=7), HOUR, zone)


def _failed(
    builds: Pipelines, plan: BuildsPlan, history: Sequence[PipelineBuild], zone: ZoneInfo, now: datetime
) -> Report:
    """Retry in the next zone for hours if capacity is missing; retry once if building failed."""
    newest, first = history[0], round_of(history, plan, zone)[-1]
    failure = builds.failure(newest)
    said = f"build {newest.id} failed: {failure.reason}"
    sought = failure.cause is Cause.NO_ROOM and now - first.began < TRIED_FOR
    again = failure.cause is Cause.BUILDING and _of_the_week(newest, history, plan, zone)
    if not sought and not again:
        hours = TRIED_FOR // timedelta(hours=1)
        late = f" (no instance in {hours} hours)" if failure.cause is Cause.NO_ROOM else ""
        return Report(problem=f"{said}{late}; nothing is promoted")
    place = (newest.place + 1) % len(plan.pipelines) if sought else newest.place
    return Report(action=f"{said}; began build {builds.start(place, newest.id)} instead")


def round_of(history: Sequence[PipelineBuild], plan: BuildsPlan, zone: ZoneInfo) -> Sequence[PipelineBuild]:
    """Return the newest build and the builds that it retries, back to the weekly one. Pure."""
    tries = [history[0]]
    for build in history[1:]:
        apart = tries[-1].began - build.began > TRIED_FOR
        if build.state is not BuildStage.FAILED or apart or _of_the_week(tries[-1], history, plan, zone):
            break
        tries.append(build)
    return tries


def _of_the_week(
    build: PipelineBuild, history: Sequence[PipelineBuild], plan: BuildsPlan, zone: ZoneInfo
) -> bool:
    """Return whether it is the weekly build; if the controller starts it, the first of that hour."""
    if not plan.weekly:
        return build.scheduled
    due = last_due(build.began, zone)
    follows = any(due <= other.began < build.began for other in history)
    return build.began - due < _STARTS_WITHIN and not follows


def _judged(builds: Pipelines, plan: BuildsPlan, build: PipelineBuild) -> Report:
    """Promote a build whose scan is clean; keep an image that was promoted after the build began."""
    if not plan.scan:
        return Report()
    promoted = builds.promoted()
    if promoted.image_id == build.image_id or (promoted.since and promoted.since > build.began):
        return Report()
    if unfit := builds.unfit(build):
        return Report(problem=f"{build.image_id}: {unfit}; {promoted.image_id or 'nothing'} stays promoted")
    builds.promote(build.image_id)
    return Report(action=f"promoted {build.image_id} instead of {promoted.image_id or 'nothing'}")


def token(pipeline: str, after: str) -> str:
    """Return the token by which the cloud recognises a repeated start, as ``gpu-fleet image build`` does."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{pipeline} after {after}"))


def load(file: Path) -> BuildsPlan:
    """Return the plan that the stack wrote. Raises ConfigurationError if it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: no plan of builds: {error}") from error
    return parse(BuildsPlan, text, ConfigurationError, f"{file}: no plan of builds")


def log(report: Report) -> dict[str, str]:
    """Write one JSON object a line, as the sweep's log does; return the report's fields."""
    content = asdict(report)
    for event, text in content.items():
        if text:
            sys.stdout.write(json.dumps({"event": event, "text": text}) + "\n")
    return content

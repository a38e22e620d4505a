"""One look at the builds of a stack's image: what begins again, what is promoted, what operators must know.

It remembers nothing: every decision follows from what the cloud says of builds and of the promoted image, so
that a look that was missed or made twice does no harm.
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

from image.reaper.errors import ConfigurationError

METRIC = "ImageBuildProblems"  # 1 while an operator must look, else 0; without a dimension
PLAN_FILE = "builds.json"  # beside the function's policy.json
# How long an instance to build or test on is sought, from the first try on.
TRIED_FOR = timedelta(hours=6)
# A build is begun each week; one takes an hour or two, and its steps have limits of their own below this.
SILENT_AFTER, HANGS_AFTER = timedelta(days=8), timedelta(hours=12)
# Sunday, as the pipelines of AWS have it themselves (stacks/aws/image.py).
WEEKDAY, HOUR, STARTS_WITHIN = 6, time(3), timedelta(hours=1)
# docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html; ECS: OperationDenied.NoStock. None is
# left, or none is sold in the zone.
NO_ROOM = re.compile(
    r"Insufficient\w*Capacity|(?i:insufficient capacity)|not supported in your requested|NoStock"
)


class BuildStage(StrEnum):
    """How far a build is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class Cause(StrEnum):
    """Why a build failed: whether another try may help."""

    NO_ROOM = "no room"
    BUILDING = "building"
    TESTING = "testing"


@dataclass(frozen=True)
class PipelineBuild:
    """One run of a stack's pipeline.

    Attributes:
        id: the cloud's.
        began: when, UTC.
        image_id: what it made; empty until then.
        place: of its pipeline among the plan's, one for each zone.
        scheduled: the cloud began it by itself.
    """

    id: str
    state: BuildStage
    began: datetime
    image_id: str = ""
    place: int = 0
    scheduled: bool = False


@dataclass(frozen=True)
class BuildFailure:
    """Why a build failed, for the log."""

    cause: Cause
    reason: str


@dataclass(frozen=True)
class Promoted:
    """What instances boot from now on.

    Attributes:
        since: when it was last written; None before that.
    """

    image_id: str
    since: datetime | None


@dataclass(frozen=True)
class BuildsPlan:
    """What the stack wants of its builds.

    Attributes:
        stack: its name.
        pipelines: their names, the one of each week first.
        parameter: where the promoted image's id stands (AWS); empty where launch templates hold it.
        scan: only what was scanned and has nothing critical is promoted, which the pipeline leaves to this.
        weekly: the cloud has no schedule of its own: builds are begun here.
    """

    stack: str
    pipelines: tuple[str, ...]
    parameter: str
    scan: bool
    weekly: bool


@dataclass(frozen=True)
class Report:
    """What one look came to.

    Attributes:
        problem: what operators must know; empty where all is well.
        action: what was done about it; empty for nothing.
    """

    problem: str = ""
    action: str = ""


class Pipelines(Protocol):
    """The stack's pipelines on its cloud; every method raises ``CloudError`` where it gives no answer."""

    def declared(self) -> datetime:
        """Since when there is a pipeline."""

    def history(self) -> Sequence[PipelineBuild]:
        """The builds of all pipelines, the newest first."""

    def failure(self, build: PipelineBuild) -> BuildFailure:
        """Why a build failed."""

    def start(self, place: int, after: str) -> str:
        """Begin a build and give its id; asked again after the same, it is the same build."""

    def promoted(self) -> Promoted:
        """The image that instances boot."""

    def promote(self, image_id: str) -> None:
        """Let instances boot an image."""

    def unfit(self, build: PipelineBuild) -> str:
        """Why a build's scan forbids it to be promoted; empty where it ended and found nothing critical."""


def look_after(builds: Pipelines, plan: BuildsPlan, zone: ZoneInfo, now: datetime) -> Report:
    """Look once, and do what is to be done.

    Args:
        zone: of the stack, for the hour of the week.
    """
    history = builds.history()
    newest = history[0] if history else None
    due = last_due(now, zone)
    late = newest is None or newest.began < due
    running = newest is not None and newest.state is BuildStage.RUNNING
    if plan.weekly and late and not running and now < due + STARTS_WITHIN:
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
    """When the latest build of the week was to begin: Sunday morning, by the stack's clock. Pure."""
    local = now.astimezone(zone)
    day = local.date() - timedelta(days=(local.weekday() - WEEKDAY) % 7)
    due = datetime.combine(day, HOUR, zone)
    return due if due <= local else datetime.combine(day - timedelta(days=7), HOUR, zone)


def _failed(
    builds: Pipelines, plan: BuildsPlan, history: Sequence[PipelineBuild], zone: ZoneInfo, now: datetime
) -> Report:
    """Without room it is tried in the next zone for hours; what failed while building, once more."""
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
    return Report(action=f"{said}; began build {builds.start(place, newest.id)} in its stead")


def round_of(history: Sequence[PipelineBuild], plan: BuildsPlan, zone: ZoneInfo) -> Sequence[PipelineBuild]:
    """The newest build and those that it was tried after, back to the week's own one. Pure."""
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
    """Whether it is Sunday's own; without a schedule the first of that hour, after which others are tried."""
    if not plan.weekly:
        return build.scheduled
    due = last_due(build.began, zone)
    follows = any(due <= other.began < build.began for other in history)
    return build.began - due < STARTS_WITHIN and not follows


def _judged(builds: Pipelines, plan: BuildsPlan, build: PipelineBuild) -> Report:
    """Promote a build whose scan is clean, once: whoever wrote another image since it began meant it."""
    if not plan.scan:
        return Report()
    promoted = builds.promoted()
    if promoted.image_id == build.image_id or (promoted.since and promoted.since > build.began):
        return Report()
    if unfit := builds.unfit(build):
        return Report(problem=f"{build.image_id}: {unfit}; {promoted.image_id or 'nothing'} stays promoted")
    builds.promote(build.image_id)
    return Report(action=f"promoted {build.image_id} in the place of {promoted.image_id or 'nothing'}")


def token(pipeline: str, after: str) -> str:
    """By which the cloud knows that a build was begun already, by whomever: ``gpu-fleet image build`` too."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{pipeline} after {after}"))


def load(file: Path) -> BuildsPlan:
    """The plan that the stack wrote.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return BuildsPlan(**content | {"pipelines": tuple(content["pipelines"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigurationError(f"{file}: no plan of builds: {error}") from error


def log(report: Report) -> dict[str, str]:
    """One JSON object a line, as the sweep's log; gives the whole."""
    content = asdict(report)
    for event, text in content.items():
        if text:
            sys.stdout.write(json.dumps({"event": event, "text": text}) + "\n")
    return content

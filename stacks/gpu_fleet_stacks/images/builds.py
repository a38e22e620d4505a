"""Protocol of image builds, and the loop that follows a build to its end; each cloud has a module."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from gpu_fleet_stacks.core.errors import StacksError

POLL_S = 20
# How long builds without a test instance are retried, and the pause before a retry.
PATIENCE, RETRY_S = timedelta(hours=6), 300
# docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html: no capacity, or not sold in the zone
NO_ROOM = re.compile(
    r"Insufficient\w*Capacity|(?i:insufficient capacity)|not supported in your requested|NoStock"
)


class NoRoomError(StacksError):
    """A build failed only because no test instance was available."""


class BuildState(StrEnum):
    """State of a build."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Build:
    """One run of a stack's pipeline.

    Attributes:
        id: the cloud's id.
        phase: the cloud's name of its current phase, say ``testing``.
        image_id: the image that it made; empty until then.
        created: when it began, as the cloud writes it.
        reason: why it failed; empty otherwise.
    """

    id: str
    state: BuildState
    phase: str
    image_id: str = ""
    created: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Findings:
    """A scanner's findings in a build's packages.

    Attributes:
        status: the cloud's name of the scan's state.
        counts: severity -> number of findings, the worst first; empty where the scan has not ended.
        critical: the critical findings, a line each: the vulnerability and its packages.
    """

    status: str
    counts: Mapping[str, int] = field(default_factory=dict)
    critical: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Return whether the scan has ended and found nothing critical: an unfinished scan is not clean."""
        return bool(self.counts) and not self.counts["critical"]

    @property
    def sentence(self) -> str:
        """The findings as a sentence for reports."""
        if not self.counts:
            return f"its scan is {self.status}: no findings are known"
        return ", ".join(f"{count} {severity}" for severity, count in self.counts.items())


class Builds(Protocol):
    """A stack's pipeline on its cloud; ``CannotCheckError`` wherever the cloud does not answer."""

    def check(self) -> None:
        """Raise ``StacksError`` where the pipeline would build another recipe than the checkout's."""

    def history(self) -> list[Build]:
        """Return the builds of the current recipe, the newest first."""

    def made(self) -> list[Build]:
        """Return every build of the stack whose image exists, of any recipe, the newest first."""

    def start(self, after: Build | None = None) -> Build:
        """Start a build; after a build that found no capacity, in the next zone if there is one.

        Another caller that starts one after the same build, such as the build controller, gets the same
        build.
        """

    def look(self, build: Build) -> Build:
        """Return the build with its current state."""

    def promoted(self) -> str:
        """Return the image that instances boot from now on; empty before there is one."""

    def promote(self, image_id: str) -> None:
        """Let instances boot an image from now on, as far as the cloud can."""

    def findings(self, build: Build) -> Findings:
        """Return a scanner's findings in a build; ``StacksError`` where no scanner reads it."""

    def left(self, image_id: str) -> str:
        """Return what an operator must still do until instances boot an image, as a sentence, or nothing."""


def follow(
    builds: Builds,
    build: Build,
    report: Callable[[str], None],
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
) -> Build:
    """Wait until a build has ended; report each phase with the time as it begins.

    Raises:
        NoRoomError: no test instance was available.
        StacksError: the build failed, with its reason.
    """
    phase = ""
    while build.state is BuildState.RUNNING:
        if build.phase != phase:
            phase = build.phase
            report(f"{now():%H:%M} {phase}")
        sleep(POLL_S)
        build = builds.look(build)
    if build.state is BuildState.FAILED:
        kind = NoRoomError if NO_ROOM.search(build.reason) else StacksError
        raise kind(f"build {build.id} failed: {build.reason or build.phase}")
    return build


def follow_until_tried(
    builds: Builds,
    build: Build,
    report: Callable[[str], None],
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
) -> Build:
    """Follow a build; where no test instance was available, build again in the next zone, for six hours.

    Raises StacksError if it failed for another reason, or no instance was available in all that time.
    """
    until = now() + PATIENCE
    while True:
        try:
            return follow(builds, build, report, now, sleep)
        except NoRoomError as error:
            if now() >= until:
                hours = PATIENCE // timedelta(hours=1)
                raise StacksError(
                    f"no instance to test on in {hours} hours, nothing is promoted: {error}"
                ) from error
            report(f"{now():%H:%M} no room: {error}")
            sleep(RETRY_S)
            build = _next(builds, build, report, now)


def _next(builds: Builds, build: Build, report: Callable[[str], None], now: Callable[[], datetime]) -> Build:
    """Return the build that the build controller has started meanwhile, or else start another one."""
    newest = next(iter(builds.history()), None)
    if newest is not None and newest.id != build.id and newest.state is BuildState.RUNNING:
        report(f"{now():%H:%M} follows build {newest.id}")
        return newest
    begun = builds.start(build)
    report(f"{now():%H:%M} started build {begun.id}")
    return begun


def still_to_do(stack: str, source: str) -> str:
    """Say what to write into a stack file that names another image. Pure."""
    setting = f"{source}, mode: baked, bundled: true"
    rest = "keep base_id and the rest; name either id or parameter"
    said = f"instances boot it once the stack file says below image: {setting} ({rest})"
    return f"{said} and `gpu-fleet up {stack}` has run"


def before(history: Sequence[Build], image_id: str) -> Build:
    """Return the build whose image instances booted before the promoted one. Pure.

    Args:
        history: every build that made an image, the newest first.

    Raises StacksError if no build made that image, or there is none before it.
    """
    done = [build for build in history if build.state is BuildState.DONE and build.image_id]
    images = [build.image_id for build in done]
    if image_id not in images:
        raise StacksError(
            f"{image_id or 'no image'} is promoted, which is none of the pipeline's builds: {images}"
        )
    older = done[images.index(image_id) + 1 :]
    if not older:
        raise StacksError(f"{image_id} is promoted, and the pipeline has no build before it")
    return older[0]

"""What a build of an image is, and how one is followed to its end; the clouds' modules ask for it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from stacks.errors import StacksError

POLL_S = 20
# How long a canary is tried for, and how long until the next try: a build takes longer than this anyway.
PATIENCE, RETRY_S = timedelta(hours=6), 300
# docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html: none left, or none sold in the zone
NO_ROOM = re.compile(
    r"Insufficient\w*Capacity|(?i:insufficient capacity)|not supported in your requested|NoStock"
)


class NoRoomError(StacksError):
    """A build failed only because no instance for its test was to be had."""


class BuildState(StrEnum):
    """How far a build is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class Build:
    """One run of a stack's pipeline.

    Attributes:
        id: the cloud's, to ask for it again.
        state: how far it is.
        phase: what it does at the moment, in the cloud's word, say ``testing``.
        image_id: what it made; empty until then.
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
    """What a scanner knows of a build's packages.

    Attributes:
        status: how far the scan is, in the cloud's word.
        counts: severity -> how many, the worst first; empty where the scan has not ended.
        critical: the worst, a line each: the vulnerability and the packages that have it.
    """

    status: str
    counts: Mapping[str, int] = field(default_factory=dict)
    critical: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether the scan has ended and found nothing critical: what is not known is not clean."""
        return bool(self.counts) and not self.counts["critical"]

    @property
    def sentence(self) -> str:
        """For reports."""
        if not self.counts:
            return f"its scan is {self.status}: no findings are known"
        return ", ".join(f"{count} {severity}" for severity, count in self.counts.items())


class Builds(Protocol):
    """A stack's pipeline on its cloud; ``CannotCheckError`` wherever the cloud gives no answer."""

    def check(self) -> None:
        """Raise ``StacksError`` where the pipeline would build another recipe than the checkout's."""

    def history(self) -> list[Build]:
        """The builds of its present recipe, the newest first."""

    def made(self) -> list[Build]:
        """Every build of the stack whose image is there, of whatever recipe, the newest first."""

    def start(self, after: Build | None = None) -> Build:
        """Begin one; after one that found no room in the next zone, where there is one.

        Whoever else begins one after the same build, the stack's keeper say, begins the same one.
        """

    def look(self, build: Build) -> Build:
        """The same build, as it is now."""

    def promoted(self) -> str:
        """The image that instances boot from now on; empty before there is one."""

    def promote(self, image_id: str) -> None:
        """Let instances boot an image from now on, as far as the cloud can."""

    def findings(self, build: Build) -> Findings:
        """What a scanner knows of a build; ``StacksError`` where none looks."""

    def left(self, image_id: str) -> str:
        """What an operator has still to do until instances boot an image, a sentence, or nothing."""


def follow(
    builds: Builds,
    build: Build,
    report: Callable[[str], None],
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
) -> Build:
    """Wait until a build has ended; each phase is reported with the time as it begins.

    Raises:
        NoRoomError: no instance was to be had.
        StacksError: it failed, with its reason.
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
    """As ``follow``; where there was no instance to test on, build again in the next zone, for six hours.

    Raises:
        StacksError: it failed for another reason, or there was no instance in all that time.
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
    """The build that the stack's keeper has begun meanwhile, else another one."""
    newest = next(iter(builds.history()), None)
    if newest is not None and newest.id != build.id and newest.state is BuildState.RUNNING:
        report(f"{now():%H:%M} follows build {newest.id}")
        return newest
    begun = builds.start(build)
    report(f"{now():%H:%M} started build {begun.id}")
    return begun


def still_to_do(stack: str, source: str) -> str:
    """What lets instances boot a built image where their stack names another. Pure.

    Args:
        source: the setting that names the image, as YAML.
    """
    setting = f"{source}, mode: baked, bundled: true"
    rest = "base_id and the rest stay; of id and parameter one goes"
    said = f"instances boot it once the stack file says below image: {setting} ({rest})"
    return f"{said} and `gpu-fleet up {stack}` has run"


def before(history: Sequence[Build], image_id: str) -> Build:
    """The build whose image instances booted before the one that is promoted. Pure.

    Args:
        history: every build that made an image, the newest first.

    Raises:
        StacksError: no build made that image, or there is none before it.
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

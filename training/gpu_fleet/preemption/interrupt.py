"""Reasons to stop a run: a signal, a notice of the cloud, the stop file. A thread polls for them."""

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any, Self

from gpu_fleet.core import exit_codes, instance_file
from gpu_fleet.core.metadata import OK, SERVICES, MetadataClient

log = logging.getLogger(__name__)

POLL_S = 1.0  # between two polls of the sources
SAME_SIGNAL_S = 1.0  # torchrun and the terminal may both deliver one key press


class Reason(IntEnum):
    """Reasons, by urgency: the ranks agree on the largest; 0 means that the run goes on."""

    NONE = 0
    SAVE = 1  # no stop: a checkpoint is due by time
    STOP_FILE = 2
    REBALANCE = 3
    SPOT_NOTICE = 4
    SIGINT = 5
    SIGTERM = 6

    @property
    def label(self) -> str:
        """The name in result.json, such as "spot-notice"."""
        return self.name.lower().replace("_", "-")


Notice = tuple[Reason, str]  # the reason and, for users, its detail
Source = Callable[[], Notice | None]


class Interruption:
    """A context around the run that holds the first reason to stop that this process has seen.

    A second SIGTERM, a scheduler's at its time limit, has no effect. A second Ctrl-C ends the process.
    """

    def __init__(
        self, sources: list[Source], poll_s: float = POLL_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sources, self._poll_s, self._clock = sources, poll_s, clock
        self._notice: Notice = (Reason.NONE, "")
        self._signalled_at: float | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="interruption", daemon=True)

    @property
    def reason(self) -> Reason:
        return self._notice[0]

    @property
    def detail(self) -> str:
        return self._notice[1]

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        if self._sources:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now = self._clock()
        again = self._signalled_at is not None and now - self._signalled_at >= SAME_SIGNAL_S
        if again and number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)  # a user who presses the key again does not want to wait
            os.kill(os.getpid(), number)
            return
        if self._signalled_at is None:
            self._signalled_at = now
            self._note((Reason[signal.Signals(number).name], f"signal {signal.Signals(number).name}"))

    def _watch(self) -> None:
        while not self._closed.is_set():
            self.poll()
            self._closed.wait(self._poll_s)

    def poll(self) -> None:
        for source in self._sources:
            notice = source()
            if notice is not None:
                self._note(notice)

    def _note(self, notice: Notice) -> None:
        if self._notice[0] is Reason.NONE:
            self._notice = notice
            log.warning("event=interruption reason=%s detail=%r", notice[0].label, notice[1])


@contextmanager
def nothing_to_save() -> Iterator[None]:
    """End the process with 85 at SIGTERM, for the time before a run has its own handler."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(exit_codes.STOPPED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def sources(*, rebalance: bool = False) -> list[Source]:
    """Return the sources of this instance: the stop file, and the metadata service if there is one."""
    asked: list[Source] = [lambda: stop_file(instance_file.run_directory() / "stop")]
    cloud = instance_file.table().get("cloud")
    named = [name for name, service in SERVICES.items() if service.variable in os.environ]
    clouds = [cloud] if cloud else named  # users of an instance have the variables of both
    if "aws" in clouds:
        asked.append(AwsNotice(rebalance=rebalance))
    if "alicloud" in clouds:
        asked.append(AlicloudNotice())
    return asked


def stop_file(path: Path) -> Notice | None:
    try:
        return Reason.STOP_FILE, path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        return Reason.STOP_FILE, f"{path} is there but cannot be read: {error.strerror}"


class AwsNotice:
    """Spot interruption notices and, with `rebalance`, rebalance recommendations, read by IMDSv2.

    A recommendation stays for the life of the instance. One that is older than the run does not stop it.
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
    """

    def __init__(self, base_url: str = "", *, rebalance: bool = False) -> None:
        self._metadata = MetadataClient("aws", base_url)
        self._rebalance = rebalance
        self._standing: str | None = None  # the recommendation at the first poll; empty: there was none

    def __call__(self) -> Notice | None:
        action = _answer_of(self._metadata, "spot/instance-action")
        if action is not None:
            return Reason.SPOT_NOTICE, f"spot {_field(action, 'action')} at {_field(action, 'time')}"
        return self._recommendation() if self._rebalance else None

    def _recommendation(self) -> Notice | None:
        advice = _answer_of(self._metadata, "events/recommendations/rebalance") or ""
        if self._standing is None:
            self._standing = advice
        if advice in ("", self._standing):
            return None
        return Reason.REBALANCE, f"rebalance recommended at {_field(advice, 'noticeTime')}"


def _answer_of(metadata: MetadataClient, path: str) -> str | None:
    status, text = metadata.ask(path)
    return text if status == OK else None


def _field(text: str, name: str) -> str:
    """Return one field of a JSON notice for users, or the whole text: an unexpected format still counts."""
    try:
        return str(json.loads(text)[name])
    except (ValueError, KeyError, TypeError):
        return repr(text)


class AlicloudNotice:
    """Notice of the release of a preemptible instance, five minutes ahead.

    https://www.alibabacloud.com/help/en/ecs/user-guide/query-the-interruption-events-of-preemptible-instances
    """

    def __init__(self, base_url: str = "") -> None:
        self._metadata = MetadataClient("alicloud", base_url)

    def __call__(self) -> Notice | None:
        text = _answer_of(self._metadata, "instance/spot/termination-time")
        return None if text is None else (Reason.SPOT_NOTICE, f"spot release at {text}")

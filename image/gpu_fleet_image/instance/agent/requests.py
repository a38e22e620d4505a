"""Users' requests to the agent of their instance, and its answers: one JSON object each way."""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.core import paths
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.holds import Caller, KeepTarget, Output, wish
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.times import format_span, format_time, parse_duration
from gpu_fleet_image.instance.agent import activity_file
from gpu_fleet_image.instance.agent.listening import Target
from gpu_fleet_image.instance.agent.notices import Notices
from gpu_fleet_image.instance.agent.user_socket import LONGEST_REQUEST

BUSY = "the agent of this instance is busy with other requests; try again in a few seconds"
_WAIT_FOR_OTHERS_S = 60.0
ROOT = "root"
MOST_NAMED = 64  # accounts whose malformed requests are logged

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class UserRequest:
    """Request of a user.

    Attributes:
        command: one of ``COMMANDS``.
        duration: of a hold, say ``2d``.
        instance: the instance of the request; empty for this one.
    """

    command: str
    duration: str = ""
    reason: str = ""
    instance: str = ""

    @classmethod
    def of(cls, line: bytes) -> "UserRequest":
        """Parse a request.

        Raises:
            ConfigurationError: it is malformed; the message gives the reason.
        """
        if len(line) > LONGEST_REQUEST:
            raise ConfigurationError(f"request of more than {LONGEST_REQUEST} bytes")
        try:
            content = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError("request: no JSON") from error
        known = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or not known >= content.keys() >= {"command"}:
            raise ConfigurationError(f"request: allowed: an object of {', '.join(sorted(known))}")
        if not all(isinstance(value, str) for value in content.values()):
            raise ConfigurationError("request: allowed: texts")
        if content["command"] not in COMMANDS:
            raise ConfigurationError(
                f"request: command {content['command']!r}; allowed: {', '.join(COMMANDS)}"
            )
        return cls(**content)


def line(output: Output | None = None, error: str = "") -> bytes:
    """Return an answer as it is sent."""
    return json.dumps({**asdict(output or Output(())), "error": error}).encode() + b"\n"


class Requests:
    """Handler of users' requests.

    Args:
        hold: returns what sets and removes holds; raises ``InstanceError`` if the instance may not.
        notices: the cloud's notices; None without a source.
        rule: returns when the pool marks an instance, in one line; empty while that is unknown.
    """

    def __init__(
        self,
        target: Target,
        hold: Callable[[], KeepTarget],
        notices: Notices | None,
        rule: Callable[[], str],
    ) -> None:
        self._target = target
        self._hold = hold
        self._notices = notices
        self._rule = rule
        self._alone = threading.Lock()  # one hold after another, to limit the agent's calls to its cloud
        self._named: set[str] = set()

    def answer(self, request: bytes, account: str) -> bytes:
        """Return the line for one request of an account. Raises nothing."""
        try:
            asked = UserRequest.of(request)
        except ConfigurationError as error:
            if account not in self._named and len(self._named) < MOST_NAMED:
                self._named.add(account)
                LOG.warning("event=malformed-request account=%s reason=%r", account, str(error))
            return line(error=str(error))
        try:
            return line(self._done(asked, account))
        except InstanceError as error:
            return line(error=str(error))
        except Exception as error:  # the agent must survive for the next request
            LOG.exception("event=request-failed account=%s command=%s", account, asked.command)
            return line(
                error=f"a defect of gpu-fleet: {type(error).__name__}; journalctl -u gpu-reaper shows where"
            )

    def _done(self, asked: UserRequest, account: str) -> Output:
        own = self._target.instance_id
        if asked.instance not in ("", own):
            other = "ID" if asked.command == "explain" else "... --instance ID"
            raise ConfigurationError(
                f"{asked.instance!r} is not this instance, {own}: from here you cannot change others; on a "
                f"laptop: gpu-fleet {asked.command} {other} --stack {self._target.instance.stack}"
            )
        return COMMANDS[asked.command](self, asked, account)

    def keep(self, asked: UserRequest, account: str) -> Output:
        """Set a hold; errors as for ``KeepTarget.keep``."""
        wanted = wish(parse_duration(asked.duration), asked.reason, datetime.now(UTC))
        output = self._one_at_a_time(lambda target: target.keep(wanted, caller_of(account)))
        LOG.info(
            "event=kept account=%s until=%s reason=%r", account, format_time(wanted.until), wanted.reason
        )
        return output

    def release(self, _: UserRequest, account: str) -> Output:
        """Remove the hold; errors as for ``KeepTarget.release``."""
        output = self._one_at_a_time(lambda target: target.release(caller_of(account)))
        LOG.info("event=released account=%s", account)
        return output

    def _one_at_a_time(self, act: Callable[[KeepTarget], Output]) -> Output:
        if not self._alone.acquire(timeout=_WAIT_FOR_OTHERS_S):
            raise CloudError(BUSY)
        try:
            return act(self._hold())
        finally:
            self._alone.release()

    def status(self, _: UserRequest, __: str) -> Output:
        """Return the agent's last judgement, mark and hold."""
        more = f"of all instances: on a laptop, gpu-fleet status --stack {self._target.instance.stack}"
        return Output((*aligned([*self._seen(), *self._said()]), more))

    def explain(self, _: UserRequest, __: str) -> Output:
        """Return the same, and the pool's rule for marks."""
        instance, own = self._target.instance, self._target.instance_id
        rule = self._rule() or f"pool {instance.pool}: its times are not known here yet"
        more = f"gpu-fleet explain {own} --stack {instance.stack}"
        return Output(
            (
                *aligned([*self._seen(), *self._said()]),
                rule,
                f"what a sweep would do, and the heartbeats that it reads: on a laptop, {more}",
            )
        )

    def _seen(self) -> Iterator[tuple[str, str]]:
        content = activity_file.read(paths.activity_file())
        if content is None:
            raise ConfigurationError(
                f"{paths.activity_file()}: not there or damaged; an agent that has just started judges its "
                "first minute"
            )
        return _here_lines(content)

    def _said(self) -> Iterator[tuple[str, str]]:
        """Yield the cloud's mark and hold, as (name, text)."""
        if self._notices is None:
            return
        try:
            mark, hold = self._notices.mark(), self._notices.hold()
        except CloudError as error:
            yield "mark and hold", f"unknown: {error}"
            return
        if mark is not None:
            yield "marked", f"due after {format_time(mark)}, unless it is used or kept"
        if hold:
            yield "kept until", hold


COMMANDS: Mapping[str, Callable[[Requests, UserRequest, str], Output]] = {
    "keep": Requests.keep,
    "release": Requests.release,
    "status": Requests.status,
    "explain": Requests.explain,
}


def caller_of(account: str) -> Caller:
    """Return an account of this instance as a caller; root here is an operator."""
    return Caller(account, is_root=account == ROOT)


def aligned(pairs: list[tuple[str, str]]) -> Iterator[str]:
    """Yield names and texts in two columns."""
    width = max((len(name) for name, _ in pairs), default=0)
    return (f"{name:<{width}}  {text}" for name, text in pairs)


def _here_lines(content: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the agent's judgement as (name, text)."""
    yield "instance", str(content.get("instance_id"))
    yield "state", str(content.get("state"))
    seconds = content.get("seconds_since_activity")
    yield "idle", format_span(timedelta(seconds=seconds)) if isinstance(seconds, int | float) else "unknown"
    yield "as of", str(content.get("at"))
    for key in ("reasons", "unknown", "suspect_hung"):
        for reason in content.get(key) or ():
            yield key.replace("_", " "), reason if isinstance(reason, str) else json.dumps(reason)

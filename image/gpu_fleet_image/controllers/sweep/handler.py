"""The sweep as a Lambda function: ``gpu_fleet_image.controllers.sweep.handler.handle``."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.controllers.meter.budget_check import SweptFleet, settle
from gpu_fleet_image.controllers.sweep.results import Result
from gpu_fleet_image.controllers.sweep.sweep import SweepOptions, sweep
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.calls import Failure
from gpu_fleet_image.core.cloud import SweepCloud, connect, policy_file
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, DeadlineError, nearest

# The scheduler's event is ``{}``; a user may ask for more.
_FLAGS = ("dry_run", "override_breaker")
# Left at the end, to finish what was begun and to report.
RESERVE = timedelta(seconds=15)


def handle(event: object, context: Any) -> dict[str, Any]:
    """Sweep once.

    Args:
        event: ``{}``, or with the flags ``dry_run`` and ``override_breaker``.

    Returns:
        The counts of the sweep; each instance's verdict is in the log, one event a line.

    Raises:
        ReaperError: nothing could be done at all; Lambda counts it as an error, which is an alarm.
    """
    remaining = timedelta(milliseconds=context.get_remaining_time_in_millis())
    return run(event, datetime.now(UTC) + remaining, f"lambda {context.aws_request_id}")


def run(event: object, ends_at: datetime, holder: str, as_of: datetime | None = None) -> dict[str, Any]:
    """Sweep once, on either cloud; returns and raises as ``handle``.

    Args:
        event: ``{}``, or with flags.
        ends_at: when the function is cut off.
        holder: a name for this sweep that no other has.
        as_of: the time of a rehearsal, whose cloud has another clock. No event and no flag leads here.
    """
    flags = _flags(event)
    policy = policies.load(policy_file())
    deadline = ends_at - RESERVE
    options = SweepOptions(
        clock=lambda: as_of or datetime.now(UTC),
        holder=holder,
        check_clock=as_of is None,
        dry_run=policy.dry_run or flags["dry_run"],
        override_breaker=flags["override_breaker"],
    )
    cloud = connect(policy, options.clock, deadline=deadline)
    result = sweep(cloud, policy, options)
    concluded = conclude(cloud, policy, result)
    _log_result(concluded)
    return {key: value for key, value in concluded.to_json().items() if key not in ("verdicts", "leftovers")}


def conclude(cloud: SweepCloud, policy: Policy, result: Result) -> Result:
    """Run the meter after a sweep, and publish the metrics of both.

    A failure of either is reported as a failure of the sweep.
    """
    swept = SweptFleet(result.now, result.fleet, [ended.decision.instance.id for ended in result.done.ended])
    spending, failures = settle(cloud, policy, swept, act=not result.dry_run)
    result.done.failures += failures
    result = replace(result, spending=spending)
    try:
        cloud.heartbeats.publish([*result.metrics(), *(spending.figures() if spending else ())])
    except (CloudError, DeadlineError) as error:
        result.done.failures.append(Failure("*", "publish metrics", str(error)))
    return replace(result, read_calls=cloud.calls.reads, write_calls=cloud.calls.writes)


def _log_result(result: Result) -> None:
    """Log one JSON object a line: each verdict, each failure, then the whole result."""
    report = result.to_json()
    for verdict in report.pop("verdicts"):
        _log("verdict", verdict)
    for failure in report["failed"]:
        _log("failure", failure)
    _log("sweep", report | {"acted": len(report["acted"])})


def _log(event: str, content: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps({"event": event, **content}) + "\n")


def _flags(event: object) -> dict[str, bool]:
    """Return the flags of an event. Raises ConfigurationError, which names what is wrong with the event."""
    if not isinstance(event, dict):
        raise ConfigurationError(f"event = {event!r}; allowed: an object")
    for key, value in event.items():
        if key not in _FLAGS:
            raise ConfigurationError(
                f"event: {key!r} is unknown; allowed: {', '.join(_FLAGS)}{nearest(str(key), _FLAGS)}"
            )
        if not isinstance(value, bool):
            raise ConfigurationError(f"event: {key} = {value!r}; allowed: true or false")
    return {flag: bool(event.get(flag, False)) for flag in _FLAGS}

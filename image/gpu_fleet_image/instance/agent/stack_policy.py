"""The stack's settings of this pool's sensors, read again from its policy while the agent runs."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpu_fleet_image.core import keys, policy
from gpu_fleet_image.core.document import read
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import marking_rule
from gpu_fleet_image.instance.agent.idle_detection import Limits
from gpu_fleet_image.instance.agent.sensors.busy_command import BusyCommand
from gpu_fleet_image.instance.agent.sensors.poll import SensorOptions

READ_EVERY_S = 600.0
TRY_AGAIN_AFTER_S = 60.0
_KIB = 1024

LOG = logging.getLogger(__name__)


class StackPolicy:
    """Newest settings of the stack.

    Until the first read the thresholds of activity are unknown, so that the instance is not known to be idle.
    After that the last read counts.

    Args:
        read: returns the policy's JSON object, or None if there is none; raises ``CloudError``.
        real_s: returns real seconds, monotonic.

    Attributes:
        rule: when the pool marks an instance, for its users; empty until the first read.
    """

    def __init__(
        self, read: Callable[[], dict[str, Any] | None], pool: str, real_s: Callable[[], float]
    ) -> None:
        self._read = read
        self._pool = pool
        self._real_s = real_s
        self._next_s = real_s()
        self._sensors: policy.SensorPolicy | None = None
        self._problem = ""
        self.rule = ""

    def asked(self) -> SensorOptions:
        """Return the pool's programs and command."""
        newest = self._newest()
        if newest is None:
            return SensorOptions(problem=f"policy of the stack: {self._problem}")
        command = BusyCommand(newest.command, newest.command_timeout_s) if newest.command else None
        return SensorOptions(frozenset(newest.watch), command)

    def limits(self) -> Limits:
        """Return the thresholds of activity."""
        newest = self._newest() or policy.SensorPolicy()
        return replace(
            Limits(),
            cpu_cores=newest.cpu_cores,
            disk_bytes_per_s=newest.disk_kib_per_s * _KIB,
            network_bytes_per_s=newest.network_kib_per_s * _KIB,
        )

    def _newest(self) -> policy.SensorPolicy | None:
        if self._real_s() >= self._next_s:
            self._refresh()
        return self._sensors

    def _refresh(self) -> None:
        try:
            document = self._read()
            newest = sensors_in(document, self._pool)
        except CloudError as error:
            self._next_s = self._real_s() + TRY_AGAIN_AFTER_S
            if str(error) != self._problem:
                LOG.warning("event=policy-not-read reason=%r", str(error))
            self._problem = str(error)
            return
        self._next_s, self._problem = self._real_s() + READ_EVERY_S, ""
        if newest != self._sensors:
            LOG.info("event=policy sensors=%s", newest)
        self._sensors = newest
        self.rule = _rule_in(document or {}, self._pool)


def sensors_in(document: dict[str, Any] | None, pool: str) -> policy.SensorPolicy:
    """Return the sensors' settings of a pool in a policy, whose other parts may be newer than this agent.

    Raises CloudError if there is no policy, none of this pool, or its ``sensors`` are wrong.
    """
    pools = (document or {}).get("pools")
    if not isinstance(pools, dict) or not isinstance(pools.get(pool), dict):
        raise CloudError(f"{keys.POLICY} has no pool {pool!r}" if document else f"{keys.POLICY} is not there")
    problems: list[str] = []
    sensors = read(policy.SensorPolicy, pools[pool].get("sensors"), f"pools.{pool}.sensors", problems)
    if sensors is None:
        raise CloudError("; ".join(problems))
    return sensors


def _rule_in(document: dict[str, Any], pool: str) -> str:
    """Return when a policy marks an instance of a pool, in one line; empty for another form of policy."""
    own = document["pools"][pool]
    try:
        idle_after = timedelta(hours=float(own["idle_after_hours"]))
        return marking_rule(pool, idle_after, own["coverage_percent"], own["action"], own["grace_minutes"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return ""

"""Wall time of a run by account, over all its tries, and the productive part of it (ETTR).

The ratio is productive time over the wall time of the job, waits between tries included: Kokolis et al.,
"Revisiting Reliability in Large-Scale Machine Learning Research Clusters", 2024,
https://arxiv.org/abs/2410.21680. Lost are steps that a later try does again, and the time between tries. That
has a price only from the boot of the next instance (of rank 0) on: nothing is known of the last one.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_fleet.core.processes import process_of
from gpu_fleet.metrics.records import Record

KIND = "time"
START, PRODUCTIVE, STALL, WAITING = "start_s", "productive_s", "stall_s", "waiting_s"
BOOKED = (START, PRODUCTIVE, STALL, WAITING)
WRITE_EVERY_S = 10.0
SECONDS_PER_HOUR = 3600.0


def process_started_at_s() -> float:
    """Return the start of this process, in seconds of the epoch; the import of torch comes after it."""
    this, booted_at_s = process_of(os.getpid()), instance_booted_at_s()
    if this is None or not booted_at_s:
        return time.time()
    return booted_at_s + int(this.begun) / os.sysconf("SC_CLK_TCK")


def instance_booted_at_s() -> float:
    """Return the boot time of this instance in seconds of the epoch; 0 if unknown: all time has a price."""
    try:
        return time.time() - float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True)
class HourPrice:
    amount: float
    currency: str


@dataclass
class Book:
    """Seconds of one try. Each second belongs to one account; the first account is the start."""

    started_at_s: float = field(default_factory=process_started_at_s)
    # before that, this instance cost nothing
    booted_at_s: float = field(default_factory=instance_booted_at_s)
    clock: Callable[[], float] = time.time
    price: HourPrice | None = None  # an hour of all instances of the run, if the stack has a price
    resumed_from_step: int = 0
    _account: str = START
    _seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BOOKED, 0.0))
    _since_s: float = 0.0
    _written_at_s: float = 0.0

    def __post_init__(self) -> None:
        self._since_s = self.started_at_s

    def switch(self, account: str) -> None:
        now_s = self.clock()
        self._seconds[self._account] += now_s - self._since_s
        self._account, self._since_s = account, now_s

    def shift(self, account: str, seconds: float) -> None:
        self._seconds[account] += seconds
        self._seconds[self._account] -= seconds

    def record(self, step: int) -> Record:
        self.switch(self._account)
        self._written_at_s = self._since_s
        began: Record = {"booted_at_s": self.booted_at_s, "started_at_s": self.started_at_s}
        steps: Record = {"kind": KIND, "step": step, "resumed_from_step": self.resumed_from_step}
        record: Record = {**steps, **began, "at_s": self._since_s, **self._seconds}
        if self.price is None:
            return record
        return {**record, "price_per_hour": self.price.amount, "currency": self.price.currency}

    def due(self) -> bool:
        """Return whether a new record is due; a killed try loses the time after its last record."""
        return self.clock() - self._written_at_s >= WRITE_EVERY_S


@dataclass(frozen=True)
class Goodput:
    """The wall time of a run, in seconds."""

    wall_s: float
    start_s: float
    productive_s: float  # without steps that a later try did again
    stall_s: float  # for checkpoints
    waiting_s: float  # for data
    lost_s: float  # steps done again, and time between tries
    unpriced_s: float  # time between tries before the instance of the next one booted
    tries: int
    price: HourPrice | None = None  # the price in the last record

    @property
    def ettr(self) -> float:
        """Productive time over wall time, 0 to 1."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else 0.0

    def price_of_all(self, price_per_hour: float) -> float:
        """Return the cost of the job at this price, without the time before the instance of a try booted."""
        return (self.wall_s - self.unpriced_s) / SECONDS_PER_HOUR * price_per_hour

    def price_lost(self, price_per_hour: float) -> float:
        return self.price_of_all(price_per_hour) - self.productive_s / SECONDS_PER_HOUR * price_per_hour


def goodput(records: Iterable[Mapping[str, Any]]) -> Goodput | None:
    """Return the sums over all tries of a run, from its metrics.jsonl; None without time records."""
    tries: dict[float, list[Mapping[str, Any]]] = {}
    for record in records:
        if record.get("kind") == KIND:
            tries.setdefault(record["started_at_s"], []).append(record)
    ordered = [tries[began] for began in sorted(tries)]
    if not ordered:
        return None
    again_s = sum(_done_again(before, after[0]["resumed_from_step"]) for before, after in pairwise(ordered))
    between = [(before[-1]["at_s"], after[0]) for before, after in pairwise(ordered)]
    between_s = sum(max(0.0, after["started_at_s"] - last_s) for last_s, after in between)
    unpriced_s = sum(
        max(0.0, min(after.get("booted_at_s", 0.0), after["started_at_s"]) - last_s)
        for last_s, after in between
    )
    last = ordered[-1][-1]
    sums = {account: sum(records[-1][account] for records in ordered) for account in BOOKED}
    return Goodput(
        wall_s=last["at_s"] - ordered[0][0]["started_at_s"],
        start_s=sums[START],
        productive_s=sums[PRODUCTIVE] - again_s,
        stall_s=sums[STALL],
        waiting_s=sums[WAITING],
        lost_s=again_s + between_s,
        unpriced_s=unpriced_s,
        tries=len(ordered),
        price=HourPrice(last["price_per_hour"], last["currency"]) if "price_per_hour" in last else None,
    )


def _done_again(tried: Sequence[Mapping[str, Any]], resumed_from_step: int) -> float:
    """Return the productive seconds of a try on steps after the one from which the next try resumed."""
    last = tried[-1]
    if last["step"] <= resumed_from_step:
        return 0.0
    for earlier, later in pairwise(tried):
        if earlier["step"] <= resumed_from_step < later["step"]:
            part = (resumed_from_step - earlier["step"]) / (later["step"] - earlier["step"])
            reached_s = earlier[PRODUCTIVE] + part * (later[PRODUCTIVE] - earlier[PRODUCTIVE])
            return float(last[PRODUCTIVE] - reached_s)
    return float(last[PRODUCTIVE])

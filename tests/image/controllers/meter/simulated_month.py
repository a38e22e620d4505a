"""A month of a fleet by chance: what it costs to the second, and what the meter counts with late sweeps.

Instances are launched and terminated at any second, some stop and start again, spot prices move, two reserved
instances are paid for, and one sweep in eight is missed. The cloud lists a terminated instance for an hour.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise

from gpu_fleet_image.controllers.meter.meter import advance, with_spot_prices
from gpu_fleet_image.controllers.meter.meter_state import Day, MeterReading
from gpu_fleet_image.core import job_use
from gpu_fleet_image.core.budget_policy import BudgetPolicy
from gpu_fleet_image.core.job_use import DayUse, RunningJob, Used
from gpu_fleet_image.core.model import Instance, Inventory
from tests.image.controllers.metered import budget, make_instance, prices

BEGIN, END = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
SWEEP, FORGOTTEN, MOVE = timedelta(minutes=20), timedelta(hours=1), timedelta(hours=6)
SPOT = ("0.31", "0.47", "0.92", "0.64")  # an hour, each for six hours
BUDGET = budget(
    pools={
        "dev": prices(),
        "cheap": prices(),
        "held": prices(on_demand={"p4d.24xlarge": Decimal(32)}, spot={}, reserved=2),
    }
)
SHARED, DISK = BUDGET.shared_per_hour, Decimal("0.10")


@dataclass(frozen=True)
class Life:
    """An instance: the pool, and when it ran; between two runs it was stopped."""

    name: str
    pool: str
    runs: tuple[tuple[datetime, datetime], ...]

    def seen(self, now: datetime) -> Instance | None:
        """Return it as the cloud lists it; None before its launch, and once it is forgotten."""
        begun = [run for run in self.runs if run[0] <= now]
        if not begun or now >= self.runs[-1][1] + FORGOTTEN:
            return None
        launched, ended = begun[-1]
        is_last = begun[-1] is self.runs[-1]
        state = "running" if now < ended else "terminated" if is_last else "stopped"
        kind = "p4d.24xlarge" if self.pool == "held" else "g5.xlarge"
        return make_instance(
            self.name,
            self.pool,
            launched,
            type=kind,
            state=state,
            spot=self.pool == "cheap",
            stopped_at=ended if state != "running" else None,
        )


def spot_price(now: datetime) -> Decimal:
    """Return the market's price of an hour."""
    return Decimal(SPOT[(now - BEGIN) // MOVE % len(SPOT)])


def lives(seed: int, count: int = 60) -> list[Life]:
    """Return the instances of a month."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        begin = BEGIN + timedelta(seconds=chance.randrange(29 * 86_400))
        end = begin + timedelta(seconds=chance.randrange(2 * 3600, 2 * 86_400))
        pool = chance.choice(("dev", "cheap", "held"))
        runs = [(begin, min(end, END))]
        if pool == "dev" and chance.random() < 0.5 and end + timedelta(hours=9) < END:
            again = end + timedelta(seconds=chance.randrange(3600, 4 * 3600))
            runs.append((again, again + timedelta(hours=3)))
        made.append(Life(f"i-{number}", pool, tuple(runs)))
    return made


def jobs(known: list[Life], seed: int) -> dict[str, Used]:
    """Return each day's record of the queue, whose instances are those held; a poll a minute."""
    chance = random.Random(seed + 2)
    days: dict[str, DayUse] = {}
    for life in known:
        for begin, end in life.runs if life.pool == "held" else ():
            now = begin
            while now < end:
                until = min(end, now + timedelta(minutes=chance.randrange(30, 600)))
                names = chance.sample(["eve/gpt", "bob/wrap"], chance.randrange(3))
                while now < until:
                    passed = min(until - now, timedelta(minutes=1))
                    day = job_use.day_of(now)
                    running = [RunningJob(name, (life.name,), 1) for name in names]
                    days[day] = job_use.after(days.get(day, DayUse(day)), running, passed.total_seconds())
                    now += passed
    return {day: use.used for day, use in days.items()}


def exact(known: list[Life]) -> Decimal:
    """Return the cost of the month to the second, without the meter's own code."""
    seconds = Decimal(int((END - BEGIN).total_seconds()))
    total = SHARED * seconds / 3600
    changes = {BEGIN, END}
    for life in known:
        for begin, end in life.runs:
            total += DISK * Decimal(int((end - begin).total_seconds())) / 3600
            total += sum(_price(life.pool, *part) for part in _parts(begin, end))
            if life.pool == "held":
                changes |= {begin, end}
        for (_, stopped), (again, _) in pairwise(life.runs):
            total += DISK * Decimal(int((again - stopped).total_seconds())) / 3600
    moments = sorted(changes)
    for begin, end in pairwise(moments):
        used = sum(
            run[0] <= begin and end <= run[1] for life in known if life.pool == "held" for run in life.runs
        )
        total += 32 * max(0, 2 - used) * Decimal(int((end - begin).total_seconds())) / 3600
    return total


def _parts(begin: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield a span in parts of one spot price."""
    while begin < end:
        stop = min(end, BEGIN + ((begin - BEGIN) // MOVE + 1) * MOVE)
        yield begin, stop
        begin = stop


def _price(pool: str, begin: datetime, end: datetime) -> Decimal:
    hour = {"dev": Decimal(2), "held": Decimal(32)}.get(pool) or spot_price(begin)
    return hour * Decimal(int((end - begin).total_seconds())) / 3600


def metered(known: list[Life], seed: int) -> tuple[MeterReading, list[Day]]:
    """Return the meter a second before the month ends, and the days that it has closed."""
    chance = random.Random(seed + 1)
    reading, closed = advance(None, Inventory(()), BUDGET, "USD", BEGIN)
    now, last = BEGIN + SWEEP, END - timedelta(seconds=1)
    while True:
        if now >= last or chance.random() > 1 / 8:
            reading, days = advance(reading, _fleet(known, now), _budget(now), "USD", min(now, last))
            closed += days
        if now >= last:
            return reading, closed
        now = min(now + SWEEP, last)


def _fleet(known: list[Life], now: datetime) -> Inventory:
    seen = [found for life in known if (found := life.seen(now)) is not None]
    there = tuple(found for found in seen if found.state != "terminated")
    return Inventory(there, gone=tuple(found for found in seen if found.state == "terminated"))


def _budget(now: datetime) -> BudgetPolicy:
    return with_spot_prices(BUDGET, {"g5.xlarge": spot_price(now)})


def error(seed: int) -> float:
    """Return by how much the meter differs from the exact cost, as a share of it."""
    known = lives(seed)
    return float(abs(metered(known, seed)[0].month_cost / exact(known) - 1))

"""A month of the meter beside the cloud's bill: what both have, what one alone has, and the difference. Pure.

An instance is compared by day. On AWS its volumes are lines of their own that name no instance: the meter's
disks are compared by pool and day. All pools share the resources with the stack's tag and no pool's. Taxes,
credits and fees are no use of a resource: they are added up and compared with nothing.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from gpu_fleet_image.console.operators.bill import BillLine
from gpu_fleet_image.controllers.meter.chargeback import CENT
from gpu_fleet_image.controllers.meter.meter import SHARED
from gpu_fleet_image.controllers.meter.meter_state import SECONDS_PER_HOUR, Day
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.policy import Policy

DISKS = "(disks and others)"
EVERYTHING = "(shared)"
COLUMNS = ("day", "pool", "what", "in", "meter", "bill", "difference")
Key = tuple[str, str, str]  # day, pool, instance or one of the two words above


@dataclass(frozen=True)
class Matched:
    """A row of the comparison; an amount is None where its side does not have it."""

    day: str
    pool: str
    what: str
    meter: Decimal | None
    bill: Decimal | None

    @property
    def place(self) -> str:
        """``both``, ``meter`` or ``bill``."""
        return "bill" if self.meter is None else "meter" if self.bill is None else "both"

    @property
    def difference(self) -> Decimal:
        """The bill's amount less the meter's."""
        return (self.bill or Decimal(0)) - (self.meter or Decimal(0))


@dataclass(frozen=True)
class Comparison:
    """A month of the meter beside a bill.

    Attributes:
        others: cost of the account's lines that are not the stack's.
        no_use: cost of taxes, credits and fees.
    """

    rows: Sequence[Matched]
    others: Decimal = Decimal(0)
    no_use: Decimal = Decimal(0)
    currency: str = field(default="", kw_only=True)

    def sentence(self) -> str:
        """Return the comparison in one line."""
        sides = {side: [row for row in self.rows if row.place == side] for side in ("both", "bill", "meter")}
        meter = sum((row.meter or Decimal(0) for row in self.rows), Decimal(0))
        bill = sum((row.bill or Decimal(0) for row in self.rows), Decimal(0))
        share = f" ({(meter - bill) / bill:+.1%})" if bill else ""
        only_bill = sum((row.difference for row in sides["bill"]), Decimal(0))
        only_meter = -sum((row.difference for row in sides["meter"]), Decimal(0))
        count = {side: len(each) for side, each in sides.items()}
        return (
            f"meter {_cents(meter)}, bill {_cents(bill)} {self.currency}{share}; rows: "
            f"{count['both']} in both, {count['bill']} only in the bill ({_cents(only_bill)}), "
            f"{count['meter']} only in the meter ({_cents(only_meter)}); "
            f"not compared: {_cents(self.others)} of other stacks, {_cents(self.no_use)} of taxes and fees"
        )


def compare(days: Iterable[Day], lines: Iterable[BillLine], policy: Policy) -> Comparison:
    """Return the meter's days beside the lines of a bill of the same month."""
    meter = dict(_metered(days, policy))
    pools = {what: pool for _, pool, what in meter if what not in (DISKS, EVERYTHING)}
    bill: dict[Key, Decimal] = defaultdict(Decimal)
    others = no_use = Decimal(0)
    for line in lines:
        if not line.use:
            no_use += line.cost
        elif line.resource not in pools and line.stack != policy.stack:
            others += line.cost
        else:
            bill[_key(line, pools)] += line.cost
    rows = [Matched(*key, meter.get(key), bill.get(key)) for key in sorted({*meter, *bill})]
    return Comparison(rows, others, no_use, currency=policy.currency)


def _key(line: BillLine, pools: Mapping[str, str]) -> Key:
    instance = line.resource in pools or line.resource.startswith("i-")
    pool = pools.get(line.resource, line.pool)
    if instance and pool:
        return line.day, pool, line.resource
    return (line.day, pool, DISKS) if pool else (line.day, SHARED, EVERYTHING)


def _metered(days: Iterable[Day], policy: Policy) -> Iterator[tuple[Key, Decimal]]:
    """Yield the meter's amounts; Alibaba Cloud bills the disks of an instance with it."""
    pools = policy.budget.pools if policy.budget and policy.cloud == "aws" else {}
    for day in days:
        rest: dict[str, Decimal] = defaultdict(Decimal, day.costs)
        for key, share in day.instances.items():
            pool = share.instance.pool
            disks = (
                pools[pool].disk_per_hour * share.seconds / SECONDS_PER_HOUR if pool in pools else Decimal(0)
            )
            alone = share.cost - min(disks, share.cost)
            rest[pool] -= alone
            yield (day.name, pool, key), alone
        for pool, cost in rest.items():
            if cost:
                yield (day.name, pool, EVERYTHING if pool == SHARED else DISKS), cost


def by_pool(rows: Iterable[Matched]) -> list[Matched]:
    """Return a row for each day and pool."""
    sums: dict[tuple[str, str], list[Matched]] = defaultdict(list)
    for row in rows:
        sums[row.day, row.pool].append(row)
    return [
        Matched(
            day,
            pool,
            "",
            _sum(row.meter for row in each),
            _sum(row.bill for row in each),
        )
        for (day, pool), each in sorted(sums.items())
    ]


def _sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None


def as_text(rows: Iterable[Matched], form: str) -> str:
    """Return the rows as ``csv`` or ``json``; amounts in cents, as text."""
    cells = (
        (row.day, row.pool, row.what, row.place, _cents(row.meter), _cents(row.bill), _cents(row.difference))
        for row in rows
    )
    listed = [dict(zip(COLUMNS, row, strict=True)) for row in cells]
    return json.dumps(listed, indent=1) + "\n" if form == "json" else csv_text(COLUMNS, listed)


def _cents(amount: Decimal | None) -> str:
    return "" if amount is None else f"{amount.quantize(CENT)}"

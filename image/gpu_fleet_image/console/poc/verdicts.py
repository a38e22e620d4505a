"""Rows of a result: measured figures, what follows from them, and their verdicts. Pure.

A verdict is ``pass``, ``fail``, ``unknown`` or ``none``, which says that no limit is set. Unknown is never
pass.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

from gpu_fleet_image.console.poc.limits import BETWEEN_NODES, IN_NODE, Limit, Limits
from gpu_fleet_image.console.poc.measured import FROM_ZERO, Measurement
from gpu_fleet_image.core.document import Record

SAMPLES, EFFICIENCY, PER_USD, BUS = "samples_per_s", "efficiency", "samples_per_usd", "bus_bandwidth"
JUDGED_MIB = 1024  # the all-reduce that a limit is about
SECONDS_PER_HOUR = 3600
GB_PER_S = ("read", "write", "get", "put", IN_NODE, BETWEEN_NODES)
UNITS = {"random_read": "IOPS", "random_write": "IOPS"} | dict.fromkeys(GB_PER_S, "GB/s")
TOLERANCE = 1e-9  # of a figure that is exactly at its limit


class RowVerdict(StrEnum):
    """Judgement of one row."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    UNKNOWN = "unknown"
    NONE = "none"


@dataclass(frozen=True)
class ResultRow(Record):
    """One figure with its verdict.

    Attributes:
        least: its limit; None for none.
        source: of the limit.
        reason: why the verdict is unknown, or why there is no figure.
        absent: the instances have none, so there is nothing to judge.
    """

    subject: str
    metric: str
    nodes: int
    ranks: int
    size_mib: int
    value: Annotated[float, FROM_ZERO] | None
    unit: str
    verdict: RowVerdict = RowVerdict.NONE
    least: Annotated[float, FROM_ZERO] | None = None
    source: str = ""
    reason: str = ""
    tool: str = ""
    stands_for: str = ""
    note: str = ""
    absent: bool = False

    @property
    def place(self) -> tuple[str, str, int, int, int]:
        """Key by which rows of two results belong together."""
        return self.stands_for or self.subject, self.metric, self.nodes, self.ranks, self.size_mib

    def to_json(self) -> dict[str, Any]:
        """Return the row as the document has it."""
        return asdict(self)


def judged(
    measurements: Sequence[Measurement], limits: Limits, price: Decimal | None, ranks_per_node: int
) -> list[ResultRow]:
    """Return every row, and an unknown one for each limit about which nothing was measured.

    Args:
        price: of an hour of one instance, USD; None for unknown.
        ranks_per_node: GPUs of an instance; samples per dollar are of whole instances.
    """
    rows: list[ResultRow] = []
    met: set[str] = set()
    for measurement in measurements:
        for row, low in _derived(measurement, measurements, price, ranks_per_node):
            key = _limit_key(row)
            rows.append(_with_verdict(row, key, limits, lower_bound=low))
            met |= {key} if row.absent or rows[-1].least is not None else set()
    unmet = (key for key in limits if key not in met)
    return [*rows, *(_never_measured(key, limits[key], ranks_per_node) for key in unmet)]


def _derived(
    measurement: Measurement, others: Sequence[Measurement], price: Decimal | None, ranks_per_node: int
) -> Iterator[tuple[ResultRow, bool]]:
    """Yield a measured figure, and of samples per second the efficiency and samples per dollar.

    The flag beside each is true for a lower bound.
    """
    row = ResultRow(
        **{
            name: getattr(measurement, name)
            for name in ("subject", "metric", "nodes", "ranks", "size_mib", "value", "unit")
        },
        **{name: getattr(measurement, name) for name in ("tool", "stands_for", "absent")},
        reason=measurement.note if measurement.value is None else "",
        note="" if measurement.value is None else measurement.note,
    )
    yield row, measurement.lower_bound
    if measurement.metric != SAMPLES:
        return
    if measurement.ranks > 1:
        yield _efficiency(row, others), False
    if measurement.ranks == measurement.nodes * ranks_per_node:
        yield _per_usd(row, price), False


def _efficiency(row: ResultRow, others: Sequence[Measurement]) -> ResultRow:
    """Return samples per second over those of one GPU times the number of GPUs."""
    alone = next(
        (
            each.value
            for each in others
            if (each.subject, each.metric, each.ranks) == (row.subject, SAMPLES, 1)
        ),
        None,
    )
    derived = replace(row, metric=EFFICIENCY, unit="", note="against one GPU of one instance")
    if row.value is None:
        return derived
    if not alone:
        return replace(derived, value=None, reason="nothing was measured on one GPU", note="")
    return replace(derived, value=row.value / (alone * row.ranks))


def _per_usd(row: ResultRow, price: Decimal | None) -> ResultRow:
    derived = replace(row, metric=PER_USD, unit="samples/USD", note="at the price of the whole instances")
    if row.value is None:
        return derived
    if not price:
        return replace(derived, value=None, reason="the price of the instances is not known", note="")
    return replace(derived, value=row.value * SECONDS_PER_HOUR / (float(price) * row.nodes))


def _limit_key(row: ResultRow) -> str:
    """Return the key of the limit that is about a row."""
    where = BETWEEN_NODES if row.nodes > 1 else IN_NODE
    subject = row.stands_for or row.subject
    if row.metric == BUS:
        return f"{subject}.{where}"
    if row.metric == EFFICIENCY:
        return f"{subject}.{EFFICIENCY}_{where}"
    return f"{subject}.{row.metric}"


def _with_verdict(row: ResultRow, key: str, limits: Limits, *, lower_bound: bool) -> ResultRow:
    limit = limits.get(key)
    if limit is None or row.absent or (row.metric == BUS and row.size_mib != JUDGED_MIB):
        return row
    row = replace(row, least=limit.least, source=limit.source)
    passes = row.value is not None and row.value >= limit.least * (1 - TOLERANCE)
    unknown = row.reason
    if row.stands_for:
        unknown = unknown or f"a small stand-in for {row.stands_for}"
    elif lower_bound and not passes:
        unknown = unknown or f"at least this; {row.tool} may itself be the limit, not the disk"
    if row.value is None or unknown:
        return replace(row, verdict=RowVerdict.UNKNOWN, reason=unknown)
    return replace(row, verdict=RowVerdict.PASS if passes else RowVerdict.FAIL)


def _never_measured(key: str, limit: Limit, ranks_per_node: int) -> ResultRow:
    """Return the row of a limit without a figure; one GPU alone has nothing to share inside its instance."""
    subject, _, metric = key.partition(".")
    row = ResultRow(
        *(subject, metric, 0, 0, 0, None, UNITS.get(metric, "")), least=limit.least, source=limit.source
    )
    if ranks_per_node == 1 and metric.endswith(IN_NODE):
        return replace(row, reason="an instance has one GPU", absent=True)
    return replace(row, verdict=RowVerdict.UNKNOWN, reason="not measured")

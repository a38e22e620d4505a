"""Heartbeats from CloudMonitor: the newest of all instances in one call, windows only of possibly idle ones.

CloudMonitor returns 1,440 points a call, of 50 instances at most, where CloudWatch returns 100,800 of 500.
The windows of a thousand instances would take 200 calls. But the newest heartbeat alone gives the time since
the last activity: if that is short, no window is read.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Any

from gpu_fleet_image.core.calls import Calls, Failure, batches
from gpu_fleet_image.core.cloud import COMPLETE, Answer, Query, Span, Statistic, give_up
from gpu_fleet_image.core.metrics import DIMENSION_INSTANCE, DIMENSION_POOL, HEARTBEAT, Figure
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.providers.alicloud.session import Product

DIMENSION_STACK = "Stack"
NO_GROUP = "0"  # the application group of metrics that name no other (API PutCustomMetric)
RAW = "0"  # Type: the cloud computes the minima
MAX_DATA_PER_CALL = 21  # PutCustomMetric: N of 1 to 21
_MAX_INSTANCES = 50  # DescribeMetricList
MAX_POINTS = 1440  # DescribeMetricList, DescribeMetricLast
# The cloud computes minima of custom metrics over one and five minutes (www.alibabacloud.com/help/en/cms,
# "Custom monitoring").
_FINE_S, _COARSE_S = 60, 300
# Combines the cloud's values of five minutes each.
TOGETHER: dict[Statistic, Callable[[list[float]], float]] = {"Minimum": min, "Average": fmean, "Sum": sum}
# Limit of pages of a stack's newest points, where an instance may publish under any name. With more pages
# than these and two for each full page of ours, the windows are read instead, by the instances' ids.
_NEWEST_PAGES = 10
MAX_PAGES = 10_000  # of one batch; a cloud that returns tokens without end is not believed


def metric_name(metric: str, stack: str) -> str:
    """Return the name of an instance's metric. Each stack has its own, so that one call lists its instances.

    A name has letters, digits and underscores only (API PutCustomMetric).
    """
    return f"{metric}_{''.join(character if character.isalnum() else '_' for character in stack)}"


def datum(
    metric: str,
    value: float,
    dimensions: Mapping[str, str],
    at: datetime | None = None,
    group: str = NO_GROUP,
) -> dict[str, str]:
    """Return one number in PutCustomMetric's form.

    Args:
        dimensions: name -> value; the cloud requires them sorted.
        at: its time; None for the cloud's time of receipt.
    """
    made = {
        "MetricName": metric,
        "GroupId": group,
        "Type": RAW,
        "Dimensions": json.dumps(dict(sorted(dimensions.items()))),
        "Values": json.dumps({"value": value}),
    }
    return made if at is None else made | {"Time": str(_milliseconds(at))}


class Heartbeats:
    """Metrics of one stack: reads its agents' and publishes the sweep's.

    Args:
        account: returns the account's id; called when it is first needed.
    """

    def __init__(self, cms: Product, calls: Calls, stack: str, account: Callable[[], str]) -> None:
        self._cms = cms
        self._calls = calls
        self._stack = stack
        self._account = account

    def read(self, queries: Sequence[Query], span: Span) -> tuple[dict[Query, Answer], list[Failure]]:
        """Read metrics in as few calls as the API allows; as on AWS.

        Args:
            span: time span; its start is aligned to the longest period.

        Returns:
            An answer for every query, incomplete if a call failed; and the failures.
        """
        answers = {query: Answer() for query in queries}
        self._read_newest([query for query in queries if query.enough_below_s > 0], answers)
        alike: dict[tuple[str, int, Statistic], list[Query]] = defaultdict(list)
        for query in queries:
            if not answers[query].complete:
                alike[query.metric, query.period_s, query.statistic].append(query)
        failures: list[Failure] = []
        for some in alike.values():
            for batch in batches(some, _MAX_INSTANCES):
                try:
                    self._read_windows(batch, span, answers)
                except CloudError as error:
                    failures += give_up(batch, answers, error)
        return answers, failures

    def publish(self, figures: Sequence[Figure]) -> None:
        """Publish figures of the sweep and its meter, of the stack or of a pool; raises CloudError."""
        for batch in batches(figures, MAX_DATA_PER_CALL):
            data = [
                datum(measurement.name, measurement.value, self._dimensions(measurement))
                for measurement in batch
            ]
            self._calls.change(self._cms.action("PutCustomMetric"), MetricList=data)

    def _dimensions(self, figure: Figure) -> dict[str, str]:
        own = {DIMENSION_STACK: self._stack}
        return own if figure.pool is None else own | {DIMENSION_POOL: figure.pool}

    def _read_newest(self, queries: Sequence[Query], answers: Mapping[Query, Answer]) -> None:
        """Answer queries whose newest value is enough. After an error here the windows are read."""
        alike: dict[str, dict[str, Query]] = defaultdict(dict)
        for query in queries:
            alike[query.metric][query.instance_id] = query
        for metric, wanted in alike.items():
            try:
                pages = _NEWEST_PAGES + 2 * (len(wanted) // MAX_POINTS)
                points = list(self._points("DescribeMetricLast", metric, _FINE_S, "Minimum", pages))
            except CloudError:
                continue  # the windows are asked for instead, and their failure is reported
            newest: dict[str, tuple[datetime, float]] = {}
            for instance, at, value in points:
                newest[instance] = max(newest.get(instance, (at, value)), (at, value))
            for instance in newest.keys() & wanted.keys():
                query, (at, value) = wanted[instance], newest[instance]
                if 0 <= value < query.enough_below_s and at + HEARTBEAT >= self._oldest(query):
                    answers[query].points = [(at, value)]
                    answers[query].status = COMPLETE

    def _oldest(self, query: Query) -> datetime:
        """Return the oldest time of a newest point; of an older one the whole window is read, for users."""
        return datetime.fromtimestamp(self._calls.now().timestamp() - query.period_s, UTC)

    def _read_windows(self, batch: Sequence[Query], span: Span, answers: Mapping[Query, Answer]) -> None:
        metric, period_s, statistic = batch[0].metric, batch[0].period_s, batch[0].statistic
        instances = {query.instance_id: query for query in batch}
        dimensions = [
            {"groupId": NO_GROUP, "dimension": f"{DIMENSION_INSTANCE}={instance}"} for instance in instances
        ]
        by_slot: dict[tuple[str, datetime], list[float]] = defaultdict(list)
        for instance, at, value in self._points(
            "DescribeMetricList",
            metric,
            _FINE_S if period_s < _COARSE_S else _COARSE_S,
            statistic,
            Dimensions=json.dumps(dimensions),
            StartTime=_milliseconds(span.start) - 1,  # the cloud leaves the start itself out
            EndTime=_milliseconds(span.end),
        ):
            slot = datetime.fromtimestamp(at.timestamp() // period_s * period_s, UTC)
            by_slot[instance, slot].append(value if math.isfinite(value) else -math.inf)
        for (instance, slot), values in by_slot.items():
            if instance in instances:
                answers[instances[instance]].points.append((slot, TOGETHER[statistic](values)))
        for query in batch:
            answers[query].status = COMPLETE

    def _points(
        self,
        action: str,
        metric: str,
        period_s: int,
        statistic: Statistic,
        pages: int = MAX_PAGES,
        **more: Any,
    ) -> Iterator[tuple[str, datetime, float]]:
        """Yield (instance, start of the period, its value) of every page. Raises CloudError."""
        token = ""
        for _ in range(pages):
            page = self._calls.read(
                self._cms.action(action),
                Namespace=f"acs_customMetric_{self._account()}",
                MetricName=metric_name(metric, self._stack),
                Period=period_s,
                Length=MAX_POINTS,
                **more,
                **({"NextToken": token} if token else {}),
            )
            yield from _read_page(page, statistic)
            token = page.get("NextToken") or ""
            if not token:
                return
        raise CloudError(f"{action}: {pages} pages, and still no end", "Endless")


def _read_page(page: Mapping[str, Any], statistic: Statistic) -> Iterator[tuple[str, datetime, float]]:
    """Yield the points of one answer. Raises CloudError if it cannot be read."""
    try:
        for point in json.loads(page.get("Datapoints") or "[]"):
            dimensions = dict(part.split("=", 1) for part in point["dimension"].split("&"))
            at = datetime.fromtimestamp(point["timestamp"] / 1000, UTC)
            yield dimensions[DIMENSION_INSTANCE], at, float(point[statistic])
    except (ValueError, KeyError, TypeError) as error:
        raise CloudError(f"data points cannot be read: {error!r}", "Malformed") from error


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)

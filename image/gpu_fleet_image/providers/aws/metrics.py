"""Heartbeats from CloudWatch, of hundreds of instances a call."""

from collections.abc import Iterable, Sequence
from typing import Any

from gpu_fleet_image.core.calls import Calls, Failure, batches
from gpu_fleet_image.core.cloud import COMPLETE, MAX_POINTS, MAX_QUERIES, Answer, Query, Span, give_up
from gpu_fleet_image.core.metrics import DIMENSION_INSTANCE, DIMENSION_POOL, Figure
from gpu_fleet_image.core.reaper_errors import CloudError

MAX_DATA_PER_CALL = 1000  # PutMetricData
MAX_PAGES = 1000  # of one batch; a cloud that returns tokens without end is not believed


class Heartbeats:
    """Metrics of one stack: reads its agents' and publishes the sweep's.

    Args:
        dimension: the one that names an instance, or another resource by its id.
    """

    def __init__(
        self, cloudwatch: Any, calls: Calls, namespace: str, dimension: str = DIMENSION_INSTANCE
    ) -> None:
        self._cloudwatch = cloudwatch
        self._calls = calls
        self._namespace = namespace
        self._dimension = dimension

    def read(self, queries: Sequence[Query], span: Span) -> tuple[dict[Query, Answer], list[Failure]]:
        """Read metrics in as few calls as the API allows.

        Args:
            span: time span; its start is aligned to the longest period.

        Returns:
            An answer for every query, incomplete if a call failed; and the failures.
        """
        answers = {query: Answer() for query in queries}
        failures: list[Failure] = []
        for batch in _batches(queries, span):
            try:
                self._read_batch(batch, span, answers)
            except CloudError as error:
                failures += give_up(batch, answers, error)
        return answers, failures

    def publish(self, figures: Sequence[Figure]) -> None:
        """Publish figures of the sweep and its meter, of the stack or of a pool; raises CloudError."""
        for batch in batches(figures, MAX_DATA_PER_CALL):
            data = [_datum(measurement) for measurement in batch]
            self._calls.change(self._cloudwatch.put_metric_data, Namespace=self._namespace, MetricData=data)

    def _read_batch(self, batch: list[Query], span: Span, answers: dict[Query, Answer]) -> None:
        arguments: dict[str, Any] = {
            "MetricDataQueries": [self._wire(index, query) for index, query in enumerate(batch)],
            "StartTime": span.start,
            "EndTime": span.end,
            "ScanBy": "TimestampDescending",
            "MaxDatapoints": MAX_POINTS,
        }
        for _ in range(MAX_PAGES):
            page = self._calls.read(self._cloudwatch.get_metric_data, **arguments)
            for result in page.get("MetricDataResults", []):
                answer = answers[batch[int(result["Id"][1:])]]
                answer.points += zip(result["Timestamps"], result["Values"], strict=True)
                answer.status = result.get("StatusCode", COMPLETE)
            if not page.get("NextToken"):
                return
            arguments["NextToken"] = page["NextToken"]
        for query in batch:
            answers[query].status = "Endless"

    def _wire(self, index: int, query: Query) -> dict[str, Any]:
        return {
            "Id": f"q{index}",
            "MetricStat": {
                "Metric": {
                    "Namespace": self._namespace,
                    "MetricName": query.metric,
                    "Dimensions": [{"Name": self._dimension, "Value": query.instance_id}],
                },
                "Period": query.period_s,
                "Stat": query.statistic,
            },
            "ReturnData": True,
        }


def _datum(figure: Figure) -> dict[str, Any]:
    dimensions = [] if figure.pool is None else [{"Name": DIMENSION_POOL, "Value": figure.pool}]
    return {"MetricName": figure.name, "Value": figure.value, "Dimensions": dimensions}


def _batches(queries: Sequence[Query], span: Span) -> Iterable[list[Query]]:
    """Yield batches of at most 500 queries and 100,800 points each."""
    batch: list[Query] = []
    points = 0
    for query in queries:
        needed = int((span.end - span.start).total_seconds() / query.period_s) + 1
        if batch and (len(batch) == MAX_QUERIES or points + needed > MAX_POINTS):
            yield batch
            batch, points = [], 0
        batch.append(query)
        points += needed
    if batch:
        yield batch

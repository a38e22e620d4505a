"""Reads and writes of CloudWatch: within its limits, with the dimensions of the alarms."""

from datetime import timedelta
from unittest.mock import Mock

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import COMPLETE, MAX_POINTS, MAX_QUERIES, Query, Span
from gpu_fleet_image.core.metrics import Figure
from gpu_fleet_image.providers.aws import metrics
from gpu_fleet_image.providers.aws.metrics import Heartbeats, _batches
from tests.image.samples import NOON


def queries(count, period_s):
    return [Query(f"i-{number}", "SecondsSinceActivity", period_s, 0.0) for number in range(count)]


def test_a_batch_of_queries_is_of_what_one_call_takes():
    day = Span(NOON - timedelta(days=1), NOON)

    few_points, many_points = queries(1_200, 86_400), queries(200, 60)

    assert [len(batch) for batch in _batches(few_points, day)] == [MAX_QUERIES, MAX_QUERIES, 200]
    most = MAX_POINTS // 1_441  # points of a minute in a day, both ends counted
    assert [len(batch) for batch in _batches(many_points, day)] == [most, most, 200 - 2 * most]
    assert [point for batch in _batches(many_points, day) for point in batch] == many_points
    assert list(_batches([], day)) == []


def test_heartbeats_whose_pages_never_end_are_not_believed(monkeypatch):
    monkeypatch.setattr(metrics, "MAX_PAGES", 3)
    result = {"Id": "q0", "Timestamps": [NOON], "Values": [0.0], "StatusCode": COMPLETE}
    endless = Mock(return_value={"MetricDataResults": [result], "NextToken": "more"}, __name__="get")
    cloudwatch, (query,) = Mock(get_metric_data=endless), queries(1, 60)

    answers, _ = Heartbeats(cloudwatch, Calls(lambda: NOON), "gpu-fleet/test").read(
        [query], Span(NOON - timedelta(hours=1), NOON)
    )

    assert endless.call_count == 3
    assert not answers[query].complete


def test_a_figure_is_of_its_pool_or_of_the_whole_stack():
    put = Mock(return_value={}, __name__="put")

    Heartbeats(Mock(put_metric_data=put), Calls(lambda: NOON), "gpu-fleet/test").publish(
        [Figure("HourCost", 2.5, "dev"), Figure("SweepRuns", 1)]
    )

    data = put.call_args.kwargs["MetricData"]
    assert [point["Dimensions"] for point in data] == [[{"Name": "Pool", "Value": "dev"}], []]

"""The sweep as Lambda runs it."""

from unittest.mock import Mock

import pytest

from gpu_fleet_image.controllers.sweep import handler
from gpu_fleet_image.core.reaper_errors import ConfigurationError, PolicyError
from tests.image.moto_fleet import write_policy

# what Lambda hands to a function
CONTEXT = Mock(aws_request_id="request-1", get_remaining_time_in_millis=lambda: 120_000)


@pytest.fixture(autouse=True)
def policy(monkeypatch, tmp_path):
    file = write_policy(tmp_path / "policy.json")
    monkeypatch.setenv("GPU_FLEET_POLICY_FILE", str(file))
    return file


@pytest.mark.parametrize("fleet", [False], indirect=True, ids=["in time"])
def test_a_scheduled_sweep_logs_each_instance_returns_the_counts_and_publishes_that_it_ran(fleet, capsys):
    (instance,) = fleet.start()

    summary = handler.handle({}, CONTEXT)

    assert summary["failed"] == summary["acted"] == []
    assert f'"instance_id": "{instance}"' in capsys.readouterr().out
    metrics = fleet.cloudwatch.list_metrics(Namespace="GpuFleet/test")["Metrics"]
    assert {"SweepRuns", "SweepFailures", "SweepBreakerTrips"} <= {metric["MetricName"] for metric in metrics}


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"dry_rum": True}, r"'dry_rum' is unknown; allowed: dry_run, override_breaker \(nearest: dry_run\)"),
        ({"now": "2027-01-01T00:00:00Z"}, "'now' is unknown; allowed: dry_run, override_breaker"),
        ({"as_of": "2027-01-01T00:00:00Z"}, "'as_of' is unknown; allowed: dry_run, override_breaker"),
        ({"dry_run": "yes"}, "dry_run = 'yes'; allowed: true or false"),
        (None, "event = None; allowed: an object"),
    ],
)
def test_a_malformed_event_changes_nothing_and_says_what_is_wrong(fleet, event, message):
    with pytest.raises(ConfigurationError, match=message):
        handler.handle(event, CONTEXT)


def test_a_malformed_policy_stops_the_sweep_naming_the_key(fleet, policy):
    write_policy(policy, max_percent=101)

    with pytest.raises(PolicyError, match="max_percent = 101; allowed: a whole number from 0 to 100"):
        handler.handle({}, CONTEXT)

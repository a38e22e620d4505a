"""How long logs are kept: one setting for all of a stack, on both clouds."""

import pytest

from stacks.errors import SettingsError
from tests.stacks import alicloud_examples, examples
from tests.stacks import alicloud_programs as programs

NETWORK = {"cidr": "10.0.0.0/16", "zones": ["us-east-1a", "us-east-1b"]}
GROUP = "aws:cloudwatch/logGroup:LogGroup"
STORE = "alicloud:log/store:Store"


def periods(found, kind, key):
    """The retention of each log, and how many logs there are."""
    kept = [resource.inputs[key] for resource in found.of_type(kind)]
    return set(kept), len(kept)


def test_one_setting_is_for_every_log_on_aws(register):
    kept, many = periods(register(examples.stack(logs={"retention_days": 400})), GROUP, "retentionInDays")

    assert kept == {400}
    assert many >= 3  # connections, sweep, mover


def test_one_setting_is_for_every_log_on_alibaba_cloud():
    found = programs.register(alicloud_examples.stack(logs={"retention_days": 400}))

    kept, many = periods(found, STORE, "retentionPeriod")

    assert kept == {400}
    assert many >= 3


def test_without_it_all_logs_are_kept_as_long():
    found = programs.register(alicloud_examples.stack())

    assert periods(found, STORE, "retentionPeriod")[0] == {90}


def test_the_flow_log_alone_may_differ(register):
    settings = examples.stack(network=NETWORK | {"flow_log_retention_days": 7}, logs={"retention_days": 30})

    kept, _ = periods(register(settings), GROUP, "retentionInDays")

    assert kept == {7, 30}


@pytest.mark.parametrize("days", [100, 0, 3650])
def test_a_period_that_cloudwatch_does_not_know_is_refused_with_those_it_does(days):
    with pytest.raises(SettingsError) as caught:
        examples.stack(logs={"retention_days": days})

    (line,) = [line for line in str(caught.value).splitlines() if "logs.retention_days" in line]
    assert f"logs.retention_days = {days}: must be " in line
    for allowed in ("1", "90", "365", "400", "2922"):
        assert allowed in line.partition(": ")[2]

"""`gpu-fleet up` alone creates a stack that the provider needs several passes for, also after any break."""

import json
from unittest.mock import patch

import pytest

from gpu_fleet_stacks.alicloud.first_pass import (
    VARIABLE,
    DeclaredStage,
    FirstValue,
    first_values,
    passes,
    stage_of,
)
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.plan_check import first_values as reporting
from gpu_fleet_stacks.plan_check.deploy import up
from gpu_fleet_stacks.plan_check.errors import PlanError
from gpu_fleet_stacks.plan_check.plan import parse
from tests.stacks import plans
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.alicloud_programs import inputs
from tests.stacks.plan_check.test_plan_check import at_cli  # noqa: F401 - a fixture
from tests.stacks.registrations import declared

CLUSTER = stack(pools=[pool(name="cluster", types=["ecs.gn8v-8x.48xlarge"], erdma=True, purpose="training")])
BOTH = stack(pools=[pool(), pool(name="cluster", types=["ecs.gn8v-8x.48xlarge"], erdma=True)])
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"
NAME = "gpu-fleet-test-cluster"
WITHHELD = {f"{NAME}-health": DeclaredStage.WITHHELD}


def at(stages, settings=CLUSTER):
    """Return the program's registrations in a pass."""
    with patch.dict("os.environ", {VARIABLE: json.dumps(stages)}):
        return declared(settings)


def steps(before, after):
    return parse(plans.digest(before, after))


def test_a_new_erdma_configuration_is_made_then_joined_then_enabled():
    before = passes(steps(None, declared(CLUSTER)))

    assert before == ({NAME: DeclaredStage.MADE} | WITHHELD, {NAME: DeclaredStage.JOINED} | WITHHELD)


def test_each_pass_is_one_that_the_provider_takes_and_no_group_starts_an_instance_before_the_last():
    """It is created with its group at the top, updated to an interface, then without it, and enabled last."""
    made, joined, whole = (
        inputs(at(stages), CONFIGURATION)[0] for stages in ({NAME: "made"}, {NAME: "joined"}, {})
    )

    assert made["securityGroupIds"]
    assert "networkInterfaces" not in made
    for stack_edit in (joined, whole):
        assert stack_edit["networkInterfaces"][0]["networkInterfaceTrafficMode"] == "HighPerformance"
        assert "securityGroupIds" not in stack_edit
    assert [resource["enable"] for resource in (made, joined, whole)] == [False, False, True]


@pytest.mark.parametrize(
    ("left_by", "then"),
    [
        ({NAME: "made"} | WITHHELD, ({NAME: DeclaredStage.JOINED} | WITHHELD,)),
        ({NAME: "joined"} | WITHHELD, ()),
        ({}, ()),
        ({NAME: "made"}, ({NAME: DeclaredStage.JOINED},)),
    ],
    ids=["after the first pass", "after the second", "after all", "a suspension that stands stays"],
)
def test_an_up_that_broke_off_continues_where_it_stopped(left_by, then):
    assert passes(steps(at(left_by), declared(CLUSTER))) == then


def test_processes_are_suspended_in_the_pass_that_enables_the_group_and_after_it():
    """Auto Scaling may refuse it earlier, and the provider would retry until it gives up."""
    kind = "alicloud:ess/suspendProcess:SuspendProcess"
    first, second = passes(steps(None, declared(CLUSTER)))

    assert not any(at(stages).of_type(kind) for stages in (first, second))
    whole = declared(CLUSTER)
    (suspension,), (configuration,) = whole.of_type(kind), whole.of_type(CONFIGURATION)
    assert configuration.inputs["enable"]
    assert configuration.urn in suspension.dependencies


def test_another_change_of_an_erdma_pool_takes_one_pass_and_a_deployed_alarm_waits_for_nothing():
    content = {"name": "cluster", "types": ["ecs.gn8v-8x.48xlarge"], "erdma": True, "purpose": "training"}
    larger = stack(pools=[pool(**content, volume_gib=400)])

    assert passes(steps(declared(CLUSTER), declared(larger))) == ()
    assert passes(steps(declared(stack()), declared(stack(owner="vision")))) == ()


def test_an_alarm_on_a_custom_metric_waits_for_its_first_value():
    planned = steps(None, declared(stack()))

    (first,) = passes(planned)
    assert first == {"gpu-fleet-test-dev-gpu-high": DeclaredStage.WITHHELD}
    assert first_values(planned) == (FirstValue("GpuUtilisationPercent", {"Stack": "test", "Pool": "dev"}),)
    alarms = [resource.name for resource in at(first, stack()).of_type("alicloud:ess/alarm:Alarm")]
    assert alarms == ["gpu-fleet-test-dev-cpu-high", "gpu-fleet-test-dev-cpu-low"]


def test_without_the_variable_the_program_means_the_finished_stack():
    """A bare `pulumi up` undoes nothing."""
    assert stage_of(NAME, {}) is None
    assert stage_of(NAME, {VARIABLE: json.dumps({"other": "made"})}) is None


# the whole way, at the CLI


class CloudMonitor:
    """Fake of CloudMonitor: new data appears after some reads."""

    def __init__(self, shown_after=2, code="200"):
        self.put, self.looks, self.shown_after, self.code = [], 0, shown_after, code

    def __call__(self, region, environ):
        assert region == "cn-shenzhen"
        return self

    def ask(self, product, action, **parameters):
        assert product == "cms"
        if action == "PutCustomMetric":
            self.put.append(parameters)
            if self.code != "200":
                raise CannotCheckError(f"{action}: {self.code}: no", self.code)
            return {"Code": self.code}
        assert parameters["Namespace"] == "acs_customMetric_1234567890123456"
        self.looks += 1
        points = [{"groupId": "4711", "Average": 0}] if self.looks >= self.shown_after else []
        return {"Code": "200", "Datapoints": json.dumps(points)}


def open_way(region, environ):
    """Allow the account's upload from here."""


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(reporting.report, "__defaults__", (lambda _: None,))


def passes_asked(deployment):
    return [stages for words, stages in deployment.asked() if words[0] == "up"]


def test_up_makes_every_pass_and_reports_the_first_value_between_them(at_cli):  # noqa: F811 - the fixture
    cloud, deployment = CloudMonitor(), at_cli("alicloud", plans.digest(None, declared(BOTH)))

    code = up(deployment, "--policy-pack", "p", connect=cloud, hold_upload=open_way)

    alarms = {f"gpu-fleet-test-{name}-gpu-high": "withheld" for name in ("dev", "cluster")}
    assert code == 0
    assert passes_asked(at_cli) == [{NAME: "made"} | alarms | WITHHELD, {NAME: "joined"} | WITHHELD, {}]
    assert {datum["MetricList.1.GroupId"] for datum in cloud.put} == {"4711"}
    assert sorted(datum["MetricList.1.Dimensions"] for datum in cloud.put) == [
        '{"Pool": "cluster", "Stack": "test"}',
        '{"Pool": "dev", "Stack": "test"}',
    ]
    assert all("--policy-pack" in words for words, _ in at_cli.asked() if words[0] == "up")


def test_a_pass_that_fails_ends_up_with_its_code(at_cli):  # noqa: F811 - the fixture
    deployment = at_cli("alicloud", plans.digest(None, declared(BOTH)), UP_FAILS="3")

    assert up(deployment, connect=CloudMonitor(), hold_upload=open_way) == 3
    assert len(passes_asked(at_cli)) == 1


@pytest.mark.parametrize(
    ("cloud", "says"),
    [
        (CloudMonitor(code="403"), "PutCustomMetric: 403: no"),
        (CloudMonitor(shown_after=10_000), "does not show it: run `gpu-fleet up` again"),
    ],
)
def test_an_alarm_is_not_asked_for_before_its_metric_is_known(at_cli, cloud, says):  # noqa: F811 - the fixture
    with pytest.raises((PlanError, CannotCheckError), match=says):
        up(at_cli("alicloud", plans.digest(None, declared(BOTH))), connect=cloud, hold_upload=open_way)

    assert len(passes_asked(at_cli)) == 1


def test_a_stack_that_stands_takes_one_up(at_cli):  # noqa: F811 - the fixture
    content = declared(BOTH)
    deployment = at_cli("alicloud", plans.digest(content, content))

    assert up(deployment, connect=CloudMonitor(), hold_upload=open_way) == 0
    assert passes_asked(at_cli) == [{}]

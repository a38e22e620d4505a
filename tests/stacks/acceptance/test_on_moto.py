"""The whole acceptance run against moto: real calls, real trainer, real agents, the stack's own function."""

import json

import boto3
import pytest
from click.testing import CliRunner

from gpu_fleet_stacks.acceptance import plan
from gpu_fleet_stacks.acceptance.aws import AwsAccount
from gpu_fleet_stacks.acceptance.aws_calls import CALLS
from gpu_fleet_stacks.acceptance.command import Surroundings, accept
from gpu_fleet_stacks.acceptance.errors import EngineError
from gpu_fleet_stacks.rehearsal.bucket_policies import conditions_left_out
from gpu_fleet_stacks.rehearsal.clients import ClientPool, RegionClients
from gpu_fleet_stacks.rehearsal.moto_server import environment, moto_server
from gpu_fleet_stacks.rehearsal.program import run_program
from tests.preloaded import preloaded
from tests.stacks.acceptance.fleet import FastClock, Fleet
from tests.stacks.rehearsal.deletions import DELETERS
from tests.stacks.rehearsal.destroy import destroy

# a trainer three times, a dozen agents: two minutes on two quiet cores
pytestmark = [pytest.mark.timeout(900), pytest.mark.prove]
EPOCHS = 12.0
REGION = "us-east-1"


class MotoEngine:
    """Pulumi's part: the program runs unchanged against moto, from the stack file that the run wrote."""

    def __init__(self, name, fleet, folder):
        self._name, self._fleet, self._folder = name, fleet, folder
        self.rehearsed, self._state = None, ()

    def version(self):
        return "none: moto"

    def up(self, timeout_s):
        self._fleet.clock.sleep(240)
        file = self._folder / f"Pulumi.{self._name}.yaml"
        self.rehearsed = run_program(self._name, file, clients=self._fleet.clients)
        self._state = self.rehearsed.registrations
        self._fleet.stand(self.rehearsed)

    def outputs(self):
        return self.rehearsed.outputs

    def destroy(self, timeout_s):
        """In the engine's own order, and failing on what is still in use, as the provider does."""
        self._fleet.stand_down()
        self._fleet.clock.sleep(300)
        done = destroy(self._state, self._fleet.clients, DELETERS)
        self._state = done.left
        if done.failed:
            raise EngineError(f"pulumi destroy: {dict(done.failed)}")

    def forget(self):
        return


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """One whole run, by the command."""
    folder = tmp_path_factory.mktemp("acceptance")
    (folder / "stacks").mkdir()
    clock, pool = FastClock(), ClientPool()
    with (
        environment({"MOTO_EC2_LOAD_DEFAULT_AMIS": "true"}),
        moto_server(REGION),
        conditions_left_out(),
        preloaded(),
        Fleet(RegionClients(REGION, pool), "aws-dev-accept", clock, folder / "instances") as fleet,
    ):
        clock.fleet = fleet
        accounts = []
        world = Surroundings(
            account=lambda stack, clock: accounts.append(AwsAccount(stack, clock)) or accounts[-1],
            engine=lambda name, log: MotoEngine(name, fleet, folder / "stacks"),
            clock=clock,
            look=lambda stack: [],
            stack_folder=folder / "stacks",
            evidence_folder=folder / "evidence",
            epochs=EPOCHS,
        )
        result = CliRunner().invoke(accept, ["aws-dev", "--yes"], obj=world, catch_exceptions=False)
        (file,) = (folder / "evidence").glob("*.json")
        yield result, json.loads(file.read_text()), fleet, accounts[-1]
        pool.close()


def step(evidence, name):
    return next(each_step for each_step in evidence["steps"] if each_step["name"] == name)


def test_every_step_passes(played):
    result, evidence, _, _ = played

    assert result.exit_code == 0, result.output
    assert [step["name"] for step in evidence["steps"]] == [step.name for step in plan.STEPS] + ["tear-down"]
    assert {step["status"] for step in evidence["steps"]} == {"ok"}


def test_the_trainer_was_stopped_by_the_spot_notice_and_went_on_on_another_instance(played):
    _, evidence, fleet, _ = played
    interrupted, resumed = step(evidence, "interrupt")["facts"], step(evidence, "resume")["facts"]

    assert interrupted["how"].startswith("FIS experiment ")
    first = fleet.boxes[step(evidence, "spot: launch")["facts"]["instance"]]
    assert "reason=spot-notice" in (first.folder / "trainer-accept-broken.log").read_text()
    assert 0 < interrupted["saved_step"] < interrupted["of_steps"]
    assert resumed["result"]["resumed_from_step"] == interrupted["saved_step"]
    assert resumed["weights_equal"] is True
    assert resumed["instance"] != step(evidence, "spot: launch")["facts"]["instance"]


def test_the_sweep_kept_the_held_instance_then_marked_and_terminated_it(played):
    _, evidence, fleet, _ = played
    idle = step(evidence, "people: launch")["facts"]["instance"]
    verdicts = [
        verdict["verdict"]
        for report in fleet.sweeps
        for verdict in report["verdicts"]
        if verdict["instance_id"] == idle
    ]

    assert "MARK" in verdicts
    assert "TERMINATE" in verdicts
    assert step(evidence, "terminate")["facts"]["record"]["instance_id"] == idle


def test_the_meter_agrees_with_what_was_seen(played):
    _, evidence, _, _ = played
    counted = step(evidence, "meter")["facts"]["instances"]

    assert len(counted) == 2
    assert all(line["metered_s"] > 0 for line in counted.values())


def test_every_call_has_a_request_id_of_the_cloud_and_a_page_that_documents_it(played):
    _, evidence, _, account = played
    calls = [call for step in evidence["steps"] for call in step["calls"]]

    assert {call["name"] for call in calls} <= CALLS.keys()
    assert all(call["doc"] == CALLS[call["name"]] for call in calls)
    assert all(call["request_id"] for call in calls if not call["error"])
    assert len(account.calls) >= len(calls)


def test_nothing_that_is_paid_for_is_left(played):
    _, evidence, fleet, _ = played
    instances = boto3.client("ec2", region_name=REGION).describe_instances()["Reservations"]

    assert {line["per_hour"] for line in evidence["remaining"]} <= {"0"}
    assert {instance["State"]["Name"] for found in instances for instance in found["Instances"]} == {
        "terminated"
    }
    assert fleet.clients("s3").list_buckets()["Buckets"] == []
    assert not any(role["RoleName"].endswith("-fis") for role in fleet.clients("iam").list_roles()["Roles"])

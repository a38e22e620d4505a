"""Whole acceptance runs on a pretended cloud: what passes, and what is left when something breaks."""

import json
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpu_fleet_stacks.acceptance import plan
from gpu_fleet_stacks.acceptance.command import Surroundings, accept
from gpu_fleet_stacks.settings import stack_files
from tests.stacks.acceptance.pretend import BEGIN, PretendClock, PretendCloud, room

NAMES = [step.name for step in plan.STEPS]


class Played:
    """A run that is over: its exit code, what it said, its evidence, the cloud behind it."""

    def __init__(self, result, cloud, folder):
        self.code, self.said, self.cloud, self.folder = result.exit_code, result.output, cloud, folder
        (file,) = folder.glob("evidence/*.json")
        self.evidence = json.loads(file.read_text())
        self.page = file.with_suffix(".md").read_text()
        self.status = {step["name"]: step["status"] for step in self.evidence["steps"]}
        self.observed = {step["name"]: step["observed"] for step in self.evidence["steps"]}

    def is_torn_down_after(self, stopped):
        assert stopped in self.evidence["stopped"]
        return (self.code, self.status["tear-down"], self.cloud.stands) == (1, "ok", False)


def world_of(cloud: PretendCloud, folder: Path) -> Surroundings:
    return Surroundings(
        account=lambda stack, clock: cloud,
        engine=lambda name, log: cloud,
        clock=cloud.clock,
        look=room(cloud),
        stack_folder=folder / "stacks",
        evidence_folder=folder / "evidence",
    )


def run(cloud: PretendCloud, folder: Path, *arguments: str, **options) -> Result:
    (folder / "stacks").mkdir(exist_ok=True)
    return CliRunner().invoke(accept, ["aws-dev", *arguments], obj=world_of(cloud, folder), **options)


def played_in(folder: Path, *broken: str, arguments=(), at=(), cloud=None) -> Played:
    cloud = cloud or PretendCloud(PretendClock(), set(broken))
    cloud.clock.at = [(BEGIN + timedelta(minutes=minutes), error) for minutes, error in at]
    return Played(run(cloud, folder, "--yes", *arguments, catch_exceptions=False), cloud, folder)


@pytest.fixture
def play(tmp_path):
    return partial(played_in, tmp_path)


@pytest.fixture(scope="module")
def successful(tmp_path_factory) -> Played:
    return played_in(tmp_path_factory.mktemp("successful"))


def test_a_successful_run_passes_every_step_and_leaves_nothing_that_is_paid_for(successful):
    assert successful.code == 0, successful.said
    assert successful.status == dict.fromkeys([*NAMES, "tear-down"], "ok")
    assert successful.evidence["passed"] is True
    assert not successful.cloud.stands
    assert not successful.cloud.fis_role
    (key,) = successful.evidence["remaining"]
    assert (key["kind"], key["state"]) == ("kms", "PendingDeletion")
    assert list(successful.folder.glob("stacks/*")) == []


def test_an_interrupted_run_resumes_on_the_instance_that_replaces_the_interrupted_one(successful):
    facts = next(step["facts"] for step in successful.evidence["steps"] if step["name"] == "resume")
    spots = [box.instance for box in successful.cloud.boxes.values() if box.instance.spot]
    assert [spot.id for spot in spots][-1] == facts["instance"] != spots[0].id
    assert facts["result"]["resumed_from_step"] > 0
    assert facts["weights_equal"] is True


def test_the_evidence_hides_the_account_and_names_calls_times_and_versions(successful):
    steps = {step["name"]: step for step in successful.evidence["steps"]}
    launch = steps["spot: launch"]
    costs = [float(step["accrued"]) for step in successful.evidence["steps"]]

    assert successful.evidence["account"] == "********9012"
    assert "123456789012" not in successful.page
    assert successful.evidence["versions"]["pulumi CLI"] == "v3.260.0"
    assert launch["calls"][0]["request_id"] == "id-1"
    assert launch["started"] <= launch["ended"]
    assert steps["up"]["seconds"] == 240
    assert costs == sorted(costs)
    assert costs[-1] > 0


def test_where_the_cloud_refuses_the_interruption_the_stop_file_is_used_and_the_evidence_says_so(play):
    played = play("fis")

    assert played.code == 0, played.said
    assert "stop file" in played.observed["interrupt"]
    assert "AccessDeniedException" in played.evidence["notes"][0]
    assert not played.cloud.fis_role
    assert [box.instance.spot for box in played.cloud.boxes.values()].count(True) == 1


def test_the_stop_file_alone_can_be_asked_for(play):
    played = play(arguments=["--interrupt", "stop-file"])

    assert played.code == 0
    assert "asked for with --interrupt stop-file" in played.observed["interrupt"]


FAILURES = [
    ("quota", "preflight", "0 vCPU of 8 ask for more"),
    ("up", "up", "VpcLimitExceeded"),
    ("schedule", "watchers", "no schedules"),
    ("group", "groups", "group-people: LifecycleState Inactive, asked Active"),
    ("no capacity spot", "spot: launch", "group-spot: InsufficientInstanceCapacity"),
    ("no capacity people", "people: launch", "group-people: InsufficientInstanceCapacity"),
    ("heartbeat", "people: heartbeat", "not seen within the step's time"),
    ("falls silent", "people: heartbeat", "its agent is silent"),
    ("unreachable", "spot: gate", "to take commands: not seen"),
    ("gate", "spot: gate", "gpus: 0 of 1 GPUs"),
    ("no gpu", "trainer", "sees no GPU"),
    ("trainer", "train two ranks", "OutOfMemoryError"),
    ("saves nothing", "interrupt", "nothing was saved after the notice"),
    ("forgets", "resume", "resumed from step None"),
    ("weights", "resume", "weights differ"),
    ("ignores holds", "release", "although it was kept"),
    ("sweep", "mark", "not seen within the step's time"),
    ("meter", "meter", "metered"),
    ("log", "logs", "something in every log store: not seen"),
]


@pytest.mark.parametrize(("broken", "step", "words"), FAILURES, ids=[failure[0] for failure in FAILURES])
def test_whatever_fails_is_named_and_everything_is_torn_down(play, broken, step, words):
    played = play(broken)

    assert played.code == 1
    assert played.status[step] == "failed", played.observed
    assert words in played.observed[step]
    assert f"**{step}**" in played.page
    assert played.status["tear-down"] == "ok", played.observed["tear-down"]
    assert not played.cloud.stands
    assert [line["per_hour"] for line in played.evidence["remaining"]] == ["0"]


def test_every_step_can_fail_in_these_tests():
    """A step that no failure above reaches would be proven by nothing."""
    untouched = set(NAMES) - {step for _, step, _ in FAILURES}

    assert untouched == {"people: gate", "spot: heartbeat", "keep", "train on a GPU", "terminate"}


def test_what_needs_a_failed_step_is_not_tried_and_all_else_is(play):
    played = play("gate")

    assert played.status["resume"] == "skipped"
    assert played.observed["trainer"] == "not tried: spot: gate did not pass"
    assert played.status["meter"] == "ok"


def test_a_step_that_was_not_tried_makes_the_run_no_success(play):
    played = play("quota")

    assert (played.evidence["passed"], played.status["up"], played.cloud.boxes) == (False, "skipped", {})


@pytest.mark.parametrize("minute", [1, 5, 15, 30, 40])
def test_ctrl_c_at_any_time_tears_down_and_is_reported(play, minute):
    played = play(at=[(minute, KeyboardInterrupt())])

    assert played.is_torn_down_after("interrupted by the operator")


def test_an_unexpected_error_tears_down_too(play):
    played = play(at=[(20, ZeroDivisionError("out of the blue"))])

    assert "ZeroDivisionError" in " ".join(played.observed.values())
    assert played.status["tear-down"] == "ok"


def test_an_instance_of_a_type_without_a_known_price_ends_the_run(play):
    assert play("foreign type").is_torn_down_after("p5.48xlarge runs, and its price is unknown")


def test_the_run_ends_before_it_passes_its_cap(play):
    """Hundreds of instances where two were planned: the estimate follows what is seen."""
    played = play(cloud=PretendCloud(PretendClock(), pools=("people", "spot", *["spot"] * 300)))

    assert played.is_torn_down_after("cost cap: ")
    assert float(played.evidence["accrued"]) < 20


def test_nothing_is_started_where_the_plan_passes_its_cap_or_the_question_is_declined(tmp_path):
    cloud = PretendCloud(PretendClock())

    dear = run(cloud, tmp_path, "--yes", "--max-usd", "2")
    endless = run(cloud, tmp_path, "--yes", "--max-usd", "1e30")
    declined = run(cloud, tmp_path, input="n\n")

    assert "'1e30': must be more than 0, and at most 1,000,000,000" in endless.output
    assert (dear.exit_code, declined.exit_code) == (1, 1)
    assert "--max-usd allows 2.00 USD; at worst the run costs" in dear.output
    assert cloud.boxes == {}
    assert list((tmp_path / "stacks").iterdir()) == []


def test_a_teardown_that_fails_says_what_is_left_and_what_it_costs_and_can_be_run_again(play, tmp_path):
    cloud = PretendCloud(PretendClock(), {"destroy"})

    played = play(cloud=cloud)
    beside = run(cloud, tmp_path, "--yes")

    assert played.code == 1
    assert cloud.torn_down == 3
    assert played.status["tear-down"] == "failed"
    assert "nat gateway nat-1 available, 0.0450 an hour" in played.said
    assert "gpu-fleet accept aws-dev --clean-up" in played.said
    assert [path.name for path in (tmp_path / "stacks").iterdir()] == ["Pulumi.aws-dev-accept.yaml"]
    assert "an earlier run was not torn down" in beside.output

    for file in (tmp_path / "evidence").iterdir():
        file.unlink()
    cloud.broken = set()
    again = play(cloud=cloud, arguments=["--clean-up"])

    assert again.code == 0, again.said
    assert not cloud.stands
    assert list((tmp_path / "stacks").iterdir()) == []


@pytest.mark.parametrize(
    ("broken", "observed", "on_page"),
    [
        ("stays", "still there and paid for: nat gateway nat-1", ""),
        ("left", "UnauthorizedOperation", "look for the stack's tag by hand"),
    ],
)
def test_what_is_still_paid_for_or_cannot_be_listed_at_the_end_is_no_success(play, broken, observed, on_page):
    played = play(broken)

    assert played.code == 1
    assert played.status["tear-down"] == "failed"
    assert observed in played.observed["tear-down"]
    assert on_page in played.page


def test_a_stack_that_proves_nothing_is_refused(monkeypatch):
    def changed(path, config_of=stack_files.config_of):
        config = config_of(path)
        return config | {"gpu-fleet:image": config["gpu-fleet:image"] | {"mode": "none"}}

    of_emulator = CliRunner().invoke(accept, ["local"])
    monkeypatch.setattr(stack_files, "config_of", changed)
    without_agent = CliRunner().invoke(accept, ["aws-dev", "--plan"])

    assert (of_emulator.exit_code, without_agent.exit_code) == (1, 1)
    assert "a proof needs an account" in of_emulator.output
    assert "image.mode = 'none': its instances run no agent" in without_agent.output


def test_credentials_of_another_account_are_refused(monkeypatch, tmp_path):
    cloud = PretendCloud(PretendClock())
    monkeypatch.setattr(cloud, "identity", lambda: "999999999999")

    result = run(cloud, tmp_path, "--yes")

    assert result.exit_code == 1
    assert "the credentials are of account 999999999999" in result.output
    assert cloud.torn_down == 0


def test_the_evidence_is_there_after_every_step(play, tmp_path):
    """An instance that is switched off in the middle leaves what had been seen."""
    seen = []

    class Watching(PretendCloud):
        def tag(self, instance_id, tags):
            seen.extend((tmp_path / "evidence").glob("*.json"))
            super().tag(instance_id, tags)

    play(cloud=Watching(PretendClock()))

    assert seen

"""Whole acceptance runs on a pretended cloud: what passes, and what is left when something breaks."""

import json
from datetime import timedelta

import pytest
from click.testing import CliRunner

from stacks.acceptance import plan
from stacks.acceptance.command import Surroundings, accept
from stacks.acceptance.errors import EngineError
from stacks.settings import stack_files
from tests.acceptance.pretend import BEGIN, PretendClock, PretendCloud, room

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


@pytest.fixture
def play(tmp_path):
    def played(*broken: str, arguments=(), at=(), cloud=None) -> Played:
        cloud = cloud or PretendCloud(PretendClock(), set(broken))
        cloud.clock.at = [(BEGIN + timedelta(minutes=minutes), error) for minutes, error in at]
        world = Surroundings(
            account=lambda stack, clock: cloud,
            engine=lambda name, log: cloud,
            clock=cloud.clock,
            look=room(cloud),
            stack_folder=tmp_path / "stacks",
            evidence_folder=tmp_path / "evidence",
        )
        (tmp_path / "stacks").mkdir(exist_ok=True)
        command = ["aws-dev", "--yes", *arguments]
        result = CliRunner().invoke(accept, command, obj=world, catch_exceptions=False)
        return Played(result, cloud, tmp_path)

    return played


def test_a_successful_run_passes_every_step_and_leaves_nothing_that_is_paid_for(play):
    played = play()

    assert played.code == 0, played.said
    assert played.status == dict.fromkeys([*NAMES, "tear-down"], "ok")
    assert played.evidence["passed"] is True
    assert not played.cloud.stands
    assert not played.cloud.fis_role
    (key,) = played.evidence["remaining"]
    assert (key["kind"], key["state"]) == ("kms", "PendingDeletion")
    assert list(played.folder.glob("stacks/*")) == []


def test_an_interrupted_run_resumes_on_the_instance_that_replaces_the_interrupted_one(play):
    played = play()

    facts = next(step["facts"] for step in played.evidence["steps"] if step["name"] == "resume")
    spots = [box.instance for box in played.cloud.boxes.values() if box.instance.spot]
    assert [spot.id for spot in spots][-1] == facts["instance"] != spots[0].id
    assert facts["result"]["resumed_from_step"] > 0
    assert facts["weights_equal"] is True


def test_where_the_cloud_refuses_the_interruption_the_stop_file_is_used_and_the_evidence_says_so(play):
    played = play("fis")

    assert played.code == 0, played.said
    assert "stop file" in played.observed["interrupt"]
    assert "AccessDeniedException" in played.evidence["notes"][0]
    assert not played.cloud.fis_role
    assert len([box for box in played.cloud.boxes.values() if box.instance.spot]) == 1


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
    ("falls silent", "people: heartbeat", "fallen silent"),
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

    assert played.evidence["passed"] is False
    assert played.cloud.boxes == {}
    assert played.status["up"] == "skipped"


@pytest.mark.parametrize("minute", [1, 5, 15, 30, 40])
def test_ctrl_c_at_any_time_tears_down_and_is_reported(play, minute):
    played = play(at=[(minute, KeyboardInterrupt())])

    assert played.code == 1
    assert played.evidence["stopped"] == "interrupted by the operator"
    assert played.status["tear-down"] == "ok"
    assert not played.cloud.stands


def test_an_unexpected_error_tears_down_too(play):
    played = play(at=[(20, ZeroDivisionError("out of the blue"))])

    assert "ZeroDivisionError" in " ".join(played.observed.values())
    assert played.status["tear-down"] == "ok"


def test_an_instance_of_a_type_without_a_known_price_ends_the_run(play):
    played = play("foreign type")

    assert played.code == 1
    assert "p5.48xlarge runs, whose price nobody knows" in played.evidence["stopped"]
    assert not played.cloud.stands


def test_the_run_ends_before_it_passes_its_cap(play):
    """Hundreds of instances where two were planned: the estimate follows what is seen."""
    cloud = PretendCloud(PretendClock(), pools=("people", "spot", *["spot"] * 300))

    played = play(cloud=cloud)

    assert played.code == 1
    assert played.evidence["stopped"].startswith("cost cap: ")
    assert float(played.evidence["accrued"]) < 20
    assert not cloud.stands


def test_a_plan_above_its_cap_is_refused_before_anything_is_started(tmp_path):
    cloud = PretendCloud(PretendClock())
    world = Surroundings(
        lambda stack, clock: cloud, lambda name, log: cloud, cloud.clock, stack_folder=tmp_path
    )

    result = CliRunner().invoke(accept, ["aws-dev", "--yes", "--max-usd", "2"], obj=world)

    assert result.exit_code == 1
    assert "--max-usd allows 2.00 USD; at worst the run costs" in result.output
    assert cloud.calls == []
    assert list(tmp_path.iterdir()) == []


def test_a_teardown_that_fails_says_what_is_left_and_what_it_costs_and_can_be_run_again(play, tmp_path):
    cloud = PretendCloud(PretendClock(), {"destroy"})

    played = play(cloud=cloud)

    assert played.code == 1
    assert cloud.torn_down == 3
    assert played.status["tear-down"] == "failed"
    assert "nat gateway nat-1 available, 0.0450 an hour" in played.said
    assert "gpu-fleet accept aws-dev --clean-up" in played.said
    assert [path.name for path in (tmp_path / "stacks").iterdir()] == ["Pulumi.aws-dev-accept.yaml"]

    for file in (tmp_path / "evidence").iterdir():
        file.unlink()
    cloud.broken = set()
    again = play(cloud=cloud, arguments=["--clean-up"])

    assert again.code == 0, again.said
    assert not cloud.stands
    assert list((tmp_path / "stacks").iterdir()) == []


def test_a_second_run_beside_one_that_is_not_torn_down_is_refused(play, tmp_path):
    played = play("destroy")
    again = CliRunner().invoke(
        accept,
        ["aws-dev", "--yes"],
        obj=Surroundings(
            lambda stack, clock: played.cloud,
            lambda name, log: played.cloud,
            played.cloud.clock,
            stack_folder=tmp_path / "stacks",
        ),
    )

    assert again.exit_code == 1
    assert "an earlier run was not torn down" in again.output


def test_what_is_still_paid_for_after_a_destroy_that_agreed_is_no_success(play):
    played = play("stays")

    assert played.code == 1
    assert played.status["tear-down"] == "failed"
    assert "still there and paid for: nat gateway nat-1" in played.observed["tear-down"]


def test_what_cannot_be_listed_at_the_end_is_no_success(play):
    played = play("left")

    assert played.code == 1
    assert "UnauthorizedOperation" in played.observed["tear-down"]
    assert "look for the stack's tag by hand" in played.page


def test_a_stack_of_an_emulator_proves_nothing_and_is_refused():
    result = CliRunner().invoke(accept, ["local"])

    assert result.exit_code == 1
    assert "a proof needs an account" in result.output


def test_a_stack_whose_instances_run_nothing_of_ours_is_refused(monkeypatch):
    def changed(path, config_of=stack_files.config_of):
        config = config_of(path)
        return config | {"gpu-fleet:image": config["gpu-fleet:image"] | {"mode": "none"}}

    monkeypatch.setattr(stack_files, "config_of", changed)
    result = CliRunner().invoke(accept, ["aws-dev", "--plan"])

    assert result.exit_code == 1
    assert "image.mode = 'none': its instances run no agent" in result.output


def test_credentials_of_another_account_are_refused(play, monkeypatch, tmp_path):
    cloud = PretendCloud(PretendClock())
    monkeypatch.setattr(cloud, "identity", lambda: "999999999999")
    world = Surroundings(
        lambda stack, clock: cloud, lambda name, log: cloud, cloud.clock, stack_folder=tmp_path
    )

    result = CliRunner().invoke(accept, ["aws-dev", "--yes"], obj=world)

    assert result.exit_code == 1
    assert "the credentials are of account 999999999999" in result.output
    assert cloud.torn_down == 0


def test_the_evidence_hides_the_account_and_names_calls_times_and_versions(play):
    played = play()

    assert played.evidence["account"] == "********9012"
    assert "123456789012" not in played.page
    assert played.evidence["versions"]["pulumi CLI"] == "v3.260.0"
    launch = next(step for step in played.evidence["steps"] if step["name"] == "spot: launch")
    assert launch["calls"][0]["request_id"] == "id-1"
    assert launch["started"] <= launch["ended"]
    assert next(step for step in played.evidence["steps"] if step["name"] == "up")["seconds"] == 240
    costs = [float(step["accrued"]) for step in played.evidence["steps"]]
    assert costs == sorted(costs)
    assert costs[-1] > 0


def test_the_evidence_is_there_after_every_step(play, tmp_path):
    """An instance that is switched off in the middle leaves what had been seen."""
    seen = []

    class Watching(PretendCloud):
        def tag(self, instance_id, tags):
            seen.extend((tmp_path / "evidence").glob("*.json"))
            super().tag(instance_id, tags)

    play(cloud=Watching(PretendClock()))

    assert seen


def test_a_declined_question_starts_nothing(play, tmp_path):
    cloud = PretendCloud(PretendClock())
    world = Surroundings(
        lambda stack, clock: cloud, lambda name, log: cloud, cloud.clock, stack_folder=tmp_path
    )

    result = CliRunner().invoke(accept, ["aws-dev"], obj=world, input="n\n")

    assert result.exit_code == 1
    assert not cloud.boxes
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_fails_keeps_its_words():
    assert str(EngineError("pulumi up: exit code 1")) == "pulumi up: exit code 1"

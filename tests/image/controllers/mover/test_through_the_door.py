"""From 0 instances to an owned one in moto: the function's own archive, the console's own command."""

import json
import time
import zipfile
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import boto3
import pytest
from click.testing import CliRunner
from moto.autoscaling.models import FakeAutoScalingGroup
from moto.autoscaling.responses import AutoScalingResponse
from moto.core.responses import ActionResult

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.users.take import LOOK_EVERY_S, Desk
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_stacks.rehearsal import sweeps
from gpu_fleet_stacks.rehearsal.archives import zip_bytes
from tests.image.door import BUCKET, REGION, Door
from tests.stacks import examples
from tests.stacks.registrations import run
from tests.stacks.standing import standing

NO_ROOM = "InsufficientInstanceCapacity: we currently do not have sufficient g5.xlarge capacity"
WHERE = ("--stack", "test", "--region", REGION, "--cloud", "aws", "--account", "123456789012")
FULL_ZONES: set[str] = set()
FULL_MARKETS: set[str] = set()
FAILED_AT: dict[str, datetime] = {}


def _is_full(group: FakeAutoScalingGroup) -> bool:
    return _market(group) in FULL_MARKETS or bool(FULL_ZONES & set(group.availability_zones))


def _market(group: FakeAutoScalingGroup) -> str:
    shares = group.mixed_instances_policy["InstancesDistribution"]
    return "on-demand" if int(shares["OnDemandPercentageAboveBaseCapacity"]) else "spot"


@pytest.fixture(autouse=True)
def zones(monkeypatch):
    """moto always has room: a group in a full zone wants instances, and its launches fail."""
    FULL_ZONES.clear()
    FULL_MARKETS.clear()
    FAILED_AT.clear()
    launch = FakeAutoScalingGroup.set_desired_capacity

    def set_desired(group: FakeAutoScalingGroup, wanted: int | None) -> None:
        if not _is_full(group) or (wanted or 0) <= len(group.active_instances()):
            return launch(group, wanted)
        group.desired_capacity = wanted
        FAILED_AT[group.name] = datetime.now(UTC)
        return None

    def activities(response: AutoScalingResponse) -> ActionResult:
        name = response._get_param("AutoScalingGroupName")
        rows = [_failure(name, FAILED_AT[name])] if name in FAILED_AT else []
        return ActionResult({"Activities": rows})

    monkeypatch.setattr(FakeAutoScalingGroup, "set_desired_capacity", set_desired)
    monkeypatch.setattr(AutoScalingResponse, "describe_scaling_activities", activities)


def _failure(group: str, at: datetime) -> dict[str, Any]:
    return {
        "ActivityId": "a-1",
        "AutoScalingGroupName": group,
        "Description": "Launching a new EC2 instance.  Status Reason: no room",
        "Cause": "the desired capacity was raised",
        "StartTime": at,
        "EndTime": at,
        "StatusCode": "Failed",
        "StatusMessage": NO_ROOM,
    }


@pytest.fixture
def started(tmp_path_factory, lambda_packages, request):
    """A door whose passes are interpreters of their own."""
    own = {"groups": "per_zone"} | getattr(request, "param", {})
    size = {"min": 0, "desired": 0, "max": 2}
    pool = examples.pool(name="train", types=["g5.xlarge"], size=size, purpose="training", **own)
    settings = examples.stack(pools=[pool])

    def make() -> Door:
        folder = tmp_path_factory.mktemp("door")
        rehearsed = run(settings)
        # moto holds denials of a bucket policy without their conditions, so that nobody could write at all
        boto3.client("s3", REGION).delete_bucket_policy(Bucket=BUCKET)
        sweeps.by_function(sweeps.unpacked(rehearsed, folder / "sweep"))  # it begins to meter
        door = Door(rehearsed, folder / "code", lambda_packages)
        with zipfile.ZipFile(BytesIO(zip_bytes(door.function.inputs["code"]))) as archive:
            archive.extractall(door.code)
        return door

    with standing(("door", repr(settings)), REGION, make) as door:
        yield door


@pytest.fixture
def door(started, forked_functions):
    """A door whose passes are forked."""
    return started


def put(door, key: str, content: dict[str, Any]) -> None:
    boto3.client("s3", REGION).put_object(
        Bucket=BUCKET, Key=f"reaper/{key}", Body=json.dumps(content).encode()
    )


def get(key: str) -> dict[str, Any]:
    found = boto3.client("s3", REGION).get_object(Bucket=BUCKET, Key=f"reaper/{key}")
    return dict(json.load(found["Body"]))


@pytest.fixture
def say(door, monkeypatch):
    """The console's command; while it waits, the mover's minute comes and agents report."""
    sleep, minutes = time.sleep, iter(range(5))

    def minute(seconds: float) -> None:
        if seconds != LOOK_EVERY_S:
            return sleep(seconds)
        assert next(minutes, None) is not None, "too many minutes passed"
        done = door.move()
        assert done["failed"] == []
        door.pass_the_gate()
        return None

    monkeypatch.setattr(time, "sleep", minute)
    return lambda *words: CliRunner().invoke(main, [*words, *WHERE])


def test_from_no_instance_to_an_owned_one_in_the_zone_that_has_room(door, say):
    FULL_ZONES.add("us-east-1a")

    said = say("take", "train", "--hours", "8", "--yes")

    (tags,) = door.taken()
    assert said.exit_code == 0, said.output
    assert f"no room in train-us-east-1a: {NO_ROOM}" in said.output
    assert f"{tags['id']} is ready: gpu-fleet connect {tags['id']} --stack test" in said.output
    assert "of 5,000 USD are left this month" in said.output
    assert (tags["gpu-fleet:owner"], tags["gpu-fleet:keep-reason"]) == ("moto", "taken by moto")
    assert datetime.now(UTC) - datetime.fromisoformat(tags["gpu-fleet:taken-at"]) < timedelta(minutes=9)
    assert door.wanted() == {"us-east-1a": 0, "us-east-1b": 1}
    lines = [(record["action"], record["desired_before"], record["desired"]) for record in door.ledger()]
    assert lines == [
        *(("accept", None, None), ("start", 0, 1), ("withdraw", 1, 0), ("start", 0, 1), ("give", None, None))
    ]


@pytest.fixture
def gives_up(door, monkeypatch):
    """Its user waits for so many passes of the mover, and not any longer."""

    def after(passes: int) -> None:
        def interrupted(seconds: float) -> None:
            for _ in range(passes):
                door.move()
            raise KeyboardInterrupt

        monkeypatch.setattr(time, "sleep", interrupted)

    return after


@pytest.mark.parametrize("passes", [0, 1], ids=["before the mover", "after the mover"])
def test_who_stops_waiting_has_withdrawn_the_request(door, say, gives_up, passes):
    FULL_ZONES.update(door.groups())

    gives_up(passes)

    said = say("take", "train", "--hours", "8", "--yes")
    door.move()
    FULL_ZONES.clear()
    door.move()

    assert said.exit_code != 0
    assert "the request is withdrawn" in said.output
    assert "gpu-fleet give-back --stack test returns it" in said.output
    assert set(door.wanted().values()) == {0}
    assert (door.taken(), door.ledger()[-1]["reason"]) == ([], "withdrawn by moto")


def test_who_stops_waiting_for_what_has_come_is_reminded_that_it_is_paid_for(door, say, gives_up):
    gives_up(2)

    said = say("take", "train", "--hours", "8", "--yes")

    (tags,) = door.taken()
    assert f"nothing is left to withdraw; your instances, which cost money: {tags['id']}" in said.output


def test_who_may_not_withdraw_a_request_is_reminded_that_it_stands(say, gives_up, monkeypatch):
    def refused(self, key: str, caller: str) -> None:
        raise CloudError("PutObject: AccessDenied", "AccessDenied")

    gives_up(0)
    monkeypatch.setattr(Desk, "withdraw", refused)

    said = say("take", "train", "--yes")

    assert "the request could not be withdrawn (PutObject: AccessDenied)" in said.output


SPOT = {"groups": "single", "market": "spot", "on_demand_fallback": True}


@pytest.mark.parametrize("started", [SPOT], indirect=True)
def test_where_no_spot_instance_is_to_be_had_one_is_bought_on_demand_at_that_price(door, say):
    FULL_MARKETS.add("spot")

    said = say("take", "train", "--yes")

    (tags,) = door.taken()
    found = boto3.client("autoscaling", REGION).describe_auto_scaling_groups()["AutoScalingGroups"]
    wanted = {group["AutoScalingGroupName"]: group["DesiredCapacity"] for group in found}
    assert said.exit_code == 0, said.output
    assert "at most 1.03 USD an hour" in said.output  # of g5.xlarge on demand, with its disk
    assert f"no room in train: {NO_ROOM}" in said.output
    assert sorted(wanted.values()) == [0, 1]
    assert "-train-on-demand" in tags["aws:autoscaling:groupName"]
    assert wanted[tags["aws:autoscaling:groupName"]] == 1


def test_an_instance_that_is_given_back_loses_its_hold_and_asks_the_sweep(door, say):
    say("take", "train", "--hours", "8", "--yes")

    said = say("give-back")

    (tags,) = door.taken()
    assert said.exit_code == 0, said.output
    assert "gpu-fleet:give-back" in tags
    assert not {"gpu-fleet:keep-until", "gpu-fleet:keep-reason"} & tags.keys()


def taken_by(door, who: str) -> dict[str, str]:
    """The tags of an instance that another took."""
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    put(door, f"capacity/requests/{day}/users/{who}/100000Z-0e.json", {"pool": "train", "count": 1})
    door.move()
    door.move()
    (tags,) = door.taken()
    return tags


def test_an_instance_that_another_took_is_given_back_by_who_says_so_alone(door, say):
    instance = taken_by(door, "eve")["id"]

    refused = {words: say("give-back", *words) for words in ((), (instance,), (instance, "--owner", "bob"))}
    assert [refusal.exit_code for refusal in refused.values()] == [1, 1, 1]
    missing = f"--owner is missing: {instance} (train, g5.xlarge, eve) was taken by eve"
    assert missing in refused[(instance,)].output
    assert "gpu-fleet:give-back" not in door.taken()[0]

    said = say("give-back", instance, "--owner", "eve")

    (tags,) = door.taken()
    assert said.exit_code == 0, said.output
    assert tags["gpu-fleet:give-back"].endswith(" moto")
    assert "given back by moto, not by its owner eve: the pool's times apply" in said.output


@pytest.mark.parametrize(
    ("hours", "says"),
    [
        ([], "given back by moto; the sweep is to terminate it once nothing has run there for 5 min"),
        ([{"start": "00:00", "end": "00:00"}], "not terminated for now"),
    ],
)
def test_who_gives_back_is_shown_what_holds_it_up(door, say, hours, says):
    taken_by(door, "moto")
    policy = get("policy.json")
    policy["pools"]["train"] |= {"quiet_weekends": bool(hours), "quiet_hours": hours}
    put(door, "policy.json", policy)

    said = say("give-back")

    assert says in said.output
    assert ("quiet hours in" in said.output) is bool(hours)


def test_a_question_that_makes_no_sense_is_answered_before_anybody_is_asked(door, say):
    answers = {
        ("nowhere",): "POOL 'nowhere': no such pool; stack test has train",
        ("train", "--count", "3"): "--count 3; allowed: up to 2, size.max of train",
        ("train", "--hours", "0"): "0<x<=336",
        ("train", "--hours", "400"): "0<x<=336",
    }

    said = {words: say("take", *words, "--yes") for words in answers}

    assert [words for words, value in said.items() if answers[words] not in value.output] == []
    assert all(function.exit_code != 0 and "Traceback" not in function.output for function in said.values())
    assert door.ledger() == []


def test_past_the_budget_nothing_is_taken_and_the_answer_says_what_is_left(door, say):
    found = get("meter.json")
    put(door, "meter.json", found | {"month": {"train": "4990", "_shared": "9.9"}})

    said = say("take", "train", "--yes")

    assert said.exit_code == 1
    assert "of the month's budget are left" in said.output
    assert [record["action"] for record in door.ledger()] == ["refuse"]


def with_budget(door: Any, **changes: Any) -> str:
    """Change the budget of the policy that command and function read; the month."""
    policy = get("policy.json")
    policy["budget"] |= changes
    policy["budget"]["pools"]["train"]["freezes"] = True
    (door.code / "policy.json").write_text(json.dumps(policy))
    put(door, "policy.json", policy)
    return f"{datetime.now(UTC):%Y-%m}"


def test_a_frozen_pool_is_not_taken_from_and_the_answer_says_what_lifts_it(door, say):
    month = with_budget(door, on_exceeded="freeze")
    freeze = {"month": month, "stage": "capped", "since": None, "lifted": "open", "groups": {}}
    put(door, "freeze.json", {"schema_version": 1} | freeze)

    said = say("take", "train", "--yes")

    assert said.exit_code == 1
    assert "train is frozen, since the budget is spent: gpu-fleet unfreeze lifts it" in said.output
    assert [record["action"] for record in door.ledger()] == ["refuse"]


def freeze_team(door: Any, team: str) -> None:
    """A team has spent more than its budget, and is frozen."""
    month = with_budget(door, teams={team: {"monthly": "20", "on_exceeded": "freeze"}})
    spent = {"spent": "20.52", "monthly": "20", "passed": 100, "frozen": True, "lifted": False}
    budgets = {"schema_version": 1, "month": month, "days": {}, "unread": [], "teams": {team: spent}}
    put(door, "team-budgets.json", budgets)


def test_who_has_no_account_is_frozen_with_those_without_a_team_whose_budget_pays(door, say):
    freeze_team(door, "no-team")
    put(door, "accounts.json", {"schema_version": 1, "users": []})

    refused = say("take", "train", "--yes")

    assert refused.exit_code == 1
    assert "team no-team has spent 20.52 of 20 USD this month, and is frozen" in refused.output


def test_who_is_in_a_frozen_team_takes_nothing_and_others_go_on(door, say):
    freeze_team(door, "vision")

    def says_for(team: str) -> Any:
        user = {"name": "moto", "uid": 5001, "keys": [], "team": team, "team_gid": 30001, "admin": False}
        put(door, "accounts.json", {"schema_version": 1, "users": [user]})
        return say("take", "train", "--yes")

    refused, taken = says_for("vision"), says_for("nlp")

    assert refused.exit_code == 1
    frozen = "team vision has spent 20.52 of 20 USD this month, and is frozen: gpu-fleet unfreeze --team"
    assert frozen in " ".join(refused.output.split())
    assert taken.exit_code == 0, taken.output
    assert [record["action"] for record in door.ledger()][:2] == ["refuse", "accept"]


def test_without_capacity_anywhere_the_answer_says_what_was_tried_and_what_may_help(door, monkeypatch):
    FULL_ZONES.update({"us-east-1a", "us-east-1b"})
    sleep, passes = time.sleep, iter(range(6))

    def five_minutes(seconds: float) -> None:
        if seconds != LOOK_EVERY_S:
            return sleep(seconds)
        assert next(passes, None) is not None, "too many passes"
        assert door.move()["failed"] == []
        state = get("capacity/state.json")
        for asked in state["requests"].values():
            asked["at"] = (datetime.fromisoformat(asked["at"]) - timedelta(minutes=5)).isoformat()
        return put(door, "capacity/state.json", state)

    monkeypatch.setattr(time, "sleep", five_minutes)

    said = CliRunner().invoke(main, ["take", "train", "--yes", *WHERE])

    assert said.exit_code == 1
    for zone in ("us-east-1a", "us-east-1b"):
        assert f"no room in train-{zone}: {NO_ROOM}" in said.output
    assert set(door.wanted().values()) == {0}
    assert "failed: no capacity anywhere" in said.output
    assert "what may help: another pool, zone or type" in said.output
    assert "Traceback" not in said.output


def test_a_request_under_a_made_up_name_is_passed_over(started):
    door = started
    """Whoever may write below ``sessions/AROA1:eve/`` writes no request of another by a longer key."""
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    asked = {"pool": "train", "count": 1, "hours": None}
    put(door, f"capacity/requests/{day}/sessions/AROA1:eve/users/ada/100000Z-0a.json", asked)
    put(door, f"capacity/requests/{day}/sessions/AIDA1/100000Z-0c.json", asked)  # a user's own id
    put(door, f"capacity/requests/{day}/users/eve/100000Z-0b.json", asked | {"owner": "ada"})

    door.move()
    door.move()

    assert [tags["gpu-fleet:owner"] for tags in door.taken()] == ["eve"]


def test_a_request_that_is_no_request_is_refused_and_harms_no_other(door):
    day = f"{datetime.now(UTC):%Y-%m-%d}"
    put(door, f"capacity/requests/{day}/users/eve/100000Z-0a.json", {"pool": 7, "count": -1})
    boto3.client("s3", REGION).put_object(
        Bucket=BUCKET, Key=f"reaper/capacity/requests/{day}/users/eve/100000Z-0b.json", Body=b"[" * 100_000
    )
    put(door, f"capacity/requests/{day}/users/eve/100000Z-0d.json", {"count": "7" * 3_000_000})
    put(door, f"capacity/requests/{day}/users/ada/100000Z-0c.json", {"pool": "train", "count": 1})

    done = door.move()

    assert done["failed"] == []
    assert [record["action"] for record in door.ledger()] == ["accept", "refuse", "refuse", "refuse", "start"]
    assert len(json.dumps(get("capacity/state.json"))) < 4096

"""What a pass does with its decisions when the cloud refuses one of them."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from gpu_fleet_image.controllers.mover import growth, mover
from gpu_fleet_image.controllers.mover.mover import _Mover
from gpu_fleet_image.controllers.mover.pool_view import Action, PlacementDecision
from gpu_fleet_image.core.capacity import QUEUED, REQUESTS, STATE, Coming, MoverState, Request, asked
from gpu_fleet_image.core.model import Group, Inventory
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.queue_need import FIRST_AFTER, FRESH, QUEUE, SILENT_AFTER, to_json
from gpu_fleet_image.core.reaper_errors import CloudError, DeadlineError
from gpu_fleet_image.core.store import StoredObject
from tests.image.cloud_of_groups import LABELS, NO_ROOM, START, Cloud, policy, request
from tests.image.controllers.metered import budget, prices

A, B = LABELS
MOVED, OTHER = "coming-1", "coming-2"


@dataclass
class Groups:
    """Scaling groups of a cloud that throttles some calls."""

    refused: tuple[str, ...]
    calls: list[str] = field(default_factory=list)

    def start(self, group: str, number: int) -> str:
        return self._call(f"start {number} in {group}")

    def withdraw(self, group: str, number: int) -> None:
        self._call(f"withdraw {number} from {group}")

    def _call(self, text: str) -> str:
        if text in self.refused:
            raise CloudError("set_desired_capacity: throttled", "RequestLimitExceeded")
        self.calls.append(text)
        return ""


def carried_out(*refused: str) -> tuple[list[str], MoverState]:
    """What becomes of an instance that is moved from the one zone to the other."""
    groups = Groups(refused)
    state = MoverState(coming=(Coming(MOVED, "train", QUEUED, START, group=B, since=START, goal=1),))
    decisions = [
        PlacementDecision(Action.WITHDRAW, "train", NO_ROOM, group=A, coming=(MOVED,), desired=1),
        PlacementDecision(Action.START, "train", "for the queue", group=B, coming=(MOVED,), desired=0),
        PlacementDecision(Action.START, "other", "for the queue", group="c", coming=(OTHER,), desired=0),
    ]
    return groups.calls, _mover(groups)._carry_out(state, decisions)


def _mover(groups: Groups, store: Any = None, own: Policy | None = None) -> _Mover:
    """A mover with a part of what it needs."""
    nothing: Any = None
    return _Mover(nothing, store, groups, own or policy(), lambda: START)  # type: ignore[arg-type]


def test_an_instance_moves_once_the_group_without_room_wants_it_no_more():
    calls, state = carried_out()

    assert calls == [f"withdraw 1 from {A}", f"start 1 in {B}", "start 1 in c"]
    assert state.coming[0].started


def test_where_a_group_could_not_be_lowered_its_pool_wants_no_more_elsewhere():
    """Both groups together would want more than the pool may have."""
    calls, state = carried_out(f"withdraw 1 from {A}")

    assert calls == ["start 1 in c"]
    assert state.coming == (Coming(MOVED, "train", QUEUED, START),)


@pytest.mark.parametrize("is_raised", [True, False])
@pytest.mark.parametrize("error", [CloudError("timed out", "ServiceUnavailable"), DeadlineError("no time")])
def test_a_start_whose_answer_is_lost_brings_one_instance_and_no_second_one(error, is_raised):
    cloud = Cloud()
    decisions = cloud.move(request(), until=2 if is_raised else 1)

    cloud.state = mover._failed(cloud.state, decisions[-1], cloud.now, error)
    cloud.minutes(10)

    assert decisions[-1].action is Action.START
    assert cloud.owned("ada") == list(cloud.instances) == ["i-0000"]
    assert sum(cloud.desired.values()) == 1


class OwnStore:
    """The records bucket of a stack whose mover begins; what is put there is ``written``."""

    def __init__(self) -> None:
        self.written: dict[str, Any] = {}

    def get(self, key: str) -> StoredObject | None:
        return StoredObject(self.written[key], "1") if key == STATE and key in self.written else None

    def newest(self, key: str, at_most: int) -> None:
        return None

    def listed(self, prefix: str) -> list[Any]:
        return []

    def put(self, key: str, content: dict[str, Any]) -> None:
        self.written[key] = content

    def move_on(self, key: str, content: dict[str, Any], version: str | None) -> str:
        self.written[key] = content
        return "1"

    def create(self, key: str, content: dict[str, Any]) -> None:
        self.written[key] = content


@pytest.fixture
def passes(monkeypatch):
    """Run a pass of a queue's mover over some groups, with a store."""

    def once(store: OwnStore, *groups: Group, spending: Any = None, now: datetime = START) -> Any:
        monkeypatch.setattr(mover, "read_spending", Mock(side_effect=spending, return_value=None))
        cloud: Any = SimpleNamespace(instances=Mock(fleet=lambda: Inventory((), groups)), store=store)
        return mover.move(cloud, Groups(()), policy(queue_gpus=8), lambda: now)

    return once


def test_each_pass_of_a_queues_mover_says_what_a_pool_has_and_is_about_to_have(passes):
    """One runs, one boots, and no instance of it is Slurm's yet."""
    store, title = OwnStore(), f"gpu-fleet-{policy().stack}-{A}"

    passes(store, Group(A, 0, 2, {"i-1": "InService"}, 4, "train", title=title))

    assert growth.Growth.from_json(store.written[growth.GROWTH], "growth.json").totals == {"train": 2}


def test_a_team_stays_frozen_while_nobody_can_read_what_it_has_spent(passes):
    """The queue's controller reads the last report, and lets Slurm start the jobs of all teams it omits."""
    store, last = OwnStore(), {"teams": {"vision": "it has spent 21 of 20 USD this month, and is frozen"}}
    store.written[growth.GROWTH] = last

    done = passes(store, spending=CloudError("team-budgets.json: slow down", "SlowDown"))

    assert [failure.step for failure in done.failures] == ["read the meter"]
    assert store.written[growth.GROWTH] == last


def test_a_group_is_one_site_though_its_label_begins_with_another():
    """Fallback groups are named after those of spot, and Pulumi ends a name on AWS with its own letters."""
    labels = ["train-us-east-1a", "train-us-east-1b", "train-us-east-1a-on-demand"]
    own = policy(groups=labels)
    groups = tuple(
        Group(f"{label}-0f9", 0, 0, {}, 4, "train", title=f"gpu-fleet-{own.stack}-{label}-0f9")
        for label in reversed(labels)
    )

    sites = _mover(Groups(()), own=own)._sites(Inventory((), groups), MoverState())["train"]

    assert [(site.label, site.group.name) for site in sites] == [(label, f"{label}-0f9") for label in labels]


@pytest.mark.parametrize(
    ("unread", "age", "heard"),
    [
        ((), SILENT_AFTER, ""),
        ((), SILENT_AFTER * 2, "has not reported since"),
        (("job 7: tasks",), FRESH, "cannot read 1 job"),
    ],
)
def test_a_queues_controller_that_is_silent_or_cannot_read_a_job_fails_the_pass(passes, unread, age, heard):
    """Once the pass is done: an error of the function, which is an alarm."""
    store, said = OwnStore(), StoredObject(to_json({}, START - age, unread), "v", age)
    store.newest = lambda key, *_: said if key == QUEUE else None

    done = passes(store)

    with pytest.raises(CloudError, match=heard) if heard else nullcontext():
        mover.log(done)


@pytest.mark.parametrize(
    ("said", "late"),
    [(None, FIRST_AFTER), (StoredObject({}, "v"), SILENT_AFTER)],
    ids=["none", "damaged"],
)
def test_a_queues_controller_of_which_no_report_was_ever_read_fails_the_pass_after_a_while(
    passes, said, late
):
    store = OwnStore()
    store.newest = lambda key, *_: said if key == QUEUE else None

    for after in (timedelta(), late):
        mover.log(passes(store, now=START + after))

    done = passes(store, now=START + late + timedelta(minutes=1))
    with pytest.raises(CloudError, match=f"since {START:%Y-%m-%dT%H:%M}.*: no job gets an instance"):
        mover.log(done)
    said = StoredObject(to_json({}, START), "v")
    mover.log(passes(store))
    assert "unheard" not in store.written[STATE]


def test_an_instance_more_of_a_reservation_costs_its_disks_alone():
    held = budget(pools={"dev": prices(on_demand={"g5.xlarge": Decimal(2)}, reserved=2), "train": prices()})

    found = mover.prices(SimpleNamespace(budget=held, pools={}), START)

    assert found == {"dev": Decimal("0.10"), "train": Decimal("32.10")}


def test_who_writes_many_requests_keeps_nobody_waiting():
    day = f"{START:%Y-%m-%d}"
    many = [f"{day}/users/ada/100000Z-{number:02x}" for number in range(200)]
    others = [f"{day}/sessions/AROA1:bob/110000Z-0b", f"{day}/users/zoe/110000Z-0a"]
    store: Any = SimpleNamespace(
        listed=lambda prefix: [
            SimpleNamespace(key=f"{REQUESTS}/{key}.json", age=timedelta())
            for key in [*many, *others]
            if f"{REQUESTS}/{key}".startswith(prefix)
        ],
        beginning=lambda *_: None,
    )
    own = _mover(Groups(()), store)

    def refused(number: int) -> dict[str, Request]:
        return {key: asked(key, {"pool": "?"}, START) for key in many[:number]}

    read = [request.key for request in own._requests(START, refused(1))]
    left = [request.key for request in own._requests(START, refused(150))]

    assert read[:3] == [*others, many[1]]
    assert len(read) < len(many)
    assert left == [*others, many[-1]]
    assert own._failures[-1].error == "49 requests not read: 150 of this hour were refused"

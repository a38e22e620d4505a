"""What the queue wants of the mover: as many instances as its jobs need, within every limit."""

import json
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal

import pytest

from gpu_fleet_image.controllers.mover.placement import decide
from gpu_fleet_image.controllers.mover.pool_view import Action, MoneyLeft, PoolView, Site
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.capacity import MoverState
from gpu_fleet_image.core.model import Group
from gpu_fleet_image.core.queue_need import PoolNeed
from tests.image.cloud_of_groups import LABELS, START, Cloud, policy, request
from tests.image.moto_fleet import policy_json, pool_policy

A, B = LABELS


def queued(*jobs: int, standing: int = 0, **changes) -> Cloud:
    return Cloud(policy=policy(queue_gpus=8), queue={"train": PoolNeed(standing, jobs)}, **changes)


@pytest.mark.parametrize(
    ("jobs", "frozen", "starts"),
    [((2,), (), 2), ((5, 2), (), 2), ((2,), ("train",), 0)],
    ids=["one", "one that does not fit, and a smaller one", "one of a frozen pool"],
)
def test_a_job_that_waits_brings_its_instances_once(jobs, frozen, starts):
    cloud = queued(*jobs, frozen=frozenset(frozen))

    cloud.minutes(4)

    assert cloud.desired == {A: starts, B: 0}
    assert len(cloud.instances) == starts


def test_what_boots_or_waits_for_a_place_is_of_the_pool_already():
    """Of it a job is not refused (``growth.json``), whatever Slurm knows of it yet."""
    cloud = queued()
    cloud.move()
    cloud.queue = {"train": PoolNeed(0, (2,))}
    cloud.move()
    cloud.minutes()
    cloud.queue, cloud.room = {"train": PoolNeed(2, (1,))}, dict.fromkeys(LABELS, False)
    cloud.minutes(3)

    assert [said["train"] for said in cloud.totals] == [0, 2, 2, 3, 3, 3]


def test_instances_at_work_do_not_serve_a_job_that_waits():
    cloud = queued(2)
    cloud.move()
    cloud.later()
    cloud.queue = {"train": PoolNeed(2, (1,))}

    cloud.move()

    assert sum(cloud.desired.values()) == 3


def test_where_money_is_short_the_reason_is_written_down_once():
    cloud = queued(2, left=Decimal(1))

    cloud.move()
    cloud.minutes()

    assert cloud.desired == {A: 0, B: 0}
    assert [decision.action for decision in cloud.ledger] == [Action.HOLD]


@pytest.mark.parametrize(
    ("jobs", "left", "starts", "says"),
    [
        ((1, 1, 1, 1, 1), 45, 4, "50.00 USD are needed, and 45.00"),
        ((2, 2, 1), 45, 4, "50.00 USD are needed, and 45.00"),
        ((3, 1, 2), 25, 1, "60.00 USD are needed, and 25.00"),
        ((2,), 15, 0, "20.00 USD are needed, and 15.00"),
    ],
)
def test_what_the_money_pays_for_starts_in_the_order_of_the_queue_and_no_part_of_a_job(
    jobs, left, starts, says
):
    cloud = queued(*jobs, left=Decimal(left))
    cloud.policy = policy(queue_gpus=8, max_size=8)

    cloud.minutes(3)

    assert len(cloud.instances) == starts
    (held,) = [decision for decision in cloud.ledger if decision.action is Action.HOLD]
    assert says in held.reason
    assert held.reason.endswith(f"; {starts} of them may start") is bool(starts)


def test_a_job_whose_money_is_spent_while_it_waits_for_a_place_starts_no_part_of_it():
    cloud = queued(2, room=dict.fromkeys(LABELS, False))
    cloud.minutes(3)
    cloud.room, cloud.left = dict.fromkeys(LABELS, True), Decimal(15)

    cloud.minutes(20)

    assert cloud.instances == {}


@pytest.mark.parametrize(("left", "most", "starts"), [(25, 8, 2), (1000, 2, 2), (5, 8, 0)])
def test_of_the_spares_those_start_that_money_and_size_allow(left, most, starts):
    cloud = Cloud(policy=policy(spare=3, max_size=most), left=Decimal(left))

    cloud.minutes(10)

    assert len(cloud.instances) == starts


def test_two_pools_do_not_both_spend_what_is_left():
    """The first job gets its two instances; with what is left the second would get one of two."""
    groups = {pool: Group(pool, 0, 0, {}, 4, pool, title=pool) for pool in ("dev", "train")}
    capacity = {"max_size": 4, "spare": 0, "scale_out_alarms": [], "queue_gpus": 8}
    pools = {pool: pool_policy(capacity=capacity | {"groups": [pool]}) for pool in groups}
    money = MoneyLeft(Decimal(35), dict.fromkeys(groups, Decimal(10)))
    sites = {pool: (Site(group, pool),) for pool, group in groups.items()}
    own = policies.parse(json.dumps(policy_json(pools=pools)))
    view = PoolView(START, own, sites, (), money, queue=dict.fromkeys(groups, PoolNeed(0, (2,))))

    _, decisions = decide(view, MoverState())

    assert [(done.action, len(done.coming)) for done in decisions] == [(Action.START, 2)]


def test_an_instance_that_still_waits_for_a_place_is_dropped_with_its_job():
    cloud = queued(1, room=dict.fromkeys(LABELS, False))
    cloud.minutes(3)
    cloud.queue = {}

    cloud.minutes(8)

    assert cloud.waiting() == ()
    assert cloud.desired == {A: 0, B: 0}


def test_an_instance_of_the_queue_has_no_owner_and_counts_against_no_user():
    cloud = queued(1)
    cloud.move()
    cloud.minutes()

    (instance,) = cloud.instances.values()
    assert (instance.tags["gpu-fleet:taken"], instance.owner) == ("queued", "")


def test_a_job_whose_instances_the_cloud_took_starts_in_the_next_zone():
    cloud = queued(2)
    cloud.move()
    cloud.minutes()
    cloud.interrupt(*cloud.instances)

    cloud.minutes(3)

    assert cloud.desired == {A: 0, B: 2}


def told(cloud: Cloud, standing: int, *jobs: int, nodes: Iterable[str]) -> int:
    """Let the queue say what it needs and which nodes it has; return what starts within an hour."""
    cloud.queue, before = {"train": PoolNeed(standing, jobs, frozenset(nodes))}, sum(cloud.desired.values())
    cloud.minutes(60)
    return sum(cloud.desired.values()) - before


def test_an_instance_in_no_group_runs_its_job_and_nothing_starts_for_that():
    cloud = queued()
    nodes = [cloud.outside() for _ in range(3)]

    assert told(cloud, 3, nodes=nodes) == 0
    assert told(cloud, 2, 1, nodes=nodes) == 0
    assert told(cloud, 3, 2, nodes=nodes) == 0  # size.max is 4
    assert told(cloud, 3, 1, nodes=nodes) == 1
    assert cloud.totals[-1] == {"train": 4}


def test_what_a_user_started_outside_leaves_less_of_the_pool_to_what_waits():
    cloud = Cloud(room=dict.fromkeys(LABELS, False))
    cloud.move(request(3))
    cloud.minutes(4)
    for _ in range(2):
        cloud.outside()
    cloud.room = dict.fromkeys(LABELS, True)

    cloud.minutes(10)

    assert len(cloud.instances) == 4


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_a_member_that_is_no_node_serves_no_job_and_keeps_its_place(state):
    cloud = queued(standing=1)
    cloud.minutes(2)
    (member,) = cloud.instances
    cloud.queue = {}
    cloud.minutes(19 * (state == "running"))
    cloud.instances[member] = replace(cloud.instances[member], state=state)
    cloud.queue = {"train": PoolNeed(0, (1,), frozenset())}

    cloud.minutes(4)

    assert len(cloud.instances) == 2
    assert told(cloud, 1, 3, nodes=["i-0001"]) == 0
    assert cloud.state.held["train"].startswith(
        f"no nodes of the queue: {member}; they count against size.max"
    )
    assert [decision.action for decision in cloud.ledger].count(Action.HOLD) == 1
    assert told(cloud, 1, nodes=["i-0001"]) == 0
    assert cloud.state.held == {}


def test_an_instance_that_boots_serves_the_job_and_after_three_in_vain_nothing_starts():
    cloud = queued()
    cloud.policy = policy(queue_gpus=8, max_size=8)
    cloud.groups = {label: replace(group, max_size=8) for label, group in cloud.groups.items()}

    assert told(cloud, 0, 1, nodes=()) + told(cloud, 0, 1, nodes=()) == 3
    assert [f"{decision.action}" for decision in cloud.ledger].count("start") == 3
    assert "i-0000, i-0001, i-0002" in cloud.state.held["train"]

"""What the queue wants of the mover: as many instances as its jobs need, within every limit."""

from decimal import Decimal

import pytest

from gpu_fleet_image.controllers.mover.pool_view import Action
from gpu_fleet_image.core.queue_need import PoolNeed
from tests.image.cloud_of_groups import LABELS, Cloud, policy

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

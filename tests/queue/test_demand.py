"""How many instances the jobs that wait need."""

from datetime import UTC, datetime, timedelta

import pytest

from image.capacity.queue_need import FRESH, PoolNeed, needs_of, to_json
from image.queue.demand import needs
from image.queue.slurm import Node, WaitingJob
from image.reaper.errors import CloudError

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
IDLE, BUSY, DRAINED = (frozenset(flags) for flags in (["IDLE"], ["ALLOCATED"], ["IDLE", "DRAIN"]))


def job(nodes: int, gpus: int = 0, pool: str = "train") -> WaitingJob:
    return WaitingJob("1", pool, nodes, gpus)


def need(*jobs: WaitingJob, nodes: tuple[Node, ...] = (), gpus: int = 8) -> PoolNeed:
    return needs(nodes, jobs, {"train": gpus})["train"]


def test_a_job_needs_its_instances_beside_those_that_are_at_work():
    nodes = tuple(Node(f"i-{number}", "train", flags) for number, flags in enumerate((IDLE, BUSY, DRAINED)))

    found = need(job(2), nodes=nodes)

    assert found == PoolNeed(2, (2,))
    assert found.wanted(10) == 4


def test_jobs_for_some_gpus_share_an_instance():
    assert need(job(1, 3), job(1, 3), job(1, 2), job(1, 4)).jobs == (1, 1)


@pytest.mark.parametrize("whole", [job(1), job(1, 8), job(2, 2)])
def test_any_other_job_gets_whole_instances(whole):
    assert need(job(1, 1), whole).jobs == (1, whole.nodes)


def test_jobs_of_a_partition_that_is_no_pool_start_nothing():
    assert need(job(3, pool="other")).jobs == ()


def test_a_job_gets_all_its_instances_or_none():
    assert PoolNeed(1, (2, 5, 1)).wanted(4) == 4
    assert PoolNeed(0, (5,)).wanted(4) == 0


def test_the_mover_reads_what_the_controller_wrote():
    said = {"train": PoolNeed(1, (2, 3))}

    assert needs_of(to_json(said, NOW), NOW + FRESH) == said


def test_an_old_word_of_the_controller_wants_nothing():
    assert needs_of(to_json({"train": PoolNeed(0, (2,))}, NOW), NOW + FRESH + timedelta(seconds=1)) == {}


@pytest.mark.parametrize("pools", [None, {"train": 1}, {"train": {"standing": "x", "jobs": []}}])
def test_a_damaged_word_is_refused(pools):
    with pytest.raises(CloudError, match=r"capacity/queue\.json"):
        needs_of({"at": "2026-11-23T10:00:00Z", "pools": pools}, NOW)

"""How many instances the jobs that wait need."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from image.capacity.queue_need import FRESH, SILENT_AFTER, PoolNeed, needs_of, to_json, trouble_of
from image.queue.answers import ListedJob
from image.queue.demand import needs
from image.queue.sizes import JobRequest, NodeSize, QueuePool
from image.queue.slurm import Node
from image.reaper.errors import CloudError
from tests.queue.test_books import RUNNING

NOW = datetime(2026, 11, 23, 10, 0, tzinfo=UTC)
IDLE, BUSY, DRAINED = (frozenset(flags) for flags in (["IDLE"], ["ALLOCATED"], ["IDLE", "DRAIN"]))
POOLS = {"train": QueuePool(NodeSize(8, 96, 1_000_000), 10)}


def job(request: JobRequest, number: int = 1, reason: str = "Resources", **changes: object) -> ListedJob:
    waits = replace(RUNNING, id=str(number), state="PENDING", reason=reason, on="")
    return ListedJob(waits, request, **changes)


def whole(nodes: int) -> JobRequest:
    return JobRequest(min_nodes=nodes, max_nodes=nodes, exclusive=True)


def need(*jobs: ListedJob, nodes: tuple[Node, ...] = (), **more: object) -> PoolNeed:
    return needs(nodes, jobs, POOLS, NOW, **more).needs["train"]


def test_a_job_needs_its_instances_beside_those_that_are_at_work():
    nodes = tuple(Node(f"i-{number}", "train", flags) for number, flags in enumerate((IDLE, BUSY, DRAINED)))

    counted = need(job(whole(2)), nodes=nodes)

    assert counted == PoolNeed(2, (2,))
    assert counted.wanted(10) == 4


def test_jobs_of_a_partition_that_is_no_pool_start_nothing():
    other = job(whole(3))

    assert need(replace(other, job=replace(other.job, pool="other"))).jobs == ()


def test_a_job_for_several_pools_gets_an_instance_of_the_first_that_could_run_it():
    pools = {"cpu": QueuePool(NodeSize(0, 96, 1_000_000), 10)} | POOLS
    listed = job(JobRequest(gpus=1), pools=("cpu", "train"))
    asked = replace(listed, job=replace(listed.job, pool="cpu"))

    demand = needs((), [asked], pools, NOW)

    assert (demand.needs["cpu"].jobs, demand.needs["train"].jobs) == ((), (1,))
    assert demand.refused == {}


def test_those_of_the_highest_priority_come_first():
    first, second = job(whole(1), 1, priority=1), job(whole(2), 2, priority=5)

    assert need(first, second).jobs == (2, 1)


@pytest.mark.parametrize(
    "reason", ["Dependency", "JobHeldUser", "JobArrayTaskLimit", "AssocGrpGRES", "QOSMaxJobsPerUserLimit"]
)
def test_a_job_that_waits_for_something_else_gets_nothing(reason):
    assert need(job(whole(1), reason=reason)).jobs == ()


def test_a_job_that_slurm_holds_for_whatever_reason_gets_nothing():
    assert need(job(whole(1), reason="JobHoldMaxRequeue", priority=0)).jobs == ()


def test_a_task_of_an_array_beyond_those_that_may_run_at_once_gets_nothing():
    runs = replace(job(whole(1), 5, array="5"), job=replace(RUNNING, id="6"))

    assert need(job(whole(1), 5, tasks=8, at_once=3, array="5"), runs).jobs == (1, 1)


def test_of_a_job_in_parts_none_gets_anything_where_one_can_never_run():
    parts = job(whole(1), 5, group="5"), job(JobRequest(gpus_per_node=16), 6, group="5")

    demand = needs((), parts, POOLS, NOW)

    assert demand.needs["train"].jobs == ()
    assert demand.refused["5"] == f"another part of it {demand.refused['6']}"


def test_the_word_of_a_silent_controller_is_an_alarm():
    said = to_json({}, NOW)

    assert trouble_of(said, NOW + SILENT_AFTER) == ""
    assert "has not spoken since 2026-11-23T10:00" in trouble_of(said, NOW + 2 * SILENT_AFTER)


def test_a_job_that_cannot_be_read_is_an_alarm():
    said = to_json({}, NOW, ["squeue --json: job 7: field 'tasks' is missing"])

    assert trouble_of(said, NOW).endswith(
        "1 jobs, and asks for none of theirs: squeue --json: job 7: field 'tasks' is missing"
    )


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

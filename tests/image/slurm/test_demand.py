"""Number of instances that waiting jobs need."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.queue_need import FRESH, SILENT_AFTER, PoolNeed, needs_of, to_json, trouble_of
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.slurm.answers import ListedJob
from gpu_fleet_image.slurm.demand import needs
from gpu_fleet_image.slurm.sizes import JobRequest, NodeSize, QueuePool, fit
from gpu_fleet_image.slurm.slurm import Node
from tests.image.slurm.test_job_records import RUNNING

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


def group(*requests: JobRequest, **changes: object) -> list[ListedJob]:
    return [job(request, number, group="1", **changes) for number, request in enumerate(requests, 1)]


@pytest.mark.parametrize(
    ("requests", "number"),
    [
        ((whole(5), whole(6)), 11),
        ((JobRequest(gpus=8), JobRequest(min_nodes=10, max_nodes=10, gpus=10)), 11),
    ],
)
def test_a_job_whose_parts_need_more_than_their_pool_may_have_is_told_so_and_gets_nothing(requests, number):
    demand = needs((), group(*requests), POOLS, NOW)

    assert demand.needs["train"].jobs == ()
    why = f"asks for {number} instances in all its parts, size.max of pool train is 10"
    assert (demand.refused, demand.fits) == ({"1": why, "2": why}, {})


def test_a_job_in_parts_waits_with_all_of_them_where_one_finds_no_room():
    """One part's pool is full, or the team's limit fits the other part alone; the next job gets the room."""
    pools = POOLS | {"full": QueuePool(NodeSize(8, 96, 1_000_000), 1)}
    first, second = group(whole(2), whole(1))
    full = first, replace(second, job=replace(second.job, pool="full"))
    limited = group(JobRequest(gpus=8), JobRequest(gpus=8), team="nlp")
    busy = (Node("i-0", "full", BUSY),)
    runs = replace(job(whole(1), 4, team="nlp", gpus=1), job=replace(RUNNING, id="4"))

    assert needs(busy, [*full, job(whole(3), 3)], pools, NOW).needs["train"].jobs == (3,)
    assert need(runs, *limited, job(JobRequest(gpus=4), 3, team="nlp"), limits={"nlp": 16}).jobs == (1,)
    assert need(*group(whole(4), whole(4)), nodes=(*map(busy_node, range(3)),)).jobs == ()


@pytest.mark.parametrize(
    ("parts", "said"), [(1, "asks for 8 GPUs"), (2, "asks for 16 GPUs in all its parts")]
)
def test_a_job_beyond_what_its_team_may_ever_have_is_told_so_and_gets_nothing(parts, said):
    demand = needs((), group(*[JobRequest(gpus=8)] * parts, team="nlp"), POOLS, NOW, limits={"nlp": 7})

    assert demand.needs["train"].jobs == ()
    assert demand.refused["1"] == f"{said}, teams.nlp.max_gpus of the stack file is 7"


def test_gpus_of_a_job_that_gave_way_are_free_for_its_team_at_once():
    """Slurm lists a preempted job for some minutes, with what it had."""
    ran = job(JobRequest(gpus=8), 1, team="nlp", gpus=8)
    ran = replace(ran, job=replace(ran.job, state="PREEMPTED"))

    assert need(ran, job(JobRequest(gpus=8), 2, team="nlp"), limits={"nlp": 8}).jobs == (1,)


def test_parts_of_a_job_count_against_the_limit_of_the_team_that_each_is_for():
    first, second = group(JobRequest(gpus=8), JobRequest(gpus=8), team="nlp")

    assert need(first, replace(second, team="vision"), limits={"nlp": 8, "vision": 8}).jobs == (2,)


def test_a_job_of_which_a_part_cannot_be_read_gets_nothing():
    assert need(*group(whole(1), whole(2), is_whole=False)).jobs == ()


@pytest.mark.parametrize(("minutes", "jobs"), [(9, ()), (11, (1,))])
def test_a_job_that_must_begin_before_an_instance_is_there_gets_none_and_is_told_so(minutes, jobs):
    begin_by = NOW + timedelta(minutes=minutes)

    demand = needs((), [job(whole(1), begin_by_s=int(begin_by.timestamp()))], POOLS, NOW)

    assert demand.needs["train"].jobs == jobs
    why = "must start by 2026-11-23 10:09 UTC, before another instance could be ready (--deadline)"
    assert list(demand.refused.values()) == ([] if jobs else [why])


def busy_node(number: int) -> Node:
    return Node(f"i-{number}", "train", BUSY)


@pytest.mark.parametrize("reason", ["Dependency", "JobHeldUser"])
def test_a_job_in_parts_waits_with_all_of_them_where_one_waits_for_something_else(reason):
    first, second = group(whole(1), whole(1))

    assert need(first, replace(second, job=replace(second.job, reason=reason))).jobs == ()


def test_parts_of_a_job_share_no_instance():
    """22.05 starts --gpus=1 : --gpus=1 only on two nodes. Capacity left by other jobs fits one of them."""
    mixed = Node("i-0", "train", frozenset({"MIXED"}), left=NodeSize(7, 94, 900_000))
    parts = group(JobRequest(gpus=1), JobRequest(gpus=1))

    assert need(*parts).jobs == (2,)
    assert need(*parts, nodes=(mixed,)).jobs == (1,)


def test_a_free_node_that_jobs_are_kept_away_from_is_counted_once():
    nodes = Node("i-0", "train", IDLE), Node("i-1", "train", BUSY)
    three = [job(whole(1), number) for number in range(3)]
    excluded = {str(number): ["i-0"] for number in range(3)}

    assert need(*three, nodes=nodes, excluded=excluded) == PoolNeed(1, (2, 1, 1))
    assert need(job(whole(1), 0, tasks=4), nodes=nodes, excluded=excluded) == PoolNeed(1, (2, 1, 1, 1))


def test_a_free_node_that_one_job_is_kept_away_from_is_room_for_another():
    nodes = (Node("i-0", "train", IDLE),)

    assert need(job(whole(1), 1), job(whole(1), 2), nodes=nodes, excluded={"1": ["i-0"]}).jobs == (2,)
    assert need(job(whole(1), 1), job(whole(1), 2), nodes=nodes, excluded={"2": ["i-0"]}).jobs == (1, 1)


def test_a_node_of_another_pool_that_a_job_is_kept_away_from_buys_nothing():
    nodes = (Node("i-0", "other", IDLE),)

    assert need(job(whole(1)), nodes=nodes, excluded={"1": ["i-0"]}).jobs == (1,)


@pytest.mark.parametrize(
    ("reason", "age_s", "jobs"), [("Resources", 2, ()), ("Resources", 4, (1,)), ("", 4, ())]
)
def test_a_job_whose_reason_slurm_has_not_thought_about_gets_nothing_yet(reason, age_s, jobs):
    """22.05 gives a dependent job the reason Resources in its first second."""
    submitted = int(NOW.timestamp()) - age_s

    assert need(job(whole(1), reason=reason, submitted_s=submitted)).jobs == jobs


def test_the_word_of_a_silent_controller_is_an_alarm():
    said = to_json({}, NOW)

    assert trouble_of(said, NOW + SILENT_AFTER) == ""
    assert "has not reported since 2026-11-23T10:00" in trouble_of(said, NOW + 2 * SILENT_AFTER)


def test_a_job_that_cannot_be_read_is_an_alarm():
    said = to_json({}, NOW, ["squeue --json: job 7: field 'tasks' is missing"])

    assert trouble_of(said, NOW).endswith(
        "1 job, and requests no instances for it: squeue --json: job 7: field 'tasks' is missing"
    )


def test_a_change_of_teams_that_slurm_refused_is_an_alarm():
    said = to_json({}, NOW, refused=["sacctmgr add user ada: no such account", "another"])

    why = "Slurm refused 2 changes of users or teams: sacctmgr add user ada: no such account"
    assert trouble_of(said, NOW) == why


def test_a_job_gets_all_its_instances_or_none():
    assert PoolNeed(1, (2, 5, 1)).wanted(4) == 4
    assert PoolNeed(0, (5,)).wanted(4) == 0


def test_the_mover_reads_what_the_controller_wrote_until_it_is_old():
    said = {"train": PoolNeed(1, (2, 3))}

    assert needs_of(to_json(said, NOW), NOW + FRESH) == said
    assert needs_of(to_json(said, NOW), NOW + FRESH + timedelta(seconds=1)) == {}


@pytest.mark.parametrize(
    "pools",
    [None, {"train": 1}, {"train": {"standing": "x", "jobs": []}}, {"train": {"standing": inf, "jobs": []}}],
)
def test_a_damaged_word_is_refused(pools):
    with pytest.raises(CloudError, match=r"capacity/queue\.json"):
        needs_of({"at": "2026-11-23T10:00:00Z", "pools": pools}, NOW)


@pytest.mark.parametrize("name", ["unread", "refused"])
def test_a_damaged_number_of_troubles_is_refused(name):
    with pytest.raises(CloudError, match=f"{name} is no whole number"):
        needs_of(to_json({}, NOW) | {name: "5"}, NOW)


REQUESTS = st.builds(
    JobRequest,
    tasks=st.integers(1, 40),
    tasks_per_node=st.integers(0, 4),
    cpus=st.integers(1, 200),
    single_threads=st.booleans(),
    gpus=st.integers(0, 40),
    gpus_per_task=st.integers(0, 3),
    cpus_per_gpu=st.integers(0, 9),
    memory_per_cpu=st.integers(0, 99),
    memory_per_gpu=st.integers(0, 99),
    whole_memory=st.booleans(),
    whole_tasks=st.booleans(),
)


@given(REQUESTS, st.integers(1, 12))
def test_no_part_of_a_job_is_larger_than_its_first(request_of, number):
    first, *others = request_of.parts(number, POOLS["train"].size)

    least = replace(first, memory_mib=max(first.memory_mib, first.free_mib))
    assert all(map(least.holds, [first, *others]))


def test_a_task_whose_cpus_must_be_on_one_node_is_on_one():
    """22.05 splits the CPUs of three tasks among two instances, 23.11 does not."""
    asked = JobRequest(tasks=3, cpus=192, min_cpus=64)

    sizes = [fit(replace(asked, whole_tasks=whole), "pool train", POOLS["train"]) for whole in (False, True)]

    assert [placed.nodes for placed in sizes] == [2, 3]


def test_a_job_that_a_large_pool_can_never_run_is_refused_by_one_part_for_each_number(monkeypatch):
    """A hundred such jobs used to take a minute in a pool of a thousand, and nobody got capacity."""
    counted, part_of = [], JobRequest._part
    monkeypatch.setattr(JobRequest, "_part", lambda *words: counted.append(words) or part_of(*words))

    said = fit(JobRequest(memory=2_000_000), "pool train", QueuePool(POOLS["train"].size, 500))

    assert "of memory on one of 500 instances" in said
    assert len(counted) <= 2 * 500


def test_a_job_of_a_billion_instances_is_refused_without_counting_them(monkeypatch):
    """A part of each was made first, which used up the controller's memory, so nobody got capacity."""
    monkeypatch.setattr(JobRequest, "parts", lambda *_words: pytest.fail("made"))

    said = fit(JobRequest(gpus=10**9, gpus_per_node=1), "pool train", POOLS["train"])

    assert said == "asks for 1,000,000,000 instances, size.max of pool train is 10"

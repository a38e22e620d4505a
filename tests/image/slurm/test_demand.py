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
SIZE = NodeSize(8, 96, 1_000_000)
POOLS = {"train": QueuePool(SIZE, 10), "full": QueuePool(SIZE, 1)}
FLAGS = {"i": frozenset({"IDLE"}), "b": frozenset({"ALLOCATED"}), "d": frozenset({"IDLE", "DRAIN"})}


def nodes(states: str, pool: str = "train") -> tuple[Node, ...]:
    """Return a node for each letter: idle, busy or drained."""
    return tuple(Node(f"i-{number}", pool, FLAGS[state]) for number, state in enumerate(states))


def job(request: JobRequest, number: int = 1, reason: str = "Resources", **changes: object) -> ListedJob:
    waits = replace(RUNNING, id=str(number), state="PENDING", reason=reason, on="")
    return ListedJob(waits, request, **changes)


def changed(listed: ListedJob, **changes: object) -> ListedJob:
    return replace(listed, job=replace(listed.job, **changes))


def whole(count: int) -> JobRequest:
    return JobRequest(min_nodes=count, max_nodes=count, exclusive=True)


def group(*requests: JobRequest, **changes: object) -> list[ListedJob]:
    return [job(request, number, group="1", **changes) for number, request in enumerate(requests, 1)]


ONE, EIGHT = JobRequest(gpus=1), JobRequest(gpus=8)
FIRST, SECOND = group(whole(2), whole(1))
OF_NLP, OTHERS = group(EIGHT, EIGHT, team="nlp")
MIXED = Node("i-0", "train", frozenset({"MIXED"}), left=NodeSize(7, 94, 900_000))
SECOND_S = int(NOW.timestamp())
ARRAY = {"array": "5", "number": 5}
AWAY = {str(number): ["i-0"] for number in range(3)}
RUNS = changed(job(whole(1), 4, team="nlp", gpus=1), state="RUNNING")
ENDED = changed(job(EIGHT, 1, team="nlp", gpus=8), state="PREEMPTED")
# Jobs, what else there is -> the instances that each of them wants.
WANTED = [
    # a partition that is no pool starts nothing
    ([changed(job(whole(3)), pool="other")], {}, ()),
    # those of the highest priority come first
    ([job(whole(1), 1, priority=1), job(whole(2), 2, priority=5)], {}, (2, 1)),
    # a job that waits for something else, or is held, gets nothing
    *(
        ([job(whole(1), reason=reason)], {}, ())
        for reason in (
            "Dependency",
            "JobHeldUser",
            "JobArrayTaskLimit",
            "AssocGrpGRES",
            "QOSMaxJobsPerUserLimit",
        )
    ),
    ([job(whole(1), reason="JobHoldMaxRequeue", priority=0)], {}, ()),
    # of an array as many as may run at once, beside those that do
    (
        [
            job(whole(1), tasks=8, at_once=3, **ARRAY),
            changed(job(whole(1), **ARRAY), id="6", state="RUNNING"),
        ],
        {},
        (1, 1),
    ),
    # of a job in parts none is served where one waits for something else, cannot be read,
    *(([FIRST, changed(SECOND, reason=reason)], {}, ()) for reason in ("Dependency", "JobHeldUser")),
    (group(whole(1), whole(2), is_whole=False), {}, ()),
    # finds its pool full, or its team at its limit; the next job gets the room
    ([FIRST, changed(SECOND, pool="full"), job(whole(3), 3)], {"nodes": nodes("b", "full")}, (3,)),
    ([RUNS, OF_NLP, OTHERS, job(JobRequest(gpus=4), 3, team="nlp")], {"limits": {"nlp": 16}}, (1,)),
    (group(whole(4), whole(4)), {"nodes": nodes("bbb")}, ()),
    # its parts count for the team that each is for
    ([OF_NLP, replace(OTHERS, team="vision")], {"limits": {"nlp": 8, "vision": 8}}, (2,)),
    # and share no instance: 22.05 starts --gpus=1 : --gpus=1 on two, also on what others left
    (group(ONE, ONE), {}, (2,)),
    (group(ONE, ONE), {"nodes": (MIXED,)}, (1,)),
    # GPUs of a job that gave way are free for its team at once, though Slurm lists it for some minutes
    ([ENDED, job(EIGHT, 2, team="nlp")], {"limits": {"nlp": 8}}, (1,)),
    # a free node that jobs are kept away from is counted once, is room for others, and none in another pool
    ([job(whole(1), n) for n in range(3)], {"nodes": nodes("ib"), "excluded": AWAY}, (2, 1, 1)),
    ([job(whole(1), 0, tasks=4)], {"nodes": nodes("ib"), "excluded": AWAY}, (2, 1, 1, 1)),
    ([job(whole(1), 1), job(whole(1), 2)], {"nodes": nodes("i"), "excluded": {"1": ["i-0"]}}, (2,)),
    ([job(whole(1), 1), job(whole(1), 2)], {"nodes": nodes("i"), "excluded": {"2": ["i-0"]}}, (1, 1)),
    ([job(whole(1))], {"nodes": nodes("i", "other"), "excluded": AWAY}, (1,)),
    # 22.05 gives a dependent job the reason Resources in its first second
    ([job(whole(1), submitted_s=SECOND_S - 2)], {}, ()),
    ([job(whole(1), submitted_s=SECOND_S - 4)], {}, (1,)),
    ([job(whole(1), reason="", submitted_s=SECOND_S - 4)], {}, ()),
]


def need(*jobs: ListedJob, nodes: tuple[Node, ...] = (), **more: object) -> PoolNeed:
    return needs(nodes, jobs, POOLS, NOW, **more).needs["train"]


def test_waiting_jobs_want_the_instances_that_would_start_them_and_no_others():
    assert [row for row in WANTED if need(*row[0], **row[1]).jobs != row[2]] == []


@pytest.mark.parametrize(
    ("jobs", "polls"),
    [
        # second of Slurm's last try of it, at each poll -> whether it gets an instance of its own
        ([job(ONE)], ((0, 9, ()), (30, 9, ()), (60, 61, (1,)))),
        # the room may be newer than this try, after which Slurm tries it no more or does not say when
        ([job(ONE)], ((0, 0, ()), (15, 0, ()), (119, 0, ()), (120, 0, (1,)))),
        # the first scheduler looks at it and leaves it to the second
        (group(ONE, ONE), ((0, 0, ()), (119, 119, ()), (120, 119, (2,)))),
    ],
)
def test_a_job_is_bought_one_beside_where_it_seems_to_fit_once_slurm_has_tried_that_in_vain(jobs, polls):
    there, roomy = (MIXED, replace(MIXED, name="i-1"))[: len(jobs)], {}
    for seconds, tried, wanted in polls:
        now, tried_s = NOW + timedelta(seconds=seconds), SECOND_S + tried
        found = needs(there, [replace(one, tried_s=tried_s) for one in jobs], POOLS, now, roomy=roomy)
        assert (seconds, found.needs["train"].jobs) == (seconds, wanted)
        roomy = found.roomy


def test_a_job_needs_its_instances_beside_those_that_are_at_work():
    counted = need(job(whole(2)), nodes=nodes("ibd"))

    assert counted == PoolNeed(2, (2,), frozenset({"i-0", "i-1", "i-2"}))
    assert counted.wanted(10) == 4


def test_a_job_for_several_pools_gets_an_instance_of_the_first_that_could_run_it():
    pools = {"cpu": QueuePool(NodeSize(0, 96, 1_000_000), 10)} | POOLS

    demand = needs((), [changed(job(ONE, pools=("cpu", "train")), pool="cpu")], pools, NOW)

    assert (demand.needs["cpu"].jobs, demand.needs["train"].jobs) == ((), (1,))
    assert demand.refused == {}


NEVER = "asks for 16 GPUs on one of 10 instances, one of pool train has 8"
MANY = "asks for 11 instances in all its parts, size.max of pool train is 10"
LIMIT = ", teams.nlp.max_gpus of the stack file is 7"
LATE = "must start by 2026-11-23 10:09 UTC, before another instance could be ready (--deadline)"
# Jobs that can never start -> what is said of each.
REFUSED = [
    (group(whole(1), JobRequest(gpus_per_node=16)), {"1": f"another part of it {NEVER}", "2": NEVER}),
    (group(whole(5), whole(6)), {"1": MANY, "2": MANY}),
    (group(EIGHT, JobRequest(min_nodes=10, max_nodes=10, gpus=10)), {"1": MANY, "2": MANY}),
    (group(EIGHT, team="nlp"), {"1": f"asks for 8 GPUs{LIMIT}"}),
    (group(EIGHT, EIGHT, team="nlp"), dict.fromkeys("12", f"asks for 16 GPUs in all its parts{LIMIT}")),
    ([job(whole(1), begin_by_s=SECOND_S + 9 * 60)], {"1": LATE}),
]


def test_a_job_that_can_never_start_is_told_why_and_gets_nothing():
    found = [(jobs, needs((), jobs, POOLS, NOW, limits={"nlp": 7})) for jobs, _ in REFUSED]

    assert [(jobs, demand.refused) for jobs, demand in found] == REFUSED
    assert {(demand.needs["train"].jobs, *demand.fits) for _, demand in found} == {((),)}
    assert need(job(whole(1), begin_by_s=SECOND_S + 11 * 60)).jobs == (1,)


def test_whatever_keeps_the_queue_from_its_work_is_an_alarm():
    unread = to_json({}, NOW, ["squeue --json: job 7: field 'tasks' is missing"])
    refused = to_json({}, NOW, refused=["sacctmgr add user ada: no such account", "another"])

    silent = trouble_of(to_json({}, NOW), NOW + 2 * SILENT_AFTER, 2 * SILENT_AFTER)

    assert trouble_of(to_json({}, NOW), NOW + SILENT_AFTER, SILENT_AFTER) == ""
    assert "has not reported since 2026-11-23T10:00" in silent
    assert trouble_of(unread, NOW, FRESH).endswith(
        "1 job, and requests no instances for it: squeue --json: job 7: field 'tasks' is missing"
    )
    why = "Slurm refused 2 changes of users or teams: sacctmgr add user ada: no such account"
    assert trouble_of(refused, NOW, FRESH) == why


@pytest.mark.parametrize(
    ("minutes", "says"), [(0, ""), (5, ""), (6, "6 minutes ahead"), (-5, ""), (-6, "6 minutes behind")]
)
def test_a_clock_of_the_controller_that_is_off_is_an_alarm_and_its_report_is_read(minutes, says):
    said, age = {"train": PoolNeed(1, (2, 3))}, FRESH
    written = to_json(said, NOW - age + timedelta(minutes=minutes))

    assert needs_of(written, age) == said
    assert trouble_of(written, NOW, age) == (f"the clock of the queue's controller is {says}" if says else "")


def test_a_job_gets_all_its_instances_or_none():
    assert PoolNeed(1, (2, 5, 1)).wanted(4) == 4
    assert PoolNeed(0, (5,)).wanted(4) == 0


def test_the_mover_reads_what_the_controller_wrote_until_it_is_old():
    said = {"train": PoolNeed(1, (2, 3), frozenset({"i-1"}))}

    assert needs_of(to_json(said, NOW), FRESH) == said
    assert needs_of(to_json(said, NOW), FRESH + timedelta(seconds=1)) == {}


OF_TEXT = {"train": {"standing": 0, "jobs": [], "nodes": "i-1"}}


@pytest.mark.parametrize(
    "pools",
    [
        None,
        {"train": 1},
        {"train": {"standing": "x", "jobs": []}},
        {"train": {"standing": inf, "jobs": []}},
        OF_TEXT,
    ],
)
def test_a_damaged_word_is_refused(pools):
    with pytest.raises(CloudError, match=r"capacity/queue\.json"):
        needs_of({"at": "2026-11-23T10:00:00Z", "pools": pools}, FRESH)


@pytest.mark.parametrize("name", ["unread", "refused"])
def test_a_damaged_number_of_troubles_is_refused(name):
    with pytest.raises(CloudError, match=f"{name} is no whole number"):
        needs_of(to_json({}, NOW) | {name: "5"}, FRESH)


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

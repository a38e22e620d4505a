"""Answers of `squeue --json` of Debian 12's 22.05, recorded here, and texts that users may put into them."""

import json
from copy import deepcopy
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm import answers
from gpu_fleet_image.slurm.answers import TRIED_AT, answer, printable, request
from gpu_fleet_image.slurm.sizes import JobRequest

SAID = json.loads(Path(__file__).with_name("squeue_22_05.json").read_text())
HOSTILE, PER_TASK, TYPED, LATER, CPUS, MEMORY, EXCLUSIVE, ARRAY, RUNNING, TWO = SAID["jobs"]
OF_GPU = {"tres_per_job": "gres:gpu:1", "memory_per_tres": "gpu:125000"}  # the second is the default
TEXTS = ("name", "comment", "admin_comment", "current_working_directory", "command", "wckey", "licenses")


def read(*jobs: dict, **changes: object):
    """Read an answer with these jobs, the last with some fields changed."""
    said = deepcopy({**SAID, "jobs": list(jobs)})
    said["jobs"][-1].update(changes)
    return answer(json.dumps(said))


def one(job: dict, **changes: object):
    (listed,) = read(job, **changes).jobs
    return listed


def test_a_comment_that_looks_like_fields_is_a_comment():
    """Parsed from a line of text, it used to end the controller's watch and forge other fields."""
    listed = one(HOSTILE)

    assert HOSTILE["comment"] == "lr=0.1 Restarts=cosine"
    assert (listed.job.id, listed.job.name, listed.job.account) == ("1", "a b JobState=RUNNING", "ada")
    assert (listed.job.state, listed.job.restarts, listed.job.comment) == ("PENDING", 0, "")


ALL_MEMORY = JobRequest(min_cpus=1, gpus=1, memory_per_gpu=125_000, whole_memory=True)
TIMELESS = {**LATER, "time_limit": None}
# A job, what is changed of it -> what is read as what.
READ = [
    # what a job asks for
    (HOSTILE, {}, "request", JobRequest(min_cpus=1)),
    (PER_TASK, {}, "request", JobRequest(tasks=16, cpus=16, min_cpus=1, gpus_per_task=1)),
    (TYPED, {}, "request", JobRequest(min_cpus=1, unpromised="gres:gpu:a100:2")),
    (CPUS, {}, "request", JobRequest(tasks=8, cpus=32, min_cpus=4, memory_per_cpu=2048)),
    (MEMORY, {}, "request", JobRequest(min_cpus=1, gpus=2, memory_per_gpu=102_400)),
    (EXCLUSIVE, {}, "request", JobRequest(min_cpus=1, gpus=1, exclusive=True)),
    (ARRAY, {}, "request", JobRequest(min_cpus=1, gpus=16)),
    (RUNNING, {}, "request", JobRequest(min_cpus=1, cpus=2, gpus_per_node=1, memory_per_gpu=130_000)),
    (TWO, {}, "request", JobRequest(2, 2, 2, 1, 2, 1, gpus=8, memory_per_gpu=130_000, exclusive=True)),
    (
        *(HOSTILE, {"tres_per_task": "cpu:4,gres/gpu:1"}, "request"),
        JobRequest(min_cpus=1, gpus_per_task=1, whole_tasks=True),
    ),
    (HOSTILE, {"tres_per_task": "cpu=4"}, "request", JobRequest(min_cpus=1, whole_tasks=True)),
    (HOSTILE, {"tres_per_node": "gres:none"}, "request", JobRequest(min_cpus=1)),
    (HOSTILE, {"flags": ["JOB_MEM_SET"], **OF_GPU}, "request", ALL_MEMORY),
    (HOSTILE, {"flags": ["EXACT_MEMORY_REQUESTED"], **OF_GPU}, "request", ALL_MEMORY),
    (
        *(HOSTILE, {"flags": ["JOB_MEM_SET"], "memory_per_node": 5, **OF_GPU}, "request"),
        JobRequest(min_cpus=1, gpus=1, memory=5, memory_per_gpu=125_000),
    ),
    (HOSTILE, {"tasks_per_core": 1}, "request", JobRequest(min_cpus=1, single_threads=True)),
    (HOSTILE, {"threads_per_core": 4}, "request", JobRequest(min_cpus=1, unpromised="threads of a core")),
    # the tasks of an array, how many may run at once, and the name of one that waits alone
    (ARRAY, {}, ("tasks", "at_once", "array"), (901, 3, "50")),
    (ARRAY, {"array_task_string": "7"}, ("tasks", "job.number"), (1, "50_7")),
    (ARRAY, {"array_task_string": "7%3"}, ("tasks", "job.number"), (1, "50_7")),
    (ARRAY, {"array_task_string": "1,3-5"}, ("tasks", "job.number"), (4, "50")),
    (ARRAY, {"array_task_string": "0-10:2"}, ("tasks", "job.number"), (6, "50")),
    (ARRAY, {"array_task_string": "0-7,9-21:4%2"}, ("tasks", "job.number"), (12, "50")),
    # when Slurm last tried it, if it says so
    (HOSTILE, {TRIED_AT: 5}, "tried_s", 5),
    ({key: said for key, said in HOSTILE.items() if key != TRIED_AT}, {}, "tried_s", 0),
    # a job with a deadline must begin by its least time before
    (TIMELESS, {}, "begin_by_s", 0),
    (TIMELESS, {"deadline": 100_000}, "begin_by_s", 100_000),
    (TIMELESS, {"deadline": 100_000, "time_limit": 50}, "begin_by_s", 97_000),
    (TIMELESS, {"deadline": 100_000, "time_limit": 50, "time_minimum": 10}, "begin_by_s", 99_400),
    # GPUs at work are those that Slurm gave
    (RUNNING, {"tres_alloc_str": "cpu=2,mem=130000M,node=1,billing=2,gres/gpu=3"}, "gpus", 3),
    # the log is the file that Slurm writes
    (RUNNING, {}, "job.log", "/home/ada/slurm-44.out"),
    (RUNNING, {"standard_output": "logs/%x-%5j.log"}, "job.log", "/home/ada/logs/wrap-00044.log"),
    (
        *(RUNNING, {"standard_output": "/home/ada/%A_%a.log", "array_job_id": 40, "array_task_id": 3}),
        *("job.log", "/home/ada/40_3.log"),
    ),
    (RUNNING, {"standard_output": "/home/ada/%99j.log"}, "job.log", "/home/ada/0000000044.log"),
    (RUNNING, {"standard_output": "/home/ada/%99999999999j"}, "job.log", "/home/ada/%99999999999j"),
    (RUNNING, {"standard_output": "%x" * 2000, "name": "n" * 1000}, "job.log", ""),
    (RUNNING, {"standard_output": "/home/ada/\x1b]0;x\x07.log"}, "job.log", ""),
]


def test_a_job_is_read_as_slurm_writes_it():
    def read_of(job, changes, names, _):
        return attrgetter(*([names] if isinstance(names, str) else names))(one(job, **changes))

    assert [row for row in READ if read_of(*row) != row[3]] == []


def test_when_a_job_may_begin_is_read():
    assert one(LATER).eligible_s - one(LATER).submitted_s == pytest.approx(2 * 24 * 3600, abs=5)


# Fields that 23.11 writes as objects or lists: JOB_INFO of src/plugins/data_parser/v0.0.40/parsers.c, tag
# slurm-23-11-4-1, those of UINT16_NO_VAL, UINT32_NO_VAL, MEM_PER_* and TIMESTAMP_NO_VAL, and lists of flags.
OBJECTS = """
array_job_id array_max_tasks array_task_id cores_per_socket cpus eligible_time end_time het_job_id max_nodes
memory_per_cpu memory_per_node minimum_cpus_per_node minimum_tmp_disk_per_node node_count priority
sockets_per_node start_time submit_time tasks tasks_per_core tasks_per_node tasks_per_socket threads_per_core
time_limit deadline time_minimum last_sched_evaluation
"""
LISTS = "job_state shared"


def of_23_11(job: dict) -> dict:
    """Return the job as 23.11 writes it: an unset or unlimited value has the number 0."""
    written = {
        name: {"set": job[name] is not None, "infinite": False, "number": job[name] or 0}
        for name in OBJECTS.split()
    }
    lists = {name: [job[name]] * bool(job[name]) for name in LISTS.split()}
    return job | written | lists


@pytest.mark.parametrize("job", SAID["jobs"], ids=lambda job: str(job["job_id"]))
def test_the_shape_of_23_11_says_the_same(job):
    assert one(of_23_11(job)) == one(job)


def test_the_least_is_no_maximum_of_a_job_that_23_11_has_not_tried():
    """Without one it says the same there: `--gpus=16` got no instance in an empty pool."""
    most = {"PartitionConfig": 0, "BadConstraints": 0, "Resources": 1, "Priority": 1}
    job = {**HOSTILE, "max_nodes": 1, "node_count": 1}

    found = {reason: one(of_23_11({**job, "state_reason": reason})).request.max_nodes for reason in most}

    assert found == most


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"job_state": ["RUNNING", "COMPLETING"]}, {}),
        ({"max_nodes": {"set": False, "infinite": True, "number": 0}}, {"max_nodes": 0}),
        ({"tres_per_node": "gres/gpu:1"}, {}),
        ({"standard_output": "/home/ada/slurm-44.out"}, {}),
    ],
)
def test_what_23_11_says_by_other_words_is_the_same(changes, same):
    assert one(of_23_11(RUNNING) | changes) == one(RUNNING, **same)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slurm_load_jobs error", "squeue --json: no JSON"),
        ("[]", "squeue --json: jobs = None; allowed: a list"),
        ('{"jobs": {"1": {}}}', "squeue --json: jobs = {'1': {}}; allowed: a list"),
        ('{"jobs": [], "errors": [{"error": "down"}]}', "squeue --json: errors = [{'error': 'down'}]"),
        ('{"jobs": [7]}', "squeue --json: jobs: 7; allowed: objects"),
        ('{"jobs": [{"job_id": 7}]}', "squeue --json: job 7: field 'array_task_string' is missing"),
    ],
)
def test_slurm_that_answers_other_json_is_an_error_that_names_the_field(text, says):
    with pytest.raises(SlurmError) as caught:
        answer(text)

    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tasks": "many"}, "job 44: tasks = 'many'; allowed: a whole number"),
        ({"tasks": -1}, "job 44: tasks = -1; allowed: a whole number"),
        ({"partition": 7}, "job 44: partition = 7; allowed: a text"),
        ({"array_task_string": "0-7..."}, "array_task_string = '0-7...'; allowed: 0-7,9-21:4%2"),
    ],
)
def test_one_job_that_cannot_be_read_keeps_no_other_from_being_read(changes, says):
    said = read(HOSTILE, RUNNING, **changes)

    assert [listed.job.id for listed in said.jobs] == ["1"]
    assert says in said.unread[0]


@pytest.mark.parametrize(("group", "whole"), [(7, [True, False]), (8, [True, True]), ("?", [True, False])])
def test_a_job_of_which_a_part_cannot_be_read_is_not_whole(group, whole):
    """Even the job of that part may be unknown; a job without parts is always whole."""
    said = read(HOSTILE, {**TWO, "het_job_id": 7}, {**TWO, "het_job_id": group, "tasks": "many"})

    assert [listed.is_whole for listed in said.jobs] == whole


@given(text=st.text(max_size=1024), field=st.sampled_from(TEXTS))
def test_no_text_of_a_user_changes_another_field(text, field):
    plain, hostile = one(TWO), one(TWO, **{field: text})

    assert hostile.request == plain.request
    kept = {"id", "account", "pool", "nodes", "state", "reason", "on", "restarts"}
    assert {key: getattr(hostile.job, key) for key in kept} == {key: getattr(plain.job, key) for key in kept}
    assert (hostile.team, hostile.tasks, hostile.gpus) == (plain.team, plain.tasks, plain.gpus)


def test_an_error_that_nobody_expects_keeps_no_other_job_from_being_read(monkeypatch):
    def bursting(raw):
        if raw.number("job_id") != 1:
            raise MemoryError
        return request(raw)

    monkeypatch.setattr(answers, "request", bursting)

    said = read(HOSTILE, RUNNING)

    assert [listed.job.id for listed in said.jobs] == ["1"]
    assert said.unread == ("squeue --json: a job cannot be read: MemoryError",)


@given(text=st.text())
def test_what_users_wrote_is_one_line_of_a_table(text):
    assert printable(text).isprintable()
    assert len(printable(text)) <= len(text)

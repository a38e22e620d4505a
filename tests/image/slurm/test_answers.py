"""Answers of `squeue --json` of Debian 12's 22.05, recorded here, and texts that users may put into them."""

import json
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm import answers
from gpu_fleet_image.slurm.answers import answer, printable, request
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


@pytest.mark.parametrize(
    ("job", "request_of"),
    [
        (HOSTILE, JobRequest(min_cpus=1)),
        (PER_TASK, JobRequest(tasks=16, cpus=16, min_cpus=1, gpus_per_task=1)),
        (TYPED, JobRequest(min_cpus=1, unpromised="gres:gpu:a100:2")),
        (CPUS, JobRequest(tasks=8, cpus=32, min_cpus=4, memory_per_cpu=2048)),
        (MEMORY, JobRequest(min_cpus=1, gpus=2, memory_per_gpu=102_400)),
        (EXCLUSIVE, JobRequest(min_cpus=1, gpus=1, exclusive=True)),
        (ARRAY, JobRequest(min_cpus=1, gpus=16)),
        (RUNNING, JobRequest(min_cpus=1, cpus=2, gpus_per_node=1, memory_per_gpu=130_000)),
        (TWO, JobRequest(2, 2, 2, 1, 2, 1, gpus=8, memory_per_gpu=130_000, exclusive=True)),
    ],
)
def test_what_a_job_asks_for_is_read(job, request_of):
    assert one(job).request == request_of


@pytest.mark.parametrize(
    ("changes", "request_of"),
    [
        ({"tres_per_task": "cpu:4,gres/gpu:1"}, JobRequest(min_cpus=1, gpus_per_task=1, whole_tasks=True)),
        ({"tres_per_task": "cpu=4"}, JobRequest(min_cpus=1, whole_tasks=True)),
        ({"tres_per_node": "gres:none"}, JobRequest(min_cpus=1)),
        (
            {"flags": ["JOB_MEM_SET"], **OF_GPU},
            JobRequest(min_cpus=1, gpus=1, memory_per_gpu=125_000, whole_memory=True),
        ),
        (
            {"flags": ["EXACT_MEMORY_REQUESTED"], **OF_GPU},
            JobRequest(min_cpus=1, gpus=1, memory_per_gpu=125_000, whole_memory=True),
        ),
        (
            {"flags": ["JOB_MEM_SET"], "memory_per_node": 5, **OF_GPU},
            JobRequest(min_cpus=1, gpus=1, memory=5, memory_per_gpu=125_000),
        ),
        ({"tasks_per_core": 1}, JobRequest(min_cpus=1, single_threads=True)),
        ({"threads_per_core": 4}, JobRequest(min_cpus=1, unpromised="threads of a core")),
    ],
)
def test_what_else_sbatch_writes_of_a_job_is_read(changes, request_of):
    assert one(HOSTILE, **changes).request == request_of


def test_the_tasks_of_an_array_are_counted_and_how_many_may_run_at_once():
    listed = one(ARRAY)

    assert (listed.tasks, listed.at_once, listed.array) == (901, 3, "50")


@pytest.mark.parametrize(
    ("tasks", "number", "named"),
    [
        ("7", 1, "50_7"),
        ("7%3", 1, "50_7"),
        ("1,3-5", 4, "50"),
        ("0-10:2", 6, "50"),
        ("0-7,9-21:4%2", 12, "50"),
    ],
)
def test_every_form_of_a_list_of_tasks_is_counted_and_one_that_waits_alone_is_named(tasks, number, named):
    listed = one(ARRAY, array_task_string=tasks)

    assert (listed.tasks, listed.job.number) == (number, named)


def test_when_a_job_may_begin_is_read():
    assert one(LATER).eligible_s - one(LATER).submitted_s == pytest.approx(2 * 24 * 3600, abs=5)


@pytest.mark.parametrize(
    ("times", "begin_by_s"),
    [
        ({}, 0),
        ({"deadline": 100_000}, 100_000),
        ({"deadline": 100_000, "time_limit": 50}, 97_000),
        ({"deadline": 100_000, "time_limit": 50, "time_minimum": 10}, 99_400),
    ],
)
def test_a_job_with_a_deadline_must_begin_by_its_least_time_before(times, begin_by_s):
    assert one(LATER, **{"time_limit": None, **times}).begin_by_s == begin_by_s


def test_gpus_at_work_are_those_that_slurm_gave():
    assert one(RUNNING, tres_alloc_str="cpu=2,mem=130000M,node=1,billing=2,gres/gpu=3").gpus == 3


@pytest.mark.parametrize(
    ("changes", "log"),
    [
        ({}, "/home/ada/slurm-44.out"),
        ({"standard_output": "logs/%x-%5j.log"}, "/home/ada/logs/wrap-00044.log"),
        (
            {"standard_output": "/home/ada/%A_%a.log", "array_job_id": 40, "array_task_id": 3},
            "/home/ada/40_3.log",
        ),
        ({"standard_output": "/home/ada/%99j.log"}, "/home/ada/0000000044.log"),
        ({"standard_output": "/home/ada/%99999999999j"}, "/home/ada/%99999999999j"),
        ({"standard_output": "%x" * 2000, "name": "n" * 1000}, ""),
        ({"standard_output": "/home/ada/\x1b]0;x\x07.log"}, ""),
    ],
)
def test_the_log_is_the_file_that_slurm_writes(changes, log):
    assert one(RUNNING, **changes).job.log == log


# Fields that 23.11 writes as objects or lists: JOB_INFO of src/plugins/data_parser/v0.0.40/parsers.c, tag
# slurm-23-11-4-1, those of UINT16_NO_VAL, UINT32_NO_VAL, MEM_PER_* and TIMESTAMP_NO_VAL, and lists of flags.
OBJECTS = """
array_job_id array_max_tasks array_task_id cores_per_socket cpus eligible_time end_time het_job_id max_nodes
memory_per_cpu memory_per_node minimum_cpus_per_node minimum_tmp_disk_per_node node_count priority
sockets_per_node start_time submit_time tasks tasks_per_core tasks_per_node tasks_per_socket threads_per_core
time_limit deadline time_minimum
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


@pytest.mark.parametrize(
    ("reason", "max_nodes"),
    [("PartitionConfig", 0), ("BadConstraints", 0), ("Resources", 1), ("Priority", 1)],
)
def test_the_least_is_no_maximum_of_a_job_that_23_11_has_not_tried(reason, max_nodes):
    """Without one it says the same there: `--gpus=16` got no instance in an empty pool."""
    listed = one(of_23_11({**HOSTILE, "max_nodes": 1, "node_count": 1, "state_reason": reason}))

    assert listed.request.max_nodes == max_nodes


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

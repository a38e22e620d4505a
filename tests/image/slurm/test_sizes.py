"""Every bought instance runs a job: submissions of all sizes, types and times, with the model of Slurm."""

from datetime import timedelta

import pytest

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm import slurm
from tests.image.slurm.size_world import AND, BEAT, BOOT, MATRIX, MOST, NEVER, START, SizePlay, play

DAYS = timedelta(days=2)


@pytest.mark.parametrize(("words", "instances"), MATRIX)
def test_what_is_bought_is_what_runs(words, instances):
    played = SizePlay()
    jobs = played.submit(**words)

    played.wait()

    assert (len(played.bought), played.vain) == (instances, set())
    running = [job for job in jobs if job.state == "RUNNING"]
    assert len(running) == (0 if instances == NEVER else jobs[0].at_once or len(jobs))


# Two jobs that wait for the same -> instances, all of which are asked for at once.
PAIRS: tuple[tuple[dict[str, object], dict[str, object], int], ...] = (
    ({"gpus": 1}, {"gpus": 1, "mem": 0}, 2),
    ({"gpus": 1, "mem": 900_000}, {"gpus": 1, "mem": 5}, 2),
    ({"gpus": 1, "mem": 300_000}, {"gpus": 1, "mem": 5, "array": "0-6"}, 1),
    ({"gpus": 1, "mem": 300_000}, {"gpus": 1, "array": "0-6"}, 2),
)


@pytest.mark.parametrize(("first", "second", "instances"), PAIRS)
def test_a_job_counts_with_the_memory_that_slurm_gives_it(first, second, instances):
    played = SizePlay()
    played.submit(**first)
    played.submit(**second)

    played.wait(BOOT)

    assert len(played.bought) == instances
    played.wait()
    assert (len(played.bought), played.vain) == (instances, set())


ON_TWO: dict[str, object] = {"gpus_per_node": 1, "nodes": 2}
ALL: dict[str, object] = {"gpus": 8}
# What is submitted, and submitted after that -> instances, and which jobs run in the end.
BESIDE: tuple[tuple[tuple[list[dict[str, object]], ...], int, str], ...] = (
    # eight jobs of one GPU share an instance, and the ninth gets another
    (([{"gpus": 1}] * 9,), 2, "R" * 9),
    # the pool never grows past its size
    (([{"gpus": 3}] * 60,), MOST, "R" * 10 + "P" * 50),
    # what fits beside a job that runs, or on what others left of two, buys nothing
    (([{"gpus": 5}], [{"gpus": 3}]), 1, "RR"),
    (([ON_TWO, ALL],), 2, "RR"),
    # 22.05 holds a job that the present nodes cannot run, such as --gpus=16 on one of two
    (([ALL], [{"gpus": 16}]), 3, "RR"),
    # 22.05 gives it up with the remaining nodes, and did so again when it was released
    (([ON_TWO], [ON_TWO | {"exclude": "i-0"}]), 3, "RR"),
    # parts that cannot start, never, for one is held or too large for now, keep nothing from those behind:
    # 22.05 keeps the nodes of a part that fits
    (([ALL], [ALL | {AND: {"nodes": 5}}, ALL]), 2, "RPPR"),
    (([ALL], [ALL | {AND: ALL | {"hold": ""}}, ALL]), 2, "RPPR"),
    (([ALL], [ALL | {AND: {"nodes": 4, "exclusive": ""}}, ALL]), 2, "RPPR"),
)


@pytest.mark.parametrize(("batches", "instances", "states"), BESIDE)
def test_beside_others_is_bought_what_a_job_can_use(batches, instances, states):
    played = SizePlay()
    for batch in batches:
        for words in batch:
            played.submit(**words)
        played.wait()

    assert (len(played.bought), played.vain) == (instances, set())
    assert "".join(job.state[0] for job in played.jobs) == states


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("seconds", [0, 15])
def test_a_job_in_parts_that_slurm_tries_each_half_minute_alone_gets_no_instance_too_many(seconds, is_new):
    """Neither while the last instance that it needs is new, nor while the job is."""
    played = SizePlay()
    played.submit(gpus=1)
    others = [] if is_new else played.submit(gpus=8)
    played.wait()
    for other in others:
        played.slurm.cancel(other)
    played.wait(timedelta(minutes=10, seconds=seconds))

    parts = played.submit(gpus=1, **{AND: {"gpus": 1}})
    played.wait()

    assert ({part.state for part in parts}, len(played.bought)) == ({"RUNNING"}, 2)


def test_jobs_that_are_kept_away_from_a_free_instance_get_one_each_and_none_beside():
    played = SizePlay()
    (first,) = played.submit(gpus=8)
    played.wait()
    played.slurm.cancel(first)

    jobs = played.submit(gpus=8, exclude="i-0", array="0-1")
    played.wait()

    assert {job.state for job in jobs} == {"RUNNING"}
    assert len(played.bought) == 3


def test_a_job_for_later_gets_its_instance_when_its_time_has_come():
    played = SizePlay()
    (job,) = played.submit(gpus=1, begin=3600)
    played.wait(timedelta(minutes=50))
    assert played.bought == {}

    played.wait(timedelta(minutes=10) + 2 * BOOT)

    assert job.state == "RUNNING"


def test_a_job_in_parts_is_told_that_it_is_kept_back_and_starts_once_there_is_room():
    played = SizePlay()
    first, _ = played.submit(gpus=8, array="0-1")
    played.wait()
    parts = played.submit(nodes=2, exclusive="", **{AND: {"gpus": 8}})
    played.wait()
    said = [(part.admin_comment, played.reason(part)) for part in parts]
    played.slurm.cancel(first)

    played.wait()

    waits = "waits until there is room for all its parts"
    assert said == [(f"gpu-fleet: {waits} (gpu-fleet has set its StartTime)", waits)] * 2
    assert {(part.state, part.admin_comment) for part in parts} == {("RUNNING", "")}


def test_a_job_in_parts_that_its_user_wants_later_keeps_its_time():
    played = SizePlay()
    parts = played.submit(gpus=8, begin=1800, **{AND: {"gpus": 8, "begin": 1800}})

    played.wait(timedelta(minutes=25))

    assert [part.begin_at for part in parts] == [START + timedelta(minutes=30)] * 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"gres": "gpu:16"}, "asks for 16 GPUs on one of 4 instances, one of pool train has 8"),
        ({"nodes": 5}, "asks for 5 instances, size.max of pool train is 4"),
        ({"mem": 2_000_000}, "of memory on one of 4 instances, one of pool train has 977 GiB"),
        ({"gres": "gpu:a100:2"}, "names gres:gpu:a100:2, which is unknown of an instance of pool train"),
    ],
)
def test_a_job_that_no_instance_can_run_is_told_so_in_runs_and_in_squeue(words, why):
    played = SizePlay()
    (job,) = played.submit(**words)

    played.wait(DAYS / 24)

    assert why in played.reason(job)
    assert job.admin_comment == f"gpu-fleet: {played.reason(job)}"
    assert played.bought == {}


def test_thousands_of_refused_jobs_keep_no_poll_busy_and_all_are_told_in_the_end(monkeypatch):
    """A poll calls Slurm for each, and what the queue needs is reported once a poll."""
    monkeypatch.setattr(slurm, "MOST_CALLS", 3)
    played = SizePlay()
    jobs = played.submit(nodes=5, array="0-0") + [played.submit(nodes=5)[0] for _ in range(7)]
    told = []
    for _ in range(4):
        played.wait(BEAT)
        told.append(sum(job.admin_comment != "" for job in jobs))

    assert told == [3, 6, len(jobs), len(jobs)]


def test_jobs_that_cannot_be_told_keep_no_other_from_being_told(monkeypatch):
    monkeypatch.setattr(slurm, "MOST_CALLS", 2)
    played = SizePlay()
    jobs = [played.submit(nodes=5)[0] for _ in range(5)]

    def fails_for_two(words):
        if {f"jobid={job.id}" for job in jobs[:2]} & {*words}:
            raise SlurmError("Slurm temporarily unable to accept job")
        return played.slurm.ask(words)

    played.watch.ask = fails_for_two

    played.wait(4 * BEAT)

    assert [job.admin_comment != "" for job in jobs] == [False, False, True, True, True]


def test_what_slurm_could_run_on_no_node_for_reasons_of_its_own_buys_no_second_instance():
    """It is released once, given up again, and its user reads that."""
    played = SizePlay()
    played.submit(gpus=8)
    played.wait()
    (job,) = played.submit(gpus=1)
    place = played.slurm._place

    def gives_up(other, beside):
        if other is not job:
            return place(other, beside)
        job.given_up, job.reason = True, "BadConstraints"
        return None

    played.slurm._place = gives_up

    played.wait(DAYS / 24)

    assert len(played.bought) == 1
    assert "Slurm finds no instance of pool train that could run it" in played.reason(job)

    # one that comes for another is one more to find: Slurm is asked again, and nothing bought for that
    played.submit(gpus=8)
    played.wait()
    assert (job.state, len(played.bought)) == ("PENDING", 2)
    played.slurm._place = place
    played.submit(gpus=4)
    played.wait()
    assert (job.state, len(played.bought)) == ("RUNNING", 3)


@pytest.mark.parametrize("seeds", [range(9), pytest.param(range(9, 400), marks=pytest.mark.prove)])
def test_in_schedules_of_chance_nothing_is_bought_in_vain(seeds):
    assert {seed: wrongs for seed in seeds if (wrongs := play(seed))} == {}

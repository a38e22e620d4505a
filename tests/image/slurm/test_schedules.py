"""No failure loses a job of the queue: random schedules, and mutants of the queue.

``tests/bench/bench_queue.py`` plays 500 schedules and detects each mutant; here are some of both.
"""

import pytest

from tests.image.slurm.queue_mutants import first_to_see
from tests.image.slurm.queue_world import Tally

FEW, PLAYED = 3, 50
# Mutants that one of the first schedules sees.
QUICKLY = (
    "a job whose node died is not put back",
    "a run that saved is not run again",
    "the queue's state lies on the controller's disk",
    "the job records begin anew with each controller",
    "one answer without an instance means that it is gone",
    "a job starts again where it failed",
    "the pool grows past its max",
    "a job that no instance can run gets one",
    "what Slurm gave up too early is not released",
)


@pytest.mark.parametrize("seeds", [range(FEW), pytest.param(range(FEW, PLAYED), marks=pytest.mark.prove)])
def test_no_job_is_lost_and_no_promise_broken_in_some_schedules(seeds):
    tally = Tally()

    for seed in seeds:
        tally.play(seed)

    assert tally.wrong == {}
    # schedules in which nothing happens would prove nothing
    assert tally.jobs > 4 * len(seeds)
    assert tally.restarts > len(seeds)
    assert tally.ends > len(seeds)


@pytest.mark.parametrize(
    "mutant", [QUICKLY[0], *(pytest.param(mutant, marks=pytest.mark.prove) for mutant in QUICKLY[1:])]
)
def test_a_queue_that_is_broken_is_seen(mutant):
    assert first_to_see(mutant, range(PLAYED)) is not None

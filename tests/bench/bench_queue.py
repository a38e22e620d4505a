"""``python -m tests.bench.bench_queue [model] [mutants] [engine]``: whatever fails, no job is lost.

500 schedules of chance in the model, 500 of submissions of all sizes, every named mutant until a schedule
sees it, and 20 schedules with Slurm itself (root and Debian's packages; some half an hour). `make test` plays
some of the model's.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpu_fleet_image.recipe import build_requirements
from tests.bench import entries
from tests.image.slurm.queue_mutants import MUTANTS, first_to_see
from tests.image.slurm.queue_world import Tally
from tests.image.slurm.real_schedules import RealSchedule, lose_controller, report
from tests.image.slurm.size_world import play
from tests.image.slurm.test_real_engine import standing

COMMAND = "python -m tests.bench.bench_queue"
SCHEDULES = int(os.environ.get("GPU_FLEET_BENCH_SCHEDULES", "500"))
REAL_SCHEDULES = int(os.environ.get("GPU_FLEET_BENCH_REAL_SCHEDULES", "20"))
CONTROLLER_LOST_EVERY = 7
Entries = dict[str, dict[str, Any]]


def model() -> Entries:
    """Schedules of the model."""
    tally = Tally()
    for seed in range(SCHEDULES):
        tally.play(seed)
        if seed in tally.wrong:
            report(f"schedule {seed}: {tally.wrong[seed][0]}")
    what = (
        f"of {SCHEDULES} schedules: {tally.jobs} jobs, {tally.restarts} restarts, {tally.ends} terminations"
    )
    wrong = entry("queue_model_schedules_wrong", len(tally.wrong), what)
    vain = [seed for seed in range(SCHEDULES) if play(seed)]
    return wrong | entry("queue_bought_in_vain", len(vain), f"of {SCHEDULES} schedules of sizes")


def mutants() -> Entries:
    """The queue broken by name: who is not seen."""
    unseen = []
    for name in MUTANTS:
        seen = first_to_see(name, range(SCHEDULES))
        report(f"{name}: {seen}")
        unseen += [] if seen else [name]
    return entry("queue_mutants_unseen", len(unseen), f"of {len(MUTANTS)} mutants")


def engine() -> Entries:
    """Schedules with Slurm itself."""
    if reason := build_requirements.hindrance():
        sys.exit(f"error: no Slurm here: {reason}")
    jobs = deaths = 0
    wrongs: list[str] = []
    with TemporaryDirectory(prefix="queue-") as folder, standing(Path(folder)) as lab:
        for seed in range(REAL_SCHEDULES):
            played = RealSchedule(lab, seed)
            found = played.run()
            jobs, deaths, wrongs = jobs + len(played.jobs), deaths + played.deaths, wrongs + found
            report(
                f"schedule {seed}: {len(played.jobs)} jobs, {played.deaths} died, {found or 'as promised'}"
            )
            if seed % CONTROLLER_LOST_EVERY == CONTROLLER_LOST_EVERY - 1:
                lose_controller(lab)
    what = f"of {jobs} jobs in {REAL_SCHEDULES} schedules with Slurm, {deaths} instances died"
    return entry("queue_jobs_lost", len(wrongs), what)


def entry(name: str, value: int, unit: str) -> Entries:
    """A figure that has to be 0."""
    return {name: entries.entry(value, unit, None, "0", command=COMMAND)}


PARTS: dict[str, Callable[[], Entries]] = {"model": model, "mutants": mutants, "engine": engine}


def measure(parts: list[str]) -> Entries:
    """All entries of this bench, or those of some parts; ends with an error where one is not 0."""
    found: Entries = {}
    for name in parts or PARTS:
        found |= PARTS[name]()
    if wrong := [f"{name} = {made['value']}" for name, made in found.items() if made["value"]]:
        sys.exit(f"error: {', '.join(wrong)}; allowed: 0")
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1:]), indent=2) + "\n")

"""Goodput of a day of training that is killed again and again: measured costs, a simulated day, our accounts.

What a start, a kill and a save cost comes out of a run of two ranks on this computer, of which one is killed.
The day has kills at the rate of Llama 3 on 16,384 GPUs, 419 in 54 days (https://arxiv.org/abs/2407.21783).
Its seconds are booked by the trainer's own `Book`, and added up by the `goodput` of `report`.
"""

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_fleet.core import config
from gpu_fleet.metrics.goodput import PRODUCTIVE, STALL, START, Book, goodput
from gpu_fleet.metrics.records import Record, read_json_lines
from tests.bench.bench_trainer import prepared_digits
from tests.bench.entries import entry
from tests.training.programs import DIGITS, torchrun

COMMAND = "python -m tests.bench.bench_goodput"
DAY_S = 86_400.0
KILLS_A_DAY = 419 / 54
STEP_S = 1.0
EVERY_S = 60.0  # checkpoint.every_s of the day
DEFAULT_EVERY_S = STEP_S * config.Checkpoint().every_steps
NEW_INSTANCE_S = 180.0  # until another instance has booted, where that of a killed run is gone
DAYS = 50
GOAL = 0.99


@dataclass(frozen=True)
class Costs:
    """Seconds."""

    between: float  # from a kill to the start of the next try's processes
    start: float  # from there to the first step
    stall: float  # of a save


def measured_costs(folder: Path) -> Costs:
    """What two ranks of the digits say, of which one is killed after a save."""
    data = prepared_digits(folder / "digits")
    run = folder / "run"
    words = (DIGITS, "--data.path", data, "--run.directory", run, "--run.epochs", 0)
    endless = ("--schedule.name", "constant", "--run.steps", 10**6, "--checkpoint.every_steps", 50)
    with torchrun(*words, *endless, max_restarts=1) as program:
        program.wait_for("event=checkpoint step=")
        os.kill(program.worker(rank=1), signal.SIGKILL)
        killed_at_s = time.time()
        program.wait_for("event=resumed")
        for _ in range(5):
            program.wait_for("event=checkpoint step=")
        os.kill(program.worker(rank=1), signal.SIGTERM)
        assert program.finish() == 0, program.said
    records = read_json_lines(run / "metrics.jsonl")
    last = [record for record in records if record["kind"] == "time"][-1]
    stalls = [float(record["checkpoint_stall_s"]) for record in records if record["kind"] == "checkpoint"]
    between_s = float(last["started_at_s"]) - killed_at_s
    return Costs(max(0.0, between_s), float(last[START]), statistics.median(stalls))


def day(costs: Costs, every_s: float, seed: int) -> float:
    """The goodput of one day: a try, a kill, the next try from the newest checkpoint."""
    chance, begin_s, saved_step = random.Random(seed), 0.0, 0
    records: list[Record] = []
    while begin_s < DAY_S:
        killed_at_s = begin_s + chance.expovariate(KILLS_A_DAY / DAY_S)
        tried, saved_step = one_try(costs, every_s, saved_step, begin_s, min(killed_at_s, DAY_S))
        records += tried
        begin_s = killed_at_s + costs.between
    found = goodput(records)
    assert found is not None
    return found.productive_s / DAY_S


def one_try(
    costs: Costs, every_s: float, step: int, begin_s: float, until_s: float
) -> tuple[list[Record], int]:
    """The records of a try that ends without a word, and the newest step that is saved."""
    now_s, records = begin_s + costs.start, []
    book = Book(begin_s, booted_at_s=0.0, clock=lambda: now_s, resumed_from_step=step)
    book.switch(PRODUCTIVE)
    saved_step, saved_at_s = step, now_s
    while now_s < until_s:
        if book.due():
            records.append(book.record(step))
        now_s, step = now_s + STEP_S, step + 1
        if now_s - saved_at_s >= every_s:
            now_s += costs.stall
            book.shift(STALL, costs.stall)
            saved_step, saved_at_s = step, now_s
            records.append(book.record(step))
    return records, saved_step


def entries_of(costs: Costs) -> dict[str, dict[str, Any]]:
    """The mean over many days: a short interval, the default one, and another instance after each kill."""
    elsewhere = Costs(costs.between + NEW_INSTANCE_S, costs.start, costs.stall)
    wanted = {
        "goodput_day": (costs, EVERY_S, f"restarts in place, every_s = {EVERY_S:.0f}"),
        "goodput_day_new_instances": (
            elsewhere,
            EVERY_S,
            f"each on a new instance after {NEW_INSTANCE_S:.0f} s",
        ),
        "goodput_day_default": (costs, DEFAULT_EVERY_S, f"a save every {DEFAULT_EVERY_S:.0f} s, the default"),
    }
    return {
        key: entry(
            statistics.mean(day(paid, every_s, seed) for seed in range(DAYS)),
            f"of a day, {KILLS_A_DAY:.1f} kills; {text}",
            GOAL,
            "ratio >= 1" if key == "goodput_day" else "stated",
            command=COMMAND,
        )
        for key, (paid, every_s, text) in wanted.items()
    }


def main() -> None:
    """Prints the entries as one JSON object."""
    with tempfile.TemporaryDirectory() as name:
        costs = measured_costs(Path(name))
    sys.stderr.write(f"{costs}\n")
    sys.stdout.write(json.dumps(entries_of(costs), indent=2) + "\n")


if __name__ == "__main__":
    main()

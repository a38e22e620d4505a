"""An end at any moment of a save: a whole checkpoint stays, and only the save under way is lost."""

import io
import os
import random
import shutil
import sys
import time
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_fleet.checkpoint import local, names, uploader
from gpu_fleet.checkpoint.saver import Saver
from gpu_fleet.core.containers import read_state
from tests.training.ranks import context

CHANGES = {
    "open",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
}  # audit events, each before its system call
CRASHED = 9
LONGEST_LIFE = 1.5  # saves, after the first


def content(step: int) -> torch.Tensor:
    """Return the content of the checkpoint of a step."""
    return torch.full((64, 64), float(step))


def newest_whole(root: Path) -> int:
    """Return the step of the newest checkpoint, after a check that it is whole."""
    step = local.steps(root)[-1]
    newest = root / names.step_name(step)
    assert local.verify(newest).step == step
    assert torch.equal(read_state(newest / names.STATE)["weights"], content(step))
    return step


def save_one(root: Path, step: int) -> None:
    """Save a step, and wait until it is durable."""
    saves = Saver(root, store=None, keep=2)
    saves.save(local.Manifest(step, model="killed", world_size=1), {"weights": content(step)})
    saves.close()


def crash_in_save(root: Path, step: int, call: int) -> None:
    """Save a step, but end the process right before the `call`-th change of the folder, from 1 on."""
    calls = count(1)

    def end_before(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES and str(arguments[0]).startswith(str(root)) and next(calls) == call:
            os._exit(CRASHED)

    sys.addaudithook(end_before)
    save_one(root, step)


def test_a_save_that_ends_before_any_of_its_changes_leaves_the_one_before_whole(tmp_path):
    saved = tmp_path / "saved"
    save_one(saved, 1)
    left = []

    for call in count(1):
        root = tmp_path / str(call)
        shutil.copytree(saved, root)
        process = context.Process(target=crash_in_save, args=(root, 2, call))
        process.start()
        process.join()
        left.append(newest_whole(root))
        if process.exitcode == 0:
            break
        assert process.exitcode == CRASHED

    assert left == sorted(left)
    assert left.count(1) > 3  # a folder, its files, and the rename that commits
    assert left[-1] == 2


def save_without_end(root: Path, pipe: Connection) -> None:
    """Save one step after another from the newest on, and report each that is durable."""
    uploader.LESS_URGENT = 0  # no training here wants the core; other tests would take it for most of a save
    local.sweep(root)
    saves = Saver(root, store=None, keep=2)
    step = max(local.steps(root), default=0)
    torch.save(content(step), io.BytesIO())  # the first call loads what it needs; the kills are to hit saves
    pipe.send(step)
    while True:
        step += 1
        saves.save(local.Manifest(step, model="killed", world_size=1), {"weights": content(step)})
        saves.wait()
        pipe.send(step)


def reported_step(pipe: Connection) -> int:
    """Return the last step that the killed process has reported, or 0."""
    last = 0
    try:
        while pipe.poll():
            last = pipe.recv()
    except EOFError:
        pass  # the process is gone; nothing more is coming
    return last


@pytest.mark.parametrize(
    ("kills", "least_unfinished"), [(15, 0), pytest.param(200, 21, marks=pytest.mark.prove)]
)
def test_a_killed_save_leaves_the_one_before_whole(kills, least_unfinished, tmp_path):
    chance = random.Random(5)
    durable = 0
    unfinished = 0

    for _ in range(kills):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=save_without_end, args=(tmp_path, there))
        process.start()
        there.close()
        assert here.poll(60), "the process saves nothing"
        durable, began_s = max(durable, here.recv()), time.monotonic()
        assert here.poll(60), "the process saves nothing more"
        process.join(chance.uniform(0, LONGEST_LIFE) * (time.monotonic() - began_s))
        process.kill()
        process.join()
        durable = max(durable, reported_step(here))
        unfinished += any(tmp_path.glob("*.tmp"))
        assert durable <= newest_whole(tmp_path) <= durable + 1

    assert unfinished >= least_unfinished  # kills did hit saves under way
    assert durable >= kills  # and the runs did go on

"""kill -9 at any moment of a save: a whole checkpoint stays, and only the save under way is lost."""

import io
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from gpu_fleet.checkpoint import local, saver
from gpu_fleet.checkpoint.restore import read_state
from gpu_fleet.checkpoint.saver import STATE, Saver
from tests.training.ranks import context

KILLS = 200
LONGEST_LIFE = 1.5  # saves, after the first


def content(step: int) -> torch.Tensor:
    """What the checkpoint of a step holds."""
    return torch.full((64, 64), float(step))


def save_without_end(root: Path, pipe: Connection) -> None:
    """Saves one step after another from the newest on, and says each that is durable."""
    saver.LESS_URGENT = 0  # no training here wants the core, and other tests would take it for most of a save
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
    """The last step that the killed process has said, or 0."""
    last = 0
    try:
        while pipe.poll():
            last = pipe.recv()
    except EOFError:
        pass  # the process is gone; nothing more is coming
    return last


def test_a_killed_save_leaves_the_one_before_whole(tmp_path: Path) -> None:
    chance = random.Random(5)
    durable = 0
    unfinished = 0

    for _ in range(KILLS):
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
        if steps := local.steps(tmp_path):
            newest = tmp_path / local.folder_name(steps[-1])
            assert local.verify(newest).step == steps[-1]
            assert torch.equal(read_state(newest / STATE)["weights"], content(steps[-1]))
        assert durable <= max(steps, default=0) <= durable + 1

    assert unfinished > KILLS / 10  # the kills did hit saves under way
    assert durable >= KILLS  # and the runs did go on

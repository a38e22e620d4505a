"""Function calls on several ranks, forked from a process that has torch loaded: milliseconds each."""

import faulthandler
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import torch
from torch.distributed import TCPStore

from gpu_fleet.checkpoint import run_identity, uploader
from tests import preloaded

PRELOADED = [
    "torch.distributed.checkpoint._fsspec_filesystem",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.pipelining",
    "torch._inductor.compile_fx",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.vit.modeling_vit",
    "boto3",
    "fsspec.core",
    "PIL.PngImagePlugin",
    "gpu_fleet.cli",
    "gpu_fleet.integrations.run",
    "gpu_fleet.trainer.rank",
    "gpu_fleet.checkpoint.sharded",
    "pytest",  # as the module of a test's function is imported in each rank
    "tests.training.commands",
    "tests.training.programs",
    "tests.training.warm",
]
DEADLINE_S = 240.0  # of a test: a hang must end as a failure, a computer that is busy with others must not
# To load PRELOADED, once in a session: 7 s on a free core, 68 s were seen on one that six others wanted.
LOADING_S = 600.0
# Once one has failed, the others only write what is left to write.
AFTER_ANOTHER_S = 15.0
# A silent rank writes down where each of its threads stands, so long before its time is over.
SILENT, SHOWN_BEFORE_S = "silent", 5.0
LOOK_S = 0.1  # of a core for samples beyond the first few hundred, where users have three

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(PRELOADED)


@cache
def server_loaded() -> None:
    """Wait until the server has loaded its modules; that time does not count for the first test."""
    process = context.Process(target=os.getpid)
    with patch("multiprocessing.util.spawnv_passfds", preloaded.ranks_server):
        process.start()
    process.join(LOADING_S)
    assert process.exitcode == 0, f"the server of ranks has not loaded within {LOADING_S} s"


def run_ranks(
    function: Callable[..., Any], size: int, *arguments: Any, deadline_s: float = DEADLINE_S
) -> list[Any]:
    """Call `function(*arguments)` on `size` ranks, as torchrun starts them; return the results in rank order.

    An exception on any rank is raised here with its traceback as text; for a silent rank, with its stacks.
    """
    server_loaded()
    # as torchrun does: a store that stands before the ranks, on a port that nobody can take in between
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(minutes=5))
    world = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    with tempfile.TemporaryDirectory() as stacks:
        pipes, processes = [], []
        for rank in range(size):
            here, there = context.Pipe(duplex=False)
            environment = {**os.environ, **world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            shown = Path(stacks) / str(rank), deadline_s - SHOWN_BEFORE_S
            process = context.Process(target=_rank, args=(there, environment, shown, function, arguments))
            process.start()
            there.close()
            pipes.append(here)
            processes.append(process)
        answers = _answers(pipes, processes, deadline_s)
        if any(error for _, error in answers):
            raise AssertionError(_told(answers, Path(stacks)))
    return [result for result, _ in answers]


def _answers(pipes: list[Connection], processes: list[Any], deadline_s: float) -> list[tuple[Any, str]]:
    """Return result and error of each rank; end all ranks."""
    answers: list[tuple[Any, str]] = []
    try:
        for pipe, process in zip(pipes, processes, strict=True):
            one_failed = any(error for _, error in answers)
            if one_failed and _is_stopped(process.pid):
                process.kill()
            answers.append(_receive(pipe, min(deadline_s, AFTER_ANOTHER_S) if one_failed else deadline_s))
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return answers


def _told(answers: list[tuple[Any, str]], stacks: Path) -> str:
    """Return the reports of all ranks: the first error may be of a rank that lost the one that failed."""
    told = []
    for rank, (result, error) in enumerate(answers):
        stands = (stacks / str(rank)).read_text() if error.startswith(SILENT) else ""
        told.append(
            f"rank {rank} of {len(answers)}" + (f":\n{error}\n{stands}" if error else f" gave {result!r}")
        )
    return "\n".join(told)


def _is_stopped(process_id: int) -> bool:
    """Return whether the process got SIGSTOP; False if it has ended."""
    try:
        return bool(psutil.Process(process_id).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False


def _receive(pipe: Connection, deadline_s: float) -> tuple[Any, str]:
    try:
        return pipe.recv() if pipe.poll(deadline_s) else (None, f"{SILENT} for {deadline_s} s")
    except EOFError:
        return None, "ended without a word"


def _rank(
    pipe: Connection,
    environment: Mapping[str, str],
    shown: tuple[Path, float],
    function: Any,
    arguments: tuple[Any, ...],
) -> None:
    stacks = shown[0].open("w")  # to its end
    faulthandler.dump_traceback_later(shown[1], file=stacks)
    torch.set_num_threads(1)
    uploader.LESS_URGENT = 0  # the other tests would take the core for most of a save
    run_identity.LOOK_AT_ALL_S = LOOK_S
    os.environ.clear()
    os.environ.update(environment)
    try:
        pipe.send((function(*arguments), ""))
    except BaseException:  # noqa: BLE001 - handed to the test, which fails with it
        pipe.send((None, traceback.format_exc()))

"""Run a Pulumi program in this process, unchanged, under the rehearsal's monitor."""

import asyncio
import contextvars
import gc
import json
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pulumi
from pulumi.runtime import resource, rpc, set_all_config, set_mocks
from pulumi.runtime.proto import source_pb2
from pulumi.runtime.settings import SETTINGS, _get_rpc_manager, get_root_resource, reset_options
from pulumi.runtime.stack import Stack, run_pulumi_func

from gpu_fleet_image.core.shared_options import note
from gpu_fleet_stacks import program as main_program
from gpu_fleet_stacks.core.naming import PROJECT
from gpu_fleet_stacks.rehearsal import values
from gpu_fleet_stacks.rehearsal.aws_resources import CREATORS
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.existing import Answers
from gpu_fleet_stacks.rehearsal.monitor import RehearsalMocks, RehearsalMonitor
from gpu_fleet_stacks.rehearsal.registrations import (
    Listener,
    Registration,
    RegistrationOutcome,
    Registrations,
)
from gpu_fleet_stacks.settings import stack_files

DEFAULT_REGION = "us-east-1"
ENGINE = "rehearsed-engine"  # logger of a program's messages


@dataclass(frozen=True)
class Rehearsed:
    """Results of a program.

    Attributes:
        outputs: the stack's exports as plain values, secrets unwrapped.
        registrations: every resource in order of registration, with components and providers.
        seconds: from the first line of the program to the last resource.
    """

    stack: str
    outputs: dict[str, Any]
    registrations: tuple[Registration, ...]
    seconds: float

    @property
    def resources(self) -> tuple[Registration, ...]:
        """The cloud resources: no components, no providers."""
        return tuple(
            registration
            for registration in self.registrations
            if registration.outcome is not RegistrationOutcome.GROUPED
        )

    @property
    def created(self) -> int:
        """Number of resources in moto."""
        return sum(registration.outcome is RegistrationOutcome.CREATED for registration in self.registrations)

    @property
    def recorded(self) -> int:
        """Number of resources that moto lacks."""
        return sum(
            registration.outcome is RegistrationOutcome.RECORDED for registration in self.registrations
        )

    def of_type(self, type_token: str) -> tuple[Registration, ...]:
        """Return the resources of one type, say ``aws:ec2/subnet:Subnet``."""
        return tuple(registration for registration in self.registrations if registration.type == type_token)


def read_config(stack_name: str, settings_file: Path | None = None) -> dict[str, str]:
    """Return a stack's configuration as the engine gives it to a program: full keys, structures as JSON text.

    Raises StacksError if the file is missing or holds no mapping.
    """
    config = stack_files.config_of(settings_file or stack_files.path_of(stack_name))
    return {key: _as_text(value) for key, value in config.items()}


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def run_program(
    stack_name: str,
    settings_file: Path | None = None,
    *,
    program: Callable[[], object] = main_program.main,
    config: dict[str, str] | None = None,
    listener: Listener | None = None,
    clients: RegionClients | None = None,
    answers: Answers | None = None,
) -> Rehearsed:
    """Run a program to its last resource.

    It can be called repeatedly in one process: each run has its own context, event loop and worker, and
    leaves none behind. There is one worker, because moto answers from this process anyway. A resource is made
    after the resources that it depends on; otherwise the SDK's order differs from run to run.

    Args:
        stack_name: say ``aws-dev``.
        settings_file: instead of ``stacks/Pulumi.<stack>.yaml``.
        program: registers resources and exports; by default the project's own, ``gpu_fleet_stacks.program``.
        config: instead of any file: full key -> value, structures as JSON text.
        listener: called for each registration as it happens, on a worker thread.
        clients: boto3 clients to use and leave open; by default some of its own.
        answers: to provider functions that moto has no answer to, by their tokens.

    Raises:
        StacksError: a stack file is missing, or moto refused a resource.
        Exception: whatever the program itself raises.
    """
    settings = read_config(stack_name, settings_file) if config is None else config
    records = Registrations(listener)
    region = settings.get("aws:region", DEFAULT_REGION)
    own = clients or RegionClients(region)
    mocks = RehearsalMocks(own, CREATORS, records, answers)
    started = time.perf_counter()
    try:
        with _lean():
            outputs = contextvars.copy_context().run(_run, stack_name, settings, mocks, program)
    except Exception as error:
        if mocks.failure is not None and error is not mocks.failure:
            raise mocks.failure from error
        raise
    finally:
        if clients is None:
            own.pool.close()
    return Rehearsed(stack_name, outputs, records.all(), time.perf_counter() - started)


@contextmanager
def _lean() -> Iterator[None]:
    """Switch off what takes half of a run's time and is not needed here.

    One is the garbage collector, since the SDK makes a reference cycle of every value; the ten megabytes of a
    run are collected after it. Another is the source position of each resource, which only an engine shows.
    The last is the search of each value for one that a preview does not know: here all are known, and the
    search alone left behind three quarters of the collector's objects.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with (
            patch.object(resource, "_get_stack_trace", source_pb2.StackTrace),
            patch.object(rpc, "contains_unknowns", lambda _: False),
        ):
            yield
    finally:
        if was_enabled:
            gc.enable()


class _Notes(logging.Handler):
    """Printer of a program's own warnings and errors, like those of any command."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one message; a quiet command line leaves warnings out."""
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if record.levelno >= logging.ERROR:
            click.echo(text, err=True)
        else:
            note(text)


def _log() -> logging.Logger:
    """Return the logger that stands for Pulumi's engine."""
    logger = logging.getLogger(ENGINE)
    if not logger.handlers:
        logger.addHandler(_Notes(logging.WARNING))
    return logger


def _run(
    stack_name: str, settings: dict[str, str], mocks: RehearsalMocks, program: Callable[[], object]
) -> dict[str, Any]:
    loops: list[asyncio.AbstractEventLoop] = []

    def give_worker_a_loop() -> None:
        # The SDK's monitor needs an event loop in every worker, and would leave it open.
        loops.append(asyncio.new_event_loop())
        asyncio.set_event_loop(loops[-1])

    async def rehearse() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1, "rehearsal", give_worker_a_loop))
        # Every Output that waits for a refused resource would report the refusal again.
        loop.set_exception_handler(lambda loop, context: _report(mocks, loop, context))
        reset_options()
        set_all_config(settings)
        monitor = RehearsalMonitor(mocks)
        set_mocks(mocks, project=PROJECT, stack=stack_name, preview=False, monitor=monitor, logger=_log())
        await run_pulumi_func(lambda: _settled(program))
        exports = await pulumi.Output.from_input(_exports()).future()
        return dict(values.plain(exports or {}))

    try:
        return asyncio.run(rehearse())
    finally:
        for loop in loops:
            loop.close()


def _exports() -> dict[str, Any]:
    root = get_root_resource()
    return root.outputs if isinstance(root, Stack) else {}


async def _settled(program: Callable[[], object]) -> None:
    """Run the program, and wait until all its tasks are done or one has failed.

    The SDK waits by itself, but checks every open output again each time one closes: half of the run.
    """
    program()
    under_way = _under_way()
    while under_way:
        done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_EXCEPTION)
        if any(task.cancelled() or task.exception() is not None for task in done):
            return  # the SDK's own wait is next, and reports it
        under_way = _under_way()


def _under_way() -> list[asyncio.Future[Any]]:
    tasks = (*_get_rpc_manager().rpcs, *SETTINGS.outputs)
    return [task for task in tasks if not task.done()]


def _report(mocks: RehearsalMocks, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if mocks.failure is None:
        loop.default_exception_handler(context)

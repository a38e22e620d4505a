"""Fixtures of the trainer's tests: the digits, a text, a bucket, an instance of no fleet."""

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
import torch
from click.testing import CliRunner

from gpu_fleet.checkpoint import run_identity
from gpu_fleet.cli import main
from gpu_fleet.core import user_code
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.training.examples import write_tokens
from tests.training.ranks import LOOK_S

# Threads that a library begins once and keeps for its next use, by the beginning of their names.
KEPT = (
    "tqdm_monitor",  # of tqdm, for all bars of the process
    "QueueFeederThread",  # of multiprocessing, which ends with the reader processes of a DataLoader
)
THREAD_ENDS_WITHIN_S = 10.0
REPOSITORY = {"tests", "gpu_fleet_image", "gpu_fleet_stacks", "checks", "conftest"}


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Check that each thread of a test has ended with it, so that it disturbs no later test."""
    before = {*threading.enumerate()}
    yield
    begun = {*threading.enumerate()} - before
    left = [thread.name for thread in begun if not thread.name.startswith(KEPT) and _goes_on(thread)]
    assert left == [], f"the test has left threads behind: {left}"


def _goes_on(thread: threading.Thread) -> bool:
    thread._started.wait(THREAD_ENDS_WITHIN_S)  # type: ignore[attr-defined] # listed before it has begun
    thread.join(THREAD_ENDS_WITHIN_S)
    return thread.is_alive()


@pytest.fixture(autouse=True)
def no_fleet(tmp_path_factory, monkeypatch) -> Path:
    """Remove instance.toml, stop file and metadata service; return the folder of the stop file."""
    folder = tmp_path_factory.mktemp("run-gpu-fleet")
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(folder / "no-instance.toml"))
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(folder))
    monkeypatch.delenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", raising=False)
    monkeypatch.delenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", raising=False)
    return folder


@pytest.fixture(autouse=True)
def no_code_of_other_tests(request, monkeypatch) -> None:
    """Give a run in this process the code of its test, without the thousand modules of the whole suite."""
    loaded = user_code._loaded
    others = {name for name in sys.modules if name.partition(".")[0] in REPOSITORY} - {
        request.module.__name__
    }
    monkeypatch.setattr(
        user_code,
        "_loaded",
        lambda *, with_main: {
            name: module for name, module in loaded(with_main=with_main).items() if name not in others
        },
    )


@pytest.fixture(autouse=True, scope="session")
def looks_briefly() -> None:
    """Shorten the reading of samples for a run's identity: cheap data would take three seconds of a core."""
    run_identity.LOOK_AT_ALL_S = LOOK_S


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Limit torch to one thread: small models gain nothing from more, and lose time on a busy core."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """Prepare the digits."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    result = CliRunner().invoke(main, ["prepare", "digits", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Path:
    """Write a small text as token files."""
    return write_tokens(tmp_path_factory.mktemp("tokens"))


@pytest.fixture
def bucket() -> Iterator[str]:
    """Yield the name of an empty bucket; boto3 finds it by the environment, here and in child processes."""
    with moto_server("us-east-1"):
        boto3.client("s3").create_bucket(Bucket="checkpoints")
        yield "checkpoints"


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """Give back the handlers that the code under test replaces for good, as its process would end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)

"""What holds for every test."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from gpu_fleet_stacks.rehearsal import lambda_runtime
from gpu_fleet_stacks.settings import projects
from tests.image.alicloud_api import UNDOCUMENTED
from tests.image.recipe.side_by_side import GroupScheduling
from tests.longest import longest_first
from tests.preloaded import make_clients_quickly, preloaded, preloaded_functions

TRAINING = Path(__file__).parent / "training"

# Modules stay to the end: the garbage collector looks at them while they load for nothing, 3 s of 17, and at
# nearly half a million of their objects in every full collection after it.
gc.disable()

make_clients_quickly()

# Processes that a test starts take the packages of this checkout too, whichever is installed: a git worktree
# often shares the environment of another.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [
        *(str(Path(__file__).parents[1] / room) for room in ("stacks", "image", "training")),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)

# pytest runs a process on each core: more threads would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A table is as wide as this says. Python does not know of it where readline set it, programs of tests do.
os.environ.pop("COLUMNS", None)
os.unsetenv("COLUMNS")

# moto makes a thousand images of Amazon whenever it is emptied, 0.1 s each time. Few tests look for one: they
# set this to true.
os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")

# Tests in a shell's background ignore Ctrl-C, and so does every program they start, but some of them send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Timing depends on the machine, so no deadline. The same examples in every run, so that a change is judged by
# what it changed; `make bench` plays new ones.
settings.register_profile("gpu-fleet", deadline=None, derandomize=True)
settings.load_profile("gpu-fleet")


@pytest.fixture(autouse=True)
def project_as_before() -> Iterator[None]:
    """Give the next test the project that this one found: a path sets it until its command's process ends."""
    before = os.environ.get(projects.VARIABLE)
    yield
    os.environ.pop(projects.VARIABLE, None)
    if before is not None:
        os.environ[projects.VARIABLE] = before


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    """Give the next test the handlers of SIGINT and SIGTERM that this one found."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    """Workers that will run trainers are forked, packages and all."""
    paths = [Path(word.partition("::")[0]).resolve() for word in session.config.args]
    trains = any(TRAINING.is_relative_to(path) or path.is_relative_to(TRAINING) for path in paths)
    with preloaded() if trains else nullcontext():
        return (yield)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    """Groups of modules where they are asked for."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, Any]:
    """Every second worker loads modules from the last on, so that no two compile the same at once."""
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    if int(worker) % 2 and isinstance(collector, pytest.Directory):
        report.result.reverse()
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest begin first, the other modules in the order of their paths, the same in each worker."""
    items.sort(key=lambda item: item.path)
    items[:] = longest_first(items)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but for what the modules made."""
    gc.freeze()
    # at Python's own 700 objects a fifth of a test that sweeps was collecting
    gc.set_threshold(100_000, 50, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def _answers_are_documented() -> Iterator[None]:
    """No stand-in of Alibaba Cloud was asked or answered what the cloud does not document."""
    yield
    found = sorted(set(UNDOCUMENTED))
    UNDOCUMENTED.clear()
    assert found == []


@pytest.fixture
def forked() -> Iterator[None]:
    """Trainers that a test starts are forked, packages and all; see tests/preloaded.py."""
    with preloaded():
        yield


@pytest.fixture(scope="session")
def lambda_packages(tmp_path_factory) -> Path:
    """The packages that Lambda brings, and no others."""
    return lambda_runtime.laid_out(tmp_path_factory.mktemp("lambda") / "packages")


@pytest.fixture
def forked_functions(lambda_packages) -> Iterator[None]:
    """Functions that a test calls by their archives are forked, Lambda's packages and all."""
    with preloaded_functions(lambda_packages):
        yield

"""What holds for every test."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.reaper.alicloud_api import UNDOCUMENTED

# Processes that a test starts take the trainer of this checkout too, whichever is installed: a git worktree
# often shares the environment of another.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parents[1] / "training"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# pytest runs a process on each core: more threads would wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests in a shell's background ignore Ctrl-C, and so does every program they start, but some of them send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Timing depends on the machine, so no deadline. The same examples in every run, so that a change is judged by
# what it changed; `make bench` plays new ones.
settings.register_profile("gpu-fleet", deadline=None, derandomize=True)
settings.load_profile("gpu-fleet")


@pytest.fixture(autouse=True)
def _answers_are_documented() -> Iterator[None]:
    """No stand-in of Alibaba Cloud was asked or answered what the cloud does not document."""
    yield
    found = sorted(set(UNDOCUMENTED))
    UNDOCUMENTED.clear()
    assert found == []

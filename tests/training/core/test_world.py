"""The process groups of a run, and processes that are forked from one of its ranks."""

import gc
import os
import signal

import pytest

from gpu_fleet.core.config import Parallel
from gpu_fleet.core.world import world

MOST_S = 30  # a fork that waits for threads that it does not have may also wait for ever


@pytest.fixture
def uncollected():
    """Leave garbage where it is during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.usefixtures("uncollected")
def test_a_forked_reader_collects_no_group_that_its_parent_has_left():
    with world(Parallel(strategy="fsdp")) as where:
        itself = [where]
        itself.append(itself)  # as the traceback of a failed run holds its own frame
    del where, itself

    reader = os.fork()
    if reader == 0:
        signal.alarm(MOST_S)
        gc.collect()
        os._exit(0)

    _, status = os.waitpid(reader, 0)
    assert os.waitstatus_to_exitcode(status) == 0

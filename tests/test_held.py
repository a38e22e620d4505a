"""What holds a run of the tests lets it make no step while it is to stand still."""

import subprocess
import sys
import threading
import time

import psutil

from tests.held import rank_process, slowly

PATIENCE_S = 120
# A rank writes a byte a step; what started it waits for it.
COUNTS = """
import sys, time
with open(sys.argv[1], "ab", buffering=0) as steps:
    while True:
        steps.write(b".")
        time.sleep(0.001)
"""
STARTS = """
import subprocess, sys
subprocess.run([sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]], env={"RANK": "1"})
"""


def until(condition):
    ends = time.monotonic() + PATIENCE_S
    while not (answer := condition()):
        assert time.monotonic() < ends
        threading.Event().wait(0.01)  # polls another process; its clock is not ours
    return answer


def test_a_rank_makes_no_step_while_it_is_to_stand_still_and_others_afterwards(tmp_path):
    count, still = tmp_path / "count", threading.Event()
    words = [sys.executable, "-S", "-c", STARTS, COUNTS, str(count)]
    with subprocess.Popen(words) as process:
        try:
            with slowly(process.pid, still.is_set):
                rank = until(lambda: rank_process(process.pid, 1))
                until(lambda: count.exists() and count.stat().st_size)
                still.set()
                until(lambda: rank.status() == psutil.STATUS_STOPPED)
                stands = until(lambda: _unchanged(count))
                assert rank.status() == psutil.STATUS_STOPPED

                still.clear()
                until(lambda: count.stat().st_size > stands)
            until(lambda: rank.status() != psutil.STATUS_STOPPED)
        finally:
            psutil.Process(process.pid).children()[0].kill()


def _unchanged(count):
    """How many steps there are, where no more come for longer than a held rank stands between two moments."""
    before = count.stat().st_size
    threading.Event().wait(0.3)
    return before if count.stat().st_size == before else 0

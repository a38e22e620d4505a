"""Ctrl-C while a library is loaded."""

import sys

from tests.ran import ran

SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except BaseException:
    pass
raise ImportError("cannot load module more than once per process")
"""


def test_a_library_that_swallows_it_does_not_keep_a_command_from_ending(tmp_path):
    (tmp_path / "swallows.py").write_text(SWALLOWS)

    done = ran(
        [sys.executable, "-c", "from gpu_fleet.core import lazy_groups; lazy_groups.imported('swallows')"],
        cwd=tmp_path,
    )

    assert (done.returncode, done.stderr) == (130, "interrupted\n")

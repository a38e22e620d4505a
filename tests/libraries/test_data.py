"""Kinds of data that need a library: trained on two ranks, interrupted, resumed bit by bit."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


def test_tables_and_records_resume_bit_by_bit(python, tmp_path):
    words = ["-m", "pytest", "tests/libraries/tables.py", "-q", "-p", "no:cacheprovider"]

    done = subprocess.run(
        [python, *words, "--basetemp", tmp_path],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert " skipped" not in done.stdout

"""The interpreter of the rehearsed function sees what Lambda brings, and no other package that is here."""

import sys

import pytest

from gpu_fleet_stacks.rehearsal import lambda_runtime
from gpu_fleet_stacks.rehearsal.sweeps import HANDLE_ONCE
from tests.ran import ran

HANDLER = """
import importlib.util
def handle(event, context):
    return {name: importlib.util.find_spec(name) is not None for name in event}
"""


@pytest.fixture
def call(tmp_path):
    """Calls a handler that says which modules it could import."""
    handler = tmp_path / "function" / "gpu_fleet_image" / "controllers" / "sweep" / "handler.py"
    handler.parent.mkdir(parents=True)
    handler.write_text(HANDLER)
    runtime = lambda_runtime.laid_out(tmp_path / "runtime")
    command = [sys.executable, "-I", "-S", str(HANDLE_ONCE), str(tmp_path / "function")]

    def ask(event):
        return ran([*command, event, str(runtime)], check=True).stdout.strip()

    return ask


def test_boto3_and_what_it_needs_are_there_and_no_other_package_of_this_environment(call):
    there = '["boto3", "botocore", "dateutil", "jmespath", "s3transfer", "six", "urllib3"]'

    assert call(there).count("true") == 7
    assert call('["psutil", "pulumi", "moto", "yaml", "click", "gpu_fleet_stacks"]').count("false") == 6

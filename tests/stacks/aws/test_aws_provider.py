"""The shipped AWS stacks pass the real provider's own validation, if this computer has the provider."""

import json
import shutil
from pathlib import Path

import pytest

from gpu_fleet_stacks.aws.stack import build
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import run_program
from gpu_fleet_stacks.settings import stack_files
from tests.stacks.aws.terraform import MIRROR, VERSION, configuration, provider_schema, terraform
from tests.stacks.conftest import AWS_STACKS
from tests.stacks.examples import BUILDING, stack

HERE = bool(shutil.which("terraform", path="/usr/local/bin:/usr/bin:/bin")) and any(
    MIRROR.rglob(f"*v{VERSION}*")
)
pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(
        not HERE,
        reason=f"needs terraform and terraform-provider-aws {VERSION} under {MIRROR}, which PyPI lacks",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder in which Terraform has the provider; each test writes its own configuration there."""
    return tmp_path_factory.mktemp("terraform")


@pytest.fixture(scope="module")
def schema(folder):
    return provider_schema(folder)


BUILT, COPIED = "the build of an image", "copies in another region"
PROGRAMS = {BUILT: BUILDING, COPIED: stack(storage={"replica_region": "us-west-2"})}


@pytest.mark.parametrize("name", [*AWS_STACKS, *PROGRAMS])
def test_the_real_provider_plans_every_resource(name, schema, folder):
    if name in PROGRAMS:
        with moto_server("us-east-1"):
            rehearsed = run_program("test", program=lambda: build(PROGRAMS[name]), config={})
    else:
        with moto_server(stack_files.settings_of(name).region):
            rehearsed = run_program(name)
    (folder / "main.tf.json").write_text(json.dumps(configuration(rehearsed, schema, folder), indent=1))

    planned = terraform(folder, "plan", "-no-color", "-refresh=false", "-input=false")

    assert planned.returncode == 0, planned.stderr
    assert f"Plan: {len(rehearsed.resources)} to add, 0 to change, 0 to destroy" in planned.stdout
    builder = [resource for resource in rehearsed.resources if resource.type.startswith("aws:imagebuilder/")]
    assert planned.stdout.count("# aws_imagebuilder_") == len(builder)
    assert builder or name != BUILT


def test_the_real_provider_refuses_what_it_does_not_know(schema, folder):
    with moto_server("us-east-1"):
        rehearsed = run_program("aws-dev")
    content = configuration(rehearsed, schema, folder)
    (group,) = list(content["resource"]["aws_autoscaling_lifecycle_hook"].values())[:1]
    group["lifecycle_transition"] = "whenever"
    (folder / "main.tf.json").write_text(json.dumps(content))

    checked = terraform(folder, "validate", "-no-color")

    assert checked.returncode == 1
    assert "lifecycle_transition" in checked.stderr

"""Stacks that boot their own builds: the image before and after the end of the first build."""

import base64
from decimal import Decimal
from types import SimpleNamespace

import boto3
import pulumi_alicloud as alicloud
import pytest
import yaml
from click.testing import CliRunner

from gpu_fleet_image.recipe.payload import PROJECT
from gpu_fleet_stacks.acceptance import variant
from gpu_fleet_stacks.alicloud.stack import build as build_alicloud
from gpu_fleet_stacks.aws.stack import build as build_aws
from gpu_fleet_stacks.cost import check
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import run_program
from gpu_fleet_stacks.settings import ImageMode, reader, stack_files
from tests.stacks import alicloud_examples
from tests.stacks.examples import BUILDING, pool, refusal, stack, stack_file
from tests.stacks.first_boots import STARTS
from tests.stacks.registrations import stood

PARAMETER = "/imagebuilder/gpu-fleet-test/ami"
BUILDS = {"base_id": BUILDING.image.base_id, "payload": BUILDING.image.payload, "mode": "baked"}
FIRST, BUILT = "ami-0123456789abcdef0", "ami-0bbbbbbbbbbbbbbbb"
AWS = stack(image=BUILDS | {"id": FIRST})
ALICLOUD = alicloud_examples.stack(image=BUILDS | {"base_id": "m-2", "id": "m-1"})
ON_ALICLOUD = "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"


def registered(settings, name, value):
    """Return a stack's registrations where a parameter stands before."""
    with moto_server("us-east-1"):
        boto3.client("ssm", region_name="us-east-1").put_parameter(Name=name, Value=value, Type="String")
        return run_program("test", program=lambda: build_aws(settings), config={})


def seed(rehearsed):
    (parameter,) = rehearsed.of_type("aws:ssm/parameter:Parameter")
    return parameter


def config(rehearsed):
    (start,) = [registration for registration in rehearsed.registrations if registration.type in STARTS]
    return yaml.safe_load(base64.b64decode(start.inputs["userData"]))


@pytest.fixture(scope="module")
def first_up():
    return stood(AWS)


def test_before_the_first_build_launches_find_the_image_of_the_stack_file_and_a_later_up_leaves_a_builds(
    first_up,
):
    (template,), parameter = first_up.of_type("aws:ec2/launchTemplate:LaunchTemplate"), seed(first_up)

    assert template.inputs["imageId"] == f"resolve:ssm:{PARAMETER}"
    assert (parameter.inputs["name"], parameter.inputs["insecureValue"]) == (PARAMETER, FIRST)
    assert parameter.inputs["dataType"] == "aws:ec2:image"
    assert parameter.urn in template.dependencies
    assert parameter.ignored_changes == ("insecureValue",)


def test_an_image_that_a_build_wrote_before_stays_the_one_that_boots():
    parameter = seed(registered(AWS, PARAMETER, BUILT))

    assert parameter.inputs["insecureValue"] == BUILT
    assert parameter.inputs["overwrite"] is True  # it stands already: creating it would be refused


def test_a_first_image_behind_a_parameter_is_what_that_names_now():
    named = stack(image=BUILDS | {"parameter": "/ours/ubuntu"})

    assert seed(registered(named, "/ours/ubuntu", BUILT)).inputs["insecureValue"] == BUILT


def test_instances_fetch_the_payload_and_what_a_build_made_does_not(first_up):
    stored = [made.inputs["key"] for made in first_up.of_type("aws:s3/bucketObjectv2:BucketObjectv2")]
    (unit,) = [file for file in config(first_up)["write_files"] if file["path"].endswith(".service")]

    assert len([key for key in stored if key.startswith("image/payload/")]) == 1
    assert "ConditionPathExists=!/usr/share/gpu-fleet/manifest.json\n" in unit["content"]
    assert "ConditionPathExists=!/var/lib/gpu-fleet/bootstrapped\n" in unit["content"]


def test_every_build_and_no_bootstrap_writes_what_the_unit_looks_for():
    steps = PROJECT / "image/gpu_fleet_image/recipe/steps"
    order = (steps / "ORDER").read_text().splitlines()
    (targets,) = [line.split()[1:] for line in order if line.startswith("95-manifest")]

    assert {"aws", "alicloud"} <= set(targets)
    assert "bootstrap" not in targets
    assert "--folder /usr/share/gpu-fleet" in (steps / "95-manifest.sh").read_text()


def on_alicloud(monkeypatch, images, settings=ALICLOUD):
    asked = []

    def answer(**arguments):
        asked.append(arguments)
        return SimpleNamespace(images=images)

    monkeypatch.setattr(alicloud.ecs, "get_images", answer)
    rehearsed = run_program("test", program=lambda: build_alicloud(settings), config={})
    return rehearsed, asked


def test_on_alibaba_cloud_templates_name_the_newest_build(monkeypatch):
    images = [
        SimpleNamespace(image_id="m-older", creation_time="2026-11-01T03:00:00Z"),
        SimpleNamespace(image_id="m-newer", creation_time="2026-11-08T03:00:00Z"),
    ]

    rehearsed, (asked,) = on_alicloud(monkeypatch, images)

    assert {template.inputs["imageId"] for template in rehearsed.of_type(ON_ALICLOUD)} == {"m-newer"}
    assert asked["owners"] == "self"
    assert (asked["status"], asked["name_regex"]) == ("Available", "^gpu-fleet-test_built")


def test_on_alibaba_cloud_there_is_an_image_before_the_first_build(monkeypatch):
    rehearsed, _ = on_alicloud(monkeypatch, [])

    assert {template.inputs["imageId"] for template in rehearsed.of_type(ON_ALICLOUD)} == {"m-1"}
    assert any(file["path"].endswith(".service") for file in config(rehearsed)["write_files"])


def test_on_alibaba_cloud_an_image_that_is_named_as_ours_is_not_looked_up(monkeypatch):
    pinned = alicloud_examples.stack(image=BUILDS | {"base_id": "m-2", "id": "m-1", "bundled": True})

    _, asked = on_alicloud(monkeypatch, [], pinned)

    assert asked == []


def test_what_builds_write_and_a_pool_that_no_build_could_serve_are_refused_before_the_first():
    written = stack_file(image=BUILDS | {"parameter": PARAMETER})
    older = stack_file(image=BUILDS | {"id": FIRST}, pools=[pool(types=["p3.2xlarge"])])

    assert f"parameter = '{PARAMETER}': is written by builds" in refusal(written)
    assert "need Turing or newer; p3.2xlarge is older" in refusal(older)


def test_check_says_what_instances_boot_in_every_mode(monkeypatch):
    images = {
        "(`gpu-fleet image build test`); until the first has ended FIRST, boot": BUILDS | {"id": FIRST},
        "image: FIRST, bootstrapped\n": {"id": FIRST},
        f"image: what {PARAMETER} names, baked\n": {"parameter": PARAMETER, "mode": "baked", "bundled": True},
        "image: FIRST, nothing of gpu-fleet runs there\n": {"id": FIRST, "mode": "none"},
    }

    for words, image in images.items():
        monkeypatch.setattr(stack_files, "settings_of", lambda name, image=image: stack(image=image))
        assert words.replace("FIRST", FIRST) in CliRunner().invoke(check.check, ["test"]).stdout


@pytest.mark.parametrize("name", ["aws-prod", "alicloud-prod"])
def test_the_stack_of_an_acceptance_run_bootstraps(name):
    """It builds no image, and lives for an hour."""
    real = stack_files.settings_of(name)
    kind = variant.chosen_type(real.cloud, None)
    made = variant.config(stack_files.config_of(stack_files.path_of(name)), real, kind, Decimal(500))
    own = {key.removeprefix("gpu-fleet:"): made[key] for key in made if key.startswith("gpu-fleet:")}
    small = reader.from_mapping(variant.name_of(name), own)

    assert small.image.mode is ImageMode.BOOTSTRAP
    assert (small.image.id, small.image.parameter) == (real.image.id, real.image.parameter)

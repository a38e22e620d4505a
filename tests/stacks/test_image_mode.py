"""Sources of agent and gate: the registrations of each mode, and refusals."""

import base64
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

from gpu_fleet_stacks.alicloud import launch as alicloud_launch
from gpu_fleet_stacks.aws import launch as aws_launch
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.cost import check, notice
from gpu_fleet_stacks.payload import user_data
from gpu_fleet_stacks.payload.instance_file import instance_toml
from gpu_fleet_stacks.settings import stack_files
from tests.stacks import alicloud_examples
from tests.stacks.examples import pool, refusal, stack, stack_file
from tests.stacks.first_boots import ALICLOUD, AWS, STARTS
from tests.stacks.registrations import declared

OBJECTS = {"aws:s3/bucketObjectv2:BucketObjectv2", "alicloud:oss/bucketObject:BucketObject"}
AMI, IMAGE = "ami-0123456789abcdef0", "m-wz90000000000000000"
MODES = {
    "bootstrap": {"mode": "bootstrap"},
    "baked": {"mode": "baked", "bundled": True},
    "none": {"mode": "none"},
}


def configs(rehearsed):
    """Return cloud-init's input of every resource that starts instances."""
    starting = [made for made in rehearsed.registrations if made.type in STARTS]
    return [yaml.safe_load(base64.b64decode(made.inputs["userData"])) for made in starting]


def payloads(rehearsed):
    objects = [made for made in rehearsed.registrations if made.type in OBJECTS]
    return [made for made in objects if made.inputs["key"].startswith("image/payload/")]


@pytest.fixture(params=["aws", "alicloud"])
def build(request):
    """Return a function that registers a stack of either cloud in a mode."""
    stack_of, image = {"aws": (stack, AMI), "alicloud": (alicloud_examples.stack, IMAGE)}[request.param]
    return lambda mode: declared(stack_of(image={"id": image} | MODES[mode]))


def test_the_default_is_to_bootstrap_and_production_boots_what_it_builds():
    modes = {name: stack_files.settings_of(name).image for name in (*AWS, *ALICLOUD)}

    assert {name for name, image in modes.items() if image.follows_builds} == {"aws-prod", "alicloud-prod"}
    assert {image.mode for name, image in modes.items() if not name.endswith("-prod")} == {"bootstrap"}


def test_a_bootstrap_stores_the_payload_before_any_group_starts_an_instance(build):
    rehearsed = build("bootstrap")
    (stored,) = payloads(rehearsed)

    assert stored.retained
    made = rehearsed.registrations
    groups = [each for each in made if each.type.endswith(("group:Group", ":ScalingGroup"))]
    assert groups
    assert all(stored.urn in group.dependencies for group in groups)


def test_no_other_mode_stores_or_fetches_one_and_only_an_agent_has_a_licence_and_is_waited_for(build):
    for mode in MODES:
        rehearsed, has_agent = build(mode), mode != "none"
        starts = [made for made in rehearsed.registrations if made.type in STARTS]
        text = str([made.inputs for made in starts])
        hooks = [made for made in rehearsed.registrations if made.type.endswith(":LifecycleHook")]

        assert ("gpu-fleet:managed" in text, bool(hooks)) == (has_agent, has_agent)
        assert "gpu-fleet:pool" in text
        if mode == "bootstrap":
            continue
        assert payloads(rehearsed) == []
        for config in configs(rehearsed):
            assert [file["path"] for file in config["write_files"]] == ["/etc/gpu-fleet/instance.toml"]
            assert "runcmd" not in config


def test_check_and_preview_say_that_nothing_is_terminated(monkeypatch, caplog, register):
    settings = stack(image={"id": AMI, "mode": "none"})
    monkeypatch.setattr(stack_files, "settings_of", lambda name: settings)

    said = CliRunner().invoke(check.check, ["test"])
    register(settings)

    assert "warning: image.mode = 'none': the sweep terminates nothing here" in said.stderr
    assert "the sweep terminates nothing here" in caplog.text
    assert notice.image_warning(stack()) == ""


def test_a_mode_that_does_not_fit_its_image_is_refused():
    types = {"types": ["ecs.gn8v-8x.48xlarge"], "erdma": True, "scratch_gib": 100}
    cluster = alicloud_examples.pool(name="cluster", **types)
    without_an_agent = alicloud_examples.stack_file(image={"id": IMAGE, "mode": "none"}, pools=[cluster])
    on_aws = {
        "image.mode = 'cloud-init'": {"mode": "cloud-init"},
        "image.mode = 'baked': needs image.bundled: true": {"mode": "baked"},
        "image.mode = 'bootstrap': must be baked where image.bundled is true": {"bundled": True},
    }

    said = {says: refusal(stack_file(image={"id": AMI} | image)) for says, image in on_aws.items()}
    assert {says: text for says, text in said.items() if says not in text} == {}
    assert "in cluster only the agent asks for metadata tokens" in refusal(without_an_agent)


def test_user_data_that_the_cloud_would_refuse_is_one_message():
    settings = stack(pools=[pool(types=["g5.xlarge"])])
    long = instance_toml(settings, settings.pools[0], "s3://c", "s3://d") + "#" * user_data.LARGEST_BYTES

    with pytest.raises(StacksError, match=r"pools: user data of pool '\w+' has \d+ bytes, 16384 are allowed"):
        user_data.cloud_config(settings, settings.pools[0], long, "bucket")


@pytest.mark.parametrize("name", [*AWS, *ALICLOUD])
def test_the_user_data_of_a_shipped_stack_leaves_room(name):
    """A pool with a dozen more types still fits."""
    settings, (checkpoints, data) = stack_files.settings_of(name), (f"s3://{letter * 80}" for letter in "cd")
    for each in settings.pools:
        text = instance_toml(settings, each, checkpoints, data, home="h" * 80, scratch="s" * 80)
        config = user_data.cloud_config(settings, each, text, "b" * 63)
        assert len(config) < user_data.LARGEST_BYTES - 3000


@pytest.mark.parametrize("name", ["aws-dev", "alicloud-dev"])
def test_user_data_that_the_cloud_would_refuse_is_said_before_anything_is_declared_of_the_pool(
    name, monkeypatch
):
    monkeypatch.setattr(user_data, "LARGEST_BYTES", 100)
    settings = stack_files.settings_of(name)
    module = aws_launch if name.startswith("aws") else alicloud_launch
    names = ("home", "scratch", "scratch_mount_name", "monitor_group", "user_role_arn", "queue")
    unknown = dict.fromkeys(names)  # no output is asked before
    args = SimpleNamespace(stack=settings, pool=settings.pools[0], **unknown)

    with pytest.raises(StacksError, match="user data of pool 'dev'"):
        module._user_data(args)

"""Images of Alibaba Cloud: built from the recipe's payload, or imported from a baked disk."""

import hashlib

import pytest

from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.settings import stack_files
from tests.stacks.alicloud_examples import stack
from tests.stacks.alicloud_programs import STACKS, everything, inputs, shipped
from tests.stacks.registrations import ROOT, declared, run

COMPONENT = "alicloud:ecs/ecsImageComponent:EcsImageComponent"
PIPELINE = "alicloud:ecs/ecsImagePipeline:EcsImagePipeline"
OBJECT = "alicloud:oss/bucketObject:BucketObject"


PACKAGES, VERSIONS = (f"image/gpu_fleet_image/recipe/{name}.toml" for name in ("packages", "versions"))
RECORDS = "gpu-fleet-test-records-1234567890123456"


def stored_as(name):
    return hashlib.sha256((ROOT / name).read_bytes()).hexdigest()


def test_a_recipe_is_stored_under_its_own_hash():
    (stored,) = inputs(everything(), OBJECT, name="-payload")

    assert stored["key"] == f"image/{stored_as(PACKAGES)}.toml"
    assert stored["source"] == str(ROOT / PACKAGES)


def test_a_build_fetches_the_recipe_inside_the_network_by_tls_and_checks_its_hash_before_it_runs():
    (component,) = inputs(everything(), COMPONENT)
    steps = component["content"].splitlines()

    assert f"https://{RECORDS}.oss-cn-shenzhen-internal.aliyuncs.com/image/" in component["content"]
    digest = f"echo '{stored_as(PACKAGES)}"
    (checked,) = [index for index, step in enumerate(steps) if digest in step]
    (run,) = [index for index, step in enumerate(steps) if "TARGET=alicloud" in step]
    assert checked < run
    assert all(step.startswith("RUN ") for step in steps)


def test_a_pipeline_builds_the_component_on_the_named_base_in_a_private_vswitch():
    (pipeline,) = inputs(everything(), PIPELINE)
    (component,) = everything().of_type(COMPONENT)

    assert pipeline["buildContent"] == f"COMPONENT {component.id}"
    assert pipeline["baseImage"] == "ubuntu_24_04_x64_20G_alibase_20260101.vhd"
    switches = everything().of_type("alicloud:vpc/switch:Switch")
    assert pipeline["vswitchId"] in {made.id for made in switches if "-private-" in made.name}
    assert pipeline["deleteInstanceOnFailure"] is True


def test_another_recipe_is_another_component():
    def name(payload):
        image = {"id": "m-1", "base_id": "m-2", "payload": payload}
        return inputs(declared(stack(image=image)), COMPONENT)[0]["imageComponentName"]

    assert name(PACKAGES) != name(VERSIONS)


def test_a_baked_disk_is_imported_through_the_records_bucket():
    (imported,) = inputs(everything(), "alicloud:ecs/imageImport:ImageImport")

    (mapping,) = imported["diskDeviceMappings"]
    place = {"ossBucket": RECORDS, "ossObject": f"image/{stored_as(VERSIONS)}.toml"}
    assert mapping.items() >= {"format": "qcow2", "diskImageSize": 100, **place}.items()


def test_a_file_that_is_missing_is_named():
    image = {"id": "m-1", "base_id": "m-2", "payload": "build/nonesuch.tar"}

    with pytest.raises(StacksError, match=r"image\.payload = 'build/nonesuch\.tar': .* cannot be read: No"):
        run(stack(image=image))


@pytest.mark.parametrize("name", STACKS)
def test_a_shipped_stack_builds_on_the_base_that_it_names_and_nothing_without_one(name):
    image, found = stack_files.settings_of(name).image, shipped(name)

    bases = [pipeline["baseImage"] for pipeline in inputs(found, PIPELINE)]
    assert bases == ([image.base_id] if image.built else [])
    assert bool(found.outputs["image_pipeline_id"]) is image.built

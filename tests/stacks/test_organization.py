"""Requirements of an organisation for every resource, on both clouds."""

import json

import pytest
from pulumi.runtime import config

from gpu_fleet_stacks.settings import reader
from gpu_fleet_stacks.settings.schema import MOST_TAGS
from tests.stacks import alicloud_examples, examples
from tests.stacks.alicloud_programs import ACCESS, STORAGE
from tests.stacks.registrations import declared

TAGS = {"CostCentre": "4711", "Confidentiality": "internal"}
OBJECTS_MOST = 10  # tags, docs.aws.amazon.com/AmazonS3/latest/userguide/object-tagging.html
BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"
QUEUED = {"queue": "slurm", "access": ACCESS, "tags": TAGS}
STACKS = {
    "aws": examples.stack(
        **QUEUED,
        storage={"home": True},
        image={"id": "ami-0123456789abcdef0", "base_id": "ami-0123456789abcdef1"},
        aws={"permissions_boundary": BOUNDARY},
    ),
    "alicloud": alicloud_examples.stack(**QUEUED, storage=STORAGE | {"home": True}),
}


def tagged(inputs):
    """Yield every set of tags in a resource's inputs, as a dictionary; those of groups are lists."""
    if isinstance(inputs, dict):
        yield from ([inputs] if "gpu-fleet:stack" in inputs else [])
        # a map by which images are chosen is no set of tags
        for value in (value for key, value in inputs.items() if key != "tagMap"):
            yield from tagged(value)
    if isinstance(inputs, list):
        pairs = [each for each in inputs if isinstance(each, dict) and each.keys() >= {"key", "value"}]
        yield from tagged({each["key"]: each["value"] for each in pairs}) if pairs else ()
        for value in inputs:
            yield from tagged(value)


@pytest.mark.parametrize("cloud", STACKS)
def test_every_resource_with_tags_has_those_of_the_organisation_too(cloud):
    sets = [(made.name, tags) for made in declared(STACKS[cloud]).resources for tags in tagged(made.inputs)]

    assert len(sets) > 30
    assert [(name, tags) for name, tags in sets if not tags.items() >= TAGS.items()] == []


def test_an_object_of_s3_has_room_for_all_tags_that_an_organisation_may_ask():
    objects = declared(STACKS["aws"]).of_type("aws:s3/bucketObjectv2:BucketObjectv2")

    assert {len(stored.inputs["tags"].keys() - TAGS) + MOST_TAGS for stored in objects} == {OBJECTS_MOST}


def test_every_role_has_the_organisations_boundary_and_none_where_no_one_is_asked():
    asked, plain = (declared(each).of_type("aws:iam/role:Role") for each in (STACKS["aws"], examples.stack()))

    assert {role.inputs.get("permissionsBoundary") for role in asked} == {BOUNDARY}
    assert not [role for role in plain if "permissionsBoundary" in role.inputs]


def test_what_an_organisation_asks_arrives_as_the_engine_sends_it(monkeypatch):
    """The engine sends mappings and lists as JSON, and other values as text."""
    more = {"aws": {"permissions_boundary": BOUNDARY}, "teams": {"no-team": {"share": 2}}, "protected": True}
    asked = examples.stack_file(**QUEUED, storage={"home": True}, **more)
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in asked.items()}
    sent = {f"gpu-fleet:{key}": text for key, text in texts.items()}
    monkeypatch.setattr("pulumi.get_stack", lambda: "test")
    monkeypatch.setattr(config, "get_config_env", lambda: sent)

    assert reader.load() == reader.from_mapping("test", asked)

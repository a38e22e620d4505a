"""The committed list of regions against what the SDK knows."""

import json
from pathlib import Path

import botocore

from stacks import catalog
from stacks.catalog import Cloud, regions

PARTITIONS = ("aws", "aws-us-gov")


def test_the_regions_of_aws_are_those_of_the_sdk():
    content = json.loads((Path(botocore.__file__).parent / "data" / "partitions.json").read_text())
    known = {
        region
        for partition in content["partitions"]
        if partition["id"] in PARTITIONS
        for region in partition["regions"]
        if not region.endswith("-global")
    }

    assert set(regions.of_cloud(Cloud.AWS)) == known


def test_the_price_lists_are_of_regions_that_a_stack_may_be_in():
    for found in catalog.load():
        assert found.price is None or found.price.region in regions.of_cloud(found.cloud)

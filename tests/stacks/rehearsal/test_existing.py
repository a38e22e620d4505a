"""A rehearsal of a stack that stands on what is there already: that is made first, as its owner would."""

import json
import re

import pytest
import yaml
from click.testing import CliRunner

from gpu_fleet_stacks.rehearsal import existing
from gpu_fleet_stacks.rehearsal.__main__ import main
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from tests.stacks import alicloud_examples, examples
from tests.stacks.edits import EXISTING, EXISTING_VSWITCHES

REGION = "us-east-1"
BORROWED = {
    "aws": {
        "buckets": {"lab-datasets": {}, "lab-results": {"write": True}},
        "home": {"id": "fs-0123456789abcdef0"},
        "scratch": {"id": "fs-0fedcba9876543210", "mount_name": "abcdefgh"},
    },
    "alicloud": {
        "buckets": {"lab-datasets": {}, "lab-results": {"write": True}},
        "home": {"id": "extreme-00151a2b3c"},
        "scratch": {"id": "cpfs-00151a2b3c4d5e6f"},
    },
}


def file_of(cloud, **storage):
    """A stack file with everything of somebody else's."""
    if cloud == "aws":
        content = examples.stack_file(network={"zones": list(EXISTING["subnets"]), "existing": EXISTING})
    else:
        network = {"zones": list(EXISTING_VSWITCHES["subnets"]), "existing": EXISTING_VSWITCHES}
        content = alicloud_examples.stack_file(network=network)
        storage |= {"kms_instance_id": "kst-szh0000000000000000"}
    return content | {"storage": {"existing": BORROWED[cloud]} | storage}


@pytest.mark.parametrize("cloud", BORROWED)
def test_a_stack_with_existing_things_is_rehearsed_to_its_end(cloud, tmp_path, monkeypatch):
    config = {f"gpu-fleet:{key}": value for key, value in file_of(cloud).items()}
    (tmp_path / "Pulumi.guest.yaml").write_text(yaml.safe_dump({"config": config}))
    monkeypatch.setenv("GPU_FLEET_DIR", str(tmp_path))

    done = CliRunner().invoke(main, ["guest", "--folder", str(tmp_path / "build")])

    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "build" / "rehearsal.json").read_text())
    assert written["resources"]["recorded"] + written["resources"]["created"] > 40
    assert ("lab-datasets" in done.output) is (cloud == "aws")
    assert re.findall(r"^(\d)\. ", done.output, re.MULTILINE) == ["1", "2", "3"]


def test_what_is_named_is_made_with_subnets_for_every_zone_and_encrypted_homes():
    settings = examples.stack(
        "guest", **{k: v for k, v in file_of("aws").items() if k in ("network", "storage")}
    )

    with moto_server(REGION):
        clients = RegionClients(REGION)
        ids = existing.made(clients, settings)
        (files,) = clients("efs").describe_file_systems()["FileSystems"]
        subnets = clients("ec2").describe_subnets(Filters=[{"Name": "vpc-id", "Values": [*ids.values()]}])
        zones = {subnet["AvailabilityZone"]: subnet["SubnetId"] for subnet in subnets["Subnets"]}
        clients.pool.close()

    assert zones == {zone: ids[subnet] for zone, subnet in EXISTING["subnets"].items()}
    assert files["Encrypted"]
    assert files["NumberOfMountTargets"] == len(zones)
    assert ids["fs-0123456789abcdef0"] == files["FileSystemId"]

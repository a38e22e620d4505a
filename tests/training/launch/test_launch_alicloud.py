"""Launching on Alibaba Cloud, against a metadata service and a scaling API that answer as documented."""

import json
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import pytest
from click.testing import CliRunner

from gpu_fleet import cli
from gpu_fleet_jobs.launch import alicloud_peers
from tests.answering import Answer, Asked, answering
from tests.image.metadata_server import Server, metadata_server

INSTANCE_FILE = """
schema_version = 1
cloud = "alicloud"
region = "cn-shanghai"
stack = "alicloud-dev"
pool = "train"
[expected."ecs.ebmgn8v.48xlarge"]
gpus = 8
erdma_interfaces = 2
"""
CONFIG = """
[run]
directory = "runs/first"
steps = 10
[model]
name = "resnet_small"
[data]
path = "/nowhere"
"""
FACTS = {
    "instance-id": "i-2",
    "instance/instance-type": "ecs.ebmgn8v.48xlarge",
    "private-ipv4": "10.0.0.10",
    "ram/security-credentials/": "TrainRole",
    "ram/security-credentials/TrainRole": json.dumps(
        {"AccessKeyId": "STS.id", "AccessKeySecret": "secret", "SecurityToken": "token"}
    ),
}


@dataclass
class Cloud:
    """DescribeScalingInstances in pages of two."""

    members: list[dict]
    queries: list[dict] = field(default_factory=list)
    metadata: Server | None = None

    def answer(self, asked: Asked) -> Answer:
        query = dict(parse_qsl(urlsplit(asked.path).query))
        self.queries.append(query)
        if query["AccessKeyId"] != "STS.id":
            return 403, {}, b'{"Code": "Forbidden", "Message": "no"}'
        found = [
            member
            for member in self.members
            if query.get("InstanceIds.1", member["InstanceId"]) == member["InstanceId"]
        ]
        start = 2 * (int(query["PageNumber"]) - 1)
        page = {"ScalingInstances": found[start : start + 2], "TotalCount": len(found)}
        return 200, {}, json.dumps(page).encode()


def member(number: int, address: str, state: str = "InService") -> dict:
    return {
        "InstanceId": f"i-{number}",
        "ScalingGroupId": "asg-1",
        "LifecycleState": state,
        "PrivateIpAddress": address,
    }


@pytest.fixture
def cloud(monkeypatch, tmp_path):
    """Serve a group of three; this instance is the second."""
    (tmp_path / "instance.toml").write_text(INSTANCE_FILE)
    (tmp_path / "config.toml").write_text(CONFIG)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(tmp_path / "instance.toml"))
    made = Cloud([member(1, "10.0.0.11"), member(2, "10.0.0.10"), member(3, "10.0.0.9", "Protected")])
    with metadata_server("alicloud") as metadata, answering(made.answer) as url:
        for place, fact in FACTS.items():
            metadata.says(place, fact)
        monkeypatch.setenv("GPU_FLEET_ALICLOUD_METADATA_ENDPOINT", metadata.base)
        monkeypatch.setattr(alicloud_peers, "ENDPOINT", url)
        made.metadata = metadata
        yield made


def dry_run(tmp_path):
    config_file = str(tmp_path / "config.toml")
    return CliRunner().invoke(cli.main, ["launch", config_file, "--dry-run", "--nproc-per-node", "8"])


def test_the_scaling_group_meets_at_its_lowest_address_by_calls_that_the_role_signs(cloud, tmp_path):
    result = dry_run(tmp_path)

    assert result.exit_code == 0, result.output
    assert "--nnodes=3 --rdzv-backend=c10d --rdzv-endpoint=10.0.0.9:29400" in result.output
    assert "--rdzv-id=alicloud-dev.train.first" in result.output
    assert "NCCL_IB_HCA=erdma" in result.output
    assert {query["SecurityToken"] for query in cloud.queries} == {"token"}
    assert len({query["Signature"] for query in cloud.queries}) == len(cloud.queries) > 0


def test_a_member_on_its_way_in_is_waited_for(cloud, tmp_path):
    cloud.members.append(member(4, "10.0.0.12", "Pending:Wait"))

    result = dry_run(tmp_path)

    assert result.exit_code == 75
    assert "3 of 4 instances are InService; wait for i-4" in result.output


def test_an_instance_without_a_group_trains_alone(cloud, tmp_path):
    cloud.members.clear()

    assert "--standalone" in dry_run(tmp_path).output


def test_a_refused_call_is_reported(cloud, tmp_path):
    denied = json.dumps({"AccessKeyId": "other", "AccessKeySecret": "secret", "SecurityToken": "token"})
    cloud.metadata.says("ram/security-credentials/TrainRole", denied)

    result = dry_run(tmp_path)

    assert result.exit_code == 75
    assert "peers cannot be found: 127.0.0.1" in result.output
    assert "Forbidden" in result.output

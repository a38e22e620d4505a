"""From the console's command to a page: two instances of moto measure storage, all-reduce and training."""

import json
import time
from datetime import UTC, datetime

import boto3
import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.core.capacity import Fate, Request
from tests.image.console.runs.instances import (
    REGION,
    WHERE,
    deliver,
    fleet_of_two,
    reach_by_their_addresses,
    say_of_requests,
)

POC = ("poc", "train", "--nodes", "1,2", "--max-usd", "20", "--as", "ada", "--yes", "-o", "json")
SHORT = ("--seconds", "0.2", "--size-mib", "16")


def filling(nodes):
    """Of each request the next instances, which carry its key from then on."""
    left = list(nodes)

    def fill(key, count):
        chosen = [left.pop(0).id for _ in range(count)]
        tags = [{"Key": "gpu-fleet:taken", "Value": key}]
        boto3.client("ec2", REGION).create_tags(Resources=chosen, Tags=tags)
        return Request(key, "train", count, None, datetime.now(UTC), Fate.FILLED, "", tuple(chosen))

    return fill


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with fleet_of_two(tmp_path_factory.mktemp("fleet")) as made:
        yield made


@pytest.fixture
def world(fleet, monkeypatch):
    """While the console waits, the mover's minute comes and instances work. Gives their processes."""
    _, nodes = fleet
    known, fill, running, sleep = {}, filling(nodes), [], time.sleep
    delivered = set()

    def wait(seconds):
        say_of_requests(known, fill)
        for sent in boto3.client("ssm", REGION).list_commands()["Commands"]:
            if sent["CommandId"] not in delivered:
                delivered.add(sent["CommandId"])
                running.extend(deliver(fleet, {"PET_NPROC_PER_NODE": "1", "GPU_FLEET_SAY_EVERY_S": "0.5"}))
        sleep(min(seconds, 0.3))

    reach_by_their_addresses(monkeypatch, nodes)
    monkeypatch.setattr(time, "sleep", wait)
    return running


@pytest.mark.prove
def test_two_instances_are_measured_one_by_one_together_and_given_back(fleet, world, tmp_path):
    said = CliRunner().invoke(main, [*POC, *SHORT, "--to", str(tmp_path), *WHERE])

    assert said.exception is None or isinstance(said.exception, SystemExit), said.exception
    result = json.loads((tmp_path / "poc.json").read_text())
    assert json.loads(said.stdout) == result  # and nothing else on standard output
    assert (result["outcome"], result["reason"]) == ("complete", ""), said.output
    figures = {(row["subject"], row["metric"], row["nodes"]): row for row in result["rows"]}
    assert figures["all_reduce", "bus_bandwidth", 2]["value"] > 0
    assert figures["bucket", "put", 1]["value"] > 0
    efficiency = figures["gpt_of_two_layers", "efficiency", 2]
    assert efficiency["value"] > 0
    assert (efficiency["verdict"], efficiency["stands_for"]) == ("unknown", "gpt2_124m")
    assert figures["gpt_of_two_layers", "samples_per_usd", 2]["value"] > 0
    assert not result["passed"]
    assert said.exit_code == 1
    assert len(result["given_back"]) == 2
    tags = {
        tag["Key"]
        for reservation in boto3.client("ec2", REGION).describe_instances()["Reservations"]
        for instance in reservation["Instances"]
        for tag in instance["Tags"]
    }
    assert "gpu-fleet:give-back" in tags
    assert "in place of GPT-2 124M" in (tmp_path / "poc.html").read_text()

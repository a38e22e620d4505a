"""The commands of the page about the sweep work, against a moto that plays the cloud."""

import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from gpu_fleet_image.controllers.meter.meter_state import Day
from tests.image.moto_fleet import REGION, TAGS, budget_json, write_policy
from tests.image.one_instance import client, one_instance
from tests.ran import ran

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/how-to/operate-the-sweep.md"
COMMANDS = [line for line in PAGE.read_text().splitlines() if line.startswith("gpu-fleet ") and '"$' in line]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    with one_instance(folder) as made:
        s3 = client(made, "s3")
        s3.create_bucket(Bucket="records")
        day = Day(datetime(2026, 11, 20, tzinfo=UTC), {"dev": Decimal("24.62")})
        key = "reaper/days/2026/11/2026-11-20.json"
        s3.put_object(Bucket="records", Key=key, Body=json.dumps(day.to_json()))
        yield made | {
            "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "image"),
            "FOLDER": str(folder),
            "LEDGER": "s3://records/reaper",
            "INSTANCE": started(client(made, "ec2")),
            "POLICY": str(write_policy(folder / "policy.json", budget=budget_json())),
            "REGION": REGION,
        }


def started(ec2):
    """Start a new instance of the fleet."""
    wire = [{"Key": key, "Value": value} for key, value in TAGS.items()]
    answer = ec2.run_instances(
        ImageId="ami-12c6146b",
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": wire}],
    )
    return answer["Instances"][0]["InstanceId"]


def test_the_page_shows_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_works(command, environment):
    done = ran(
        ["bash", "-euo", "pipefail", "-c", command], cwd=environment["FOLDER"], env=environment, timeout=120
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

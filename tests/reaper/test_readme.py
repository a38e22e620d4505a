"""The commands of the reaper's README work, against a moto that plays the cloud."""

import os
import re
import subprocess
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from image.reaper.model import TAG_MANAGED, TAG_OWNER, TAG_POOL, TAG_STACK
from tests.reaper.machine_file import MACHINE_FILE
from tests.reaper.moto_fleet import REGION, write_policy

ROOT = Path(__file__).parents[2]
README = ROOT / "image/reaper/README.md"
COMMANDS = [line.strip() for line in README.read_text().splitlines() if line.startswith("    python ")]
TAGS = {TAG_STACK: "test", TAG_POOL: "dev", TAG_OWNER: "ada", TAG_MANAGED: "true"}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    folder = tmp_path_factory.mktemp("readme")
    (folder / "instance.toml").write_text(MACHINE_FILE)
    made = os.environ | {
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "made-up",
        "AWS_SECRET_ACCESS_KEY": "made-up",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:9",
        "GPU_FLEET_INSTANCE_FILE": str(folder / "instance.toml"),
        "GPU_FLEET_RUN_DIR": str(folder / "run"),
        "POLICY": str(write_policy(folder / "policy.json")),
        "LEDGER": "s3://records/reaper",
        "REGION": REGION,
    }
    yield made | {"MACHINE": machine(made), "FOLDER": str(folder)}
    server.stop()


def machine(environment):
    """Start a machine of the fleet and make the ledger's bucket."""
    keys = {"aws_access_key_id": "made-up", "aws_secret_access_key": "made-up"}
    session = boto3.Session(region_name=REGION, **keys)
    endpoint = environment["AWS_ENDPOINT_URL"]
    session.client("s3", endpoint_url=endpoint).create_bucket(Bucket="records")
    wire = [{"Key": key, "Value": value} for key, value in TAGS.items()]
    started = session.client("ec2", endpoint_url=endpoint).run_instances(
        ImageId="ami-12c6146b",
        InstanceType="g5.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": wire}],
    )
    return started["Instances"][0]["InstanceId"]


def test_the_readme_shows_commands():
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_readme_works(command, environment):
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=environment["FOLDER"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_every_file_that_the_readme_names_is_there():
    table = [line.split("|")[1] for line in README.read_text().splitlines() if line.startswith("| `")]
    named = [name for cell in table for name in re.findall(r"`([a-z_]+(?:\.py|/))`", cell)]

    assert len(named) > 20
    assert [name for name in named if not (README.parent / name).exists()] == []

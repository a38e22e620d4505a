"""`gpu-fleet connect`: the right instance, the cloud's session program, messages about missing parts."""

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.users.connect import Forward, chosen, document_of, session
from gpu_fleet_image.core.model import TAG_OWNER, TAG_POOL, Instance
from gpu_fleet_image.core.place import Place
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from tests.image.moto_fleet import REGION, STACK, TAGS
from tests.image.one_instance import client, one_instance
from tests.ran import executable, ran

ROOT = Path(__file__).parents[4]


def instance(number: int, pool: str, owner: str) -> Instance:
    tags = {TAG_POOL: pool, TAG_OWNER: owner}
    return Instance(f"i-{number}", "g5.xlarge", "running", datetime.now(UTC), tags)


FLEET = [instance(1, "dev", "ada"), instance(2, "dev", "bob"), instance(3, "train", "ada")]


def program(folder: Path, name: str) -> None:
    """Write a program that prints its arguments."""
    path = folder / name
    executable(path, '#!/bin/sh\nfor word in "$0" "$@"; do echo "${word##*/}"; done\n')


AWS = "aws ssm start-session --region r --target i-1"
ALICLOUD = "ali-instance-cli {} --region r"
PORT = Forward(8888, 9999)
FORWARD = document_of(Place("test", "aws", "r"), PORT)
PORTS = ' --parameters {"portNumber":["8888"],"localPortNumber":["9999"]}'


@pytest.mark.parametrize(
    ("cloud", "forward", "document", "command"),
    [
        ("aws", None, "", AWS),
        ("aws", None, "gpu-fleet-test-session", f"{AWS} --document-name gpu-fleet-test-session"),
        ("aws", PORT, FORWARD, f"{AWS} --document-name gpu-fleet-test-forward{PORTS}"),
        ("alicloud", None, "", ALICLOUD.format("session --instance i-1")),
        (
            *("alicloud", PORT, ""),
            ALICLOUD.format("portforward --instance i-1 --local-port 9999 --remote-port 8888"),
        ),
    ],
)
def test_a_session_is_opened_by_the_clouds_own_program_and_the_stacks_document(
    cloud, forward, document, command
):
    words = session(cloud, "r", "i-1", forward, document)

    assert [word.replace(" ", "") for word in words] == command.split()


@pytest.mark.parametrize(
    ("wanted", "found"),
    [(("i-2", None, None), "i-2"), ((None, "train", None), "i-3"), ((None, None, "bob"), "i-2")],
)
def test_an_instance_is_chosen_by_what_is_said_of_it(wanted, found):
    assert chosen(FLEET, *wanted).id == found


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (("i-9", None, None), r"i-9: no running instance of this stack \(nearest: i-"),
        ((None, "serve", None), "running: dev of ada, dev of bob, train of ada"),
        ((None, "dev", None), r"2 instances match; name one:\n  1 i-1 \(dev, g5.xlarge, ada\)\n  2 i-2"),
    ],
)
def test_what_fits_none_or_several_is_one_message(wanted, message):
    with pytest.raises(ConfigurationError, match=message):
        chosen(FLEET, *wanted)


PRIVILEGED = "allowed: 22, or from 1024 on but 2049 and 20049"
WRONG_PORTS = {
    **dict.fromkeys(("0", "70000", "80:", "a", "1:2:3", "²"), "allowed: PORT or PORT:LOCAL-PORT"),
    **dict.fromkeys(("823", "111", "2049", "20049", "1023", "20049:8888"), PRIVILEGED),
}


@pytest.mark.parametrize("port", WRONG_PORTS)
@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_a_port_that_is_none_or_believes_root_is_not_forwarded(cloud, port):
    asked = ["connect", "--stack", "x", "--region", "r", "--cloud", cloud, "--forward", port]

    done = CliRunner().invoke(main, asked)

    assert done.exit_code == 2
    assert WRONG_PORTS[port] in done.output


@pytest.mark.parametrize(
    ("cloud", "there", "missing"),
    [
        ("aws", [], "aws is not on PATH; get the AWS CLI: https://"),
        ("aws", ["aws"], "session-manager-plugin is not on PATH; get the Session Manager plugin: https://"),
        ("alicloud", [], "ali-instance-cli is not on PATH; get Session Manager CLI: https://"),
    ],
)
def test_a_program_that_is_missing_is_named_with_its_place(cloud, there, missing, tmp_path, monkeypatch):
    for name in there:
        program(tmp_path, name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", "/nowhere.toml")

    done = CliRunner().invoke(main, ["connect", "--stack", "x", "--region", "r", "--cloud", cloud])

    assert done.exit_code == 1
    assert missing in done.output


def test_the_command_becomes_the_session_of_the_stacks_only_instance(tmp_path):
    for name in ("aws", "session-manager-plugin"):
        program(tmp_path, name)
    with one_instance(tmp_path) as made:
        ec2 = client(made, "ec2")
        answer = ec2.run_instances(ImageId="ami-12c6146b", InstanceType="g5.xlarge", MinCount=1, MaxCount=1)
        target = answer["Instances"][0]["InstanceId"]
        ec2.create_tags(Resources=[target], Tags=[{"Key": key, "Value": TAGS[key]} for key in TAGS])
        environment = made | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "image")}
        asked = [sys.executable, "-m", "gpu_fleet_image.console", "connect", "--stack", STACK]
        done = ran([*asked, "--region", REGION], env=environment, timeout=120)

    assert "connecting with Session Manager's own document" in done.stderr  # there is no bucket with a policy
    assert done.stdout.split() == f"aws ssm start-session --region {REGION} --target {target}".split()

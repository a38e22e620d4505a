"""As test_submit.py, by Cloud Assistant: the real SDK against a local server, moto's S3 for OSS."""

import base64
import json
import re
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.console.runs import alicloud, command
from gpu_fleet_image.core.metrics import METRIC_GATE_PASSED
from gpu_fleet_stacks.alicloud.stack import build
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import run_program
from tests.image.alicloud_server import ENVIRON, RefusedError, serving
from tests.image.alicloud_world import Actions
from tests.image.console.runs.instances import booted, end
from tests.image.metadata_server import metadata_server
from tests.image.world import World
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.first_boots import store

ACCOUNT_ID = "1234567890123456"
RECORDS = f"gpu-fleet-test-records-{ACCOUNT_ID}"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBUYHkd0jd5yF1xIMu2nsW1SxNTgF2mIf8vY0wd1cmtp ada@laptop"
SETTINGS = stack(
    access={"people": {"ada": {"uid": 5001, "keys": [KEY]}}, "ssh_from": {"office": "192.168.4.0/24"}},
    pools=[pool(name="train", size={"min": 0, "desired": 0, "max": 2}, purpose="training")],
)
WHERE = ("--stack", "test", "--region", SETTINGS.region, "--cloud", "alicloud", "--account", ACCOUNT_ID)
COMMAND = ("submit", "--pool", "train", "--yes", *WHERE)
TAGS = {
    "gpu-fleet:stack": "test",
    "gpu-fleet:pool": "train",
    "gpu-fleet:managed": "true",
    "gpu-fleet:owner": "ada",
    "gpu-fleet:taken": "2026-11-22/users/ada/100000Z-0a",
}
LONGEST_S = 120


class Assistant(Actions):
    """The actions of a user's commands; what is invoked is kept."""

    def __init__(self, world, registered):
        super().__init__(world)
        self._registered = registered
        self.addresses, self.invoked, self.lets = {}, [], "ada"

    def get_caller_identity(self, _):
        return {"AccountId": ACCOUNT_ID, "Arn": f"acs:ram::{ACCOUNT_ID}:user/ada"}

    def describe_instances(self, ask):
        answer = super().describe_instances(ask)
        for instance in answer["Instances"]["Instance"]:
            own = {"IpAddress": [self.addresses[instance["InstanceId"]]]}
            instance["VpcAttributes"] = {"PrivateIpAddress": own}
        return answer

    def describe_metric_list(self, ask):
        assert ask["MetricName"].startswith(METRIC_GATE_PASSED)
        at = int(datetime.now(UTC).timestamp() * 1000)
        points = [
            {"dimension": f"InstanceId={address}", "timestamp": at, "Minimum": 1, "Maximum": 1, "Average": 1}
            for address in self.addresses
        ]
        return self._points(points, ask)

    def describe_commands(self, ask):
        rows = [{"CommandId": resource.id, "Name": resource.inputs["name"]} for resource in self._registered]
        return {"Commands": {"Command": [row for row in rows if row["Name"] == ask["Name"]]}}

    def invoke_command(self, ask):
        if ask["Username"] != self.lets:  # ecs:CommandRunAs
            raise RefusedError("Forbidden.RAM", 403)
        self.invoked.append(ask)
        return {"InvokeId": "t-1"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """The stack, with an instance that a user took: its boot, and the server that answers for the cloud."""
    folder = tmp_path_factory.mktemp("fleet")
    with moto_server("us-east-1") as endpoint, ExitStack() as within:
        rehearsed = run_program(SETTINGS.name, program=lambda: build(SETTINGS), config={})
        store(rehearsed, SETTINGS.region)
        registered = rehearsed.of_type("alicloud:ecs/command:Command")
        world = World()
        assistant = Assistant(world, registered)
        server = within.enter_context(serving(assistant))
        metadata = within.enter_context(metadata_server("alicloud"))
        services = {
            "AWS_ENDPOINT_URL": endpoint,
            "GPU_FLEET_ALICLOUD_OSS_ENDPOINT": endpoint,
            "GPU_FLEET_ALICLOUD_ENDPOINT": server.url,
            "GPU_FLEET_ALICLOUD_METADATA_ENDPOINT": metadata.base,
        }
        node = one_instance(rehearsed, folder, world.start(TAGS).id, metadata, services)
        assistant.addresses[node.id] = node.address
        within.callback(end, [node])
        yield registered, assistant, node


def one_instance(rehearsed, folder, instance_id, metadata, services):
    keys = {
        "AccessKeyId": ENVIRON["ALIBABA_CLOUD_ACCESS_KEY_ID"],
        "AccessKeySecret": ENVIRON["ALIBABA_CLOUD_ACCESS_KEY_SECRET"],
        "SecurityToken": "token",
        "Expiration": (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    said = {
        "instance-id": instance_id,
        "instance/instance-type": SETTINGS.pools[0].types[0],
        "private-ipv4": "127.0.0.1",
        "ram/security-credentials/": "pool",
        "ram/security-credentials/pool": json.dumps(keys),
    }
    for path, text in said.items():
        metadata.says(path, text)
    start = next(
        registration for registration in rehearsed.registrations if "userData" in registration.inputs
    )
    user_data = base64.b64decode(start.inputs["userData"]).decode()
    return booted(instance_id, "127.0.0.1", folder / "node", user_data, services)


@pytest.fixture
def delivered(fleet, tmp_path, monkeypatch):
    """While the console waits, Cloud Assistant delivers; gives what the instance did and its processes."""
    registered, assistant, node = fleet
    monkeypatch.chdir(tmp_path)
    served = {name: node.services[name] for name in node.services if "METADATA" not in name}
    for name, value in {**ENVIRON, **served, "GPU_FLEET_INSTANCE_FILE": "/nowhere.toml"}.items():
        monkeypatch.setenv(name, value)
    done, running, sleep = [], [], time.sleep
    assistant.invoked.clear()

    def wait(seconds):
        if seconds == command.LOOK_EVERY_S and not done:
            (sent,) = assistant.invoked
            script = base64.b64decode(registered[0].inputs["commandContent"]).decode()
            done.append(node.run_command(script, json.loads(sent["Parameters"]), sent["Username"]))
            running.extend(node.run_unit(unit, {}) for unit in node.started()[-1:])
        return sleep(0.1 if seconds == command.LOOK_EVERY_S else seconds)

    monkeypatch.setattr(time, "sleep", wait)
    yield running
    node.as_booted()
    s3 = boto3.client("s3")  # a run that could not be sent keeps its instance for a while
    for stored in s3.list_objects_v2(Bucket=RECORDS, Prefix="runs/").get("Contents", []):
        s3.delete_object(Bucket=RECORDS, Key=stored["Key"])


def say(*words):
    return CliRunner().invoke(main, [*words])


def test_a_run_travels_from_the_console_through_cloud_assistant_to_its_result(fleet, delivered, tmp_path):
    (tmp_path / "mine.py").write_text("import sys; print('went', *sys.argv[1:])")

    said = say(*COMMAND, "--", "python", "mine.py", "--lr", "0.1")

    assert said.exit_code == 0, said.output
    (worker,) = delivered
    assert worker.wait(LONGEST_S) == 0
    run = re.search(r"^(\S+) is sent to", said.output, re.MULTILINE)[1]
    listed, log = say("runs", *WHERE), say("logs", "-f", run, *WHERE)
    assert re.search(rf"{run} +train +1 +finished", listed.output), listed.output
    assert "went --lr 0.1" in log.output
    (sent,) = fleet[1].invoked
    assert (sent["Username"], sent["InstanceId"]) == ("ada", [fleet[2].id])


def test_what_the_instance_refuses_comes_back_as_one_message(fleet, delivered):
    fleet[2].accounts("bob")

    said = say(*COMMAND, "--", "ls")

    assert said.exit_code == 1
    assert "refused: there is no account 'ada' here: add it to access.people" in said.output
    assert delivered == []


def test_another_account_is_refused_by_the_cloud_in_one_message(fleet, delivered):
    said = say(*COMMAND, "--as", "bob", "--", "ls")

    assert said.exit_code == 1
    assert (
        "may not start a run as account bob: the output submit_policies has a policy for each" in said.output
    )
    assert "Traceback" not in said.output


def test_a_stack_without_the_command_says_how_it_gets_one(fleet, delivered, monkeypatch):
    monkeypatch.setattr(alicloud, "command_name", lambda _: "another")

    said = say(*COMMAND, "--", "ls")

    assert said.exit_code == 1
    assert "stack 'test' has no command another: `gpu-fleet up` creates it" in said.output


def test_no_word_of_a_caller_becomes_roots(fleet, tmp_path):
    """Whatever a caller puts into a parameter is a word of start-run, or runs as themselves."""
    registered, _, node = fleet
    script = base64.b64decode(registered[0].inputs["commandContent"]).decode()

    done = node.run_command(script, {"Run": "x --account=root", "Sha256": "0" * 64}, "ada")

    assert done.returncode != 0
    assert "--run 'x --account=root'; allowed" in done.stderr
    assert node.started() == []

"""Instances of a stack in moto that do what they are sent: the stack's document, the payload, the trainer.

The document's script, the launcher, ``start-run`` and the unit are those that the stack registered. Played
here are Systems Manager (a parameter that breaks its pattern is refused), ``systemctl`` and accounts.
"""

import base64
import configparser
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
from moto.ssm.models import Command

from gpu_fleet_image.console.runs import aws
from gpu_fleet_image.core.capacity import REQUESTS, STATE, MoverState, Request
from gpu_fleet_image.core.metrics import METRIC_GATE_PASSED, namespace
from gpu_fleet_stacks.aws.stack import build
from gpu_fleet_stacks.rehearsal import first_boot, sweeps
from gpu_fleet_stacks.rehearsal.cast import services
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed, run_program
from tests.preloaded import preloaded
from tests.ran import executable, ran
from tests.stacks import examples

REGION = "us-east-1"
TYPE = "g5.xlarge"
ACCOUNT_ID = "123456789012"
RECORDS = f"gpu-fleet-test-records-{ACCOUNT_ID}"
WHERE = ("--stack", "test", "--region", REGION, "--cloud", "aws", "--account", ACCOUNT_ID)
TAKEN = "2026-11-22/users/moto/100000Z-0a"
POOL = examples.pool(name="train", types=[TYPE], size={"min": 0, "desired": 0, "max": 2}, purpose="training")
SETTINGS = examples.stack(pools=[POOL], access={"people": {"ada": {"uid": 5001}}})
# writes down what it is asked to start
SYSTEMCTL = """#!/bin/bash
case "$1" in
list-units) cat "{folder}/active" 2>/dev/null || true ;;
start) echo "${{@: -1}}" >>"{folder}/started" ;;
esac
"""
# of its rules: these programs, as root, without a password; they find commands below the root
SUDO = """#!/bin/bash
allowed=" {allowed} "
[ "$1" = --non-interactive ] && [ "${{allowed/ $2 /}}" != "$allowed" ] || {{
    echo "sudo: a password is needed" >&2
    exit 1
}}
program=$(sed "s#/usr/local/bin/#{root}/usr/local/bin/#" "{root}$2")
shift
SUDO_USER={account} exec bash -c "$program" "$@"
"""
ACCOUNTS = {
    "passwd": "root:x:0:0::/root:/bin/bash\n{users}",
    "group": "gpu-fleet-users:x:990:{names}\n",
    "shadow": "root:*:19000:0:99999:7:::\n{expiry}",
}


@dataclass
class StandIn:
    """One instance: what its first boot made of a folder.

    Attributes:
        address: private IPv4, one of the loopback.
        services: what leads its programs to its cloud.
    """

    id: str
    address: str
    root: Path
    services: Mapping[str, str]
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        """Of root's programs there."""
        own = first_boot.own_environment(self.root, self.services)
        return {**own, "PATH": f"{self.root}/stub:{own['PATH']}"}

    def as_booted(self) -> None:
        """Its account and its gate, and nothing that runs."""
        for name in ("started", "active", "run/gpu-fleet/closed"):
            (self.root / name).unlink(missing_ok=True)
        for folder in ("run/gpu-fleet", "home", "scratch"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        self.accounts("ada")
        (self.root / "run/gpu-fleet/ready").touch()

    def accounts(self, *names: str, locked: str = "", groups: bool = True) -> None:
        """The accounts that ``gpu-fleet accounts`` made here; without groups those of the system."""
        me = os.getuid() or 65_000  # a number that is not root's
        rows = {
            "users": "".join(f"{name}:x:{me}:{me}::/home/{name}:/bin/bash\n" for name in names),
            "names": ",".join(names) if groups else "",
            "expiry": f"{locked}:*:19000:0:99999:7::1:\n" if locked else "",
        }
        for file, text in ACCOUNTS.items():
            (self.root / "etc" / file).write_text(text.format(**rows))

    def report_to_the_gate(self) -> None:
        """As the agent says it to whoever waits for the instance."""
        dimension = {"Name": "InstanceId", "Value": self.id}
        datum = {"MetricName": METRIC_GATE_PASSED, "Value": 1.0, "Dimensions": [dimension]}
        # moto cuts the end of a span to the whole second, so what is of this second is not found
        datum["Timestamp"] = datetime.now(UTC) - timedelta(minutes=1)
        boto3.client("cloudwatch", REGION).put_metric_data(Namespace=namespace("test"), MetricData=[datum])

    def run_document(
        self, content: Mapping[str, Any], given: Mapping[str, str]
    ) -> "subprocess.CompletedProcess[str]":
        """As Systems Manager does: the patterns first, then text for text, then bash as root."""
        for name, value in given.items():
            pattern = content["parameters"][name]["allowedPattern"]
            if re.search(pattern, value) is None:
                raise ValueError(f"InvalidParameters: {name} = {value!r}")
        (step,) = content["mainSteps"]
        text = "\n".join(step["inputs"]["runCommand"])
        for name, value in given.items():
            text = text.replace("{{ " + name + " }}", value)
        return self._bash(text)

    def run_command(
        self, script: str, given: Mapping[str, str], account: str
    ) -> "subprocess.CompletedProcess[str]":
        """As Cloud Assistant does: text for text, then bash as the account, with sudo as laid down."""
        for name, value in given.items():
            script = script.replace("{{" + name + "}}", value)
        rules = (self.root / "etc/sudoers.d/50-gpu-fleet").read_text()
        allowed = re.findall(r"^%gpu-fleet-users ALL=\(root\) NOPASSWD: (.*)$", rules, re.MULTILINE)
        stub = self.root / "stub/sudo"
        executable(stub, SUDO.format(account=account, allowed=" ".join(allowed), root=self.root))
        return self._bash(script)

    def _bash(self, text: str) -> "subprocess.CompletedProcess[str]":
        below = text.replace("/usr/local/bin/", f"{self.root}/usr/local/bin/")
        return ran(["bash", "-c", below], env=self.environment(), timeout=120)

    def started(self) -> list[str]:
        """Units that were started, in order."""
        file = self.root / "started"
        return file.read_text().split() if file.exists() else []

    def runs(self) -> list[Path]:
        """Folders of runs here, the newest last."""
        return sorted((self.root / "scratch/runs/ada").iterdir(), key=lambda path: path.stat().st_mtime)

    def run_unit(self, unit: str, more: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        """What systemd runs for a unit, with this environment's packages for those of the instance."""
        account = unit.partition("@")[2].removesuffix(".service")
        parser = configparser.RawConfigParser(strict=False, interpolation=None)
        parser.read(self.root / "etc/systemd/system/gpu-run@.service")
        service = {key: value.replace("%i", account) for key, value in parser["Service"].items()}
        assert service["user"] == account
        assert service["environmentfile"].startswith("/run/gpu-fleet/")
        written = (self.root / service["environmentfile"].lstrip("/")).read_text().splitlines()
        own = {
            **self.environment(),
            **dict(line.split("=", 1) for line in written),
            "LOGNAME": account,
            "HOME": str(self.root / "home"),
            "PYTHONPATH": str(self.root / "opt/gpu-fleet/lib"),
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            **more,
        }
        program, *words = service["execstart"].split()
        assert program == "/opt/gpu-fleet/venv/bin/python"
        folder = self.root / service["workingdirectory"].lstrip("/")
        started = subprocess.Popen([sys.executable, *words], cwd=folder, env=own, start_new_session=True)
        self.processes.append(started)
        return started


@contextmanager
def fleet_of_two(folder: Path) -> Iterator[tuple[Rehearsed, list[StandIn]]]:
    """The stack in moto, with two instances that a user took and that passed their gate."""
    with moto_server(REGION), preloaded():
        rehearsed = run_program(SETTINGS.name, program=lambda: build(SETTINGS), config={})
        for kind in ("data", "records", "checkpoints"):
            # moto holds denials of a bucket policy without their conditions, so that nobody could write
            boto3.client("s3", REGION).delete_bucket_policy(Bucket=f"gpu-fleet-test-{kind}-{ACCOUNT_ID}")
        (template,) = rehearsed.of_type("aws:ec2/launchTemplate:LaunchTemplate")
        user_data = base64.b64decode(template.inputs["userData"]).decode()
        sweeps.by_function(sweeps.unpacked(rehearsed, folder / "sweep"))  # it begins to meter
        with stand_ins(folder, user_data) as nodes:
            for node in nodes:
                node.report_to_the_gate()
            yield rehearsed, nodes


def deliver(
    fleet: tuple[Rehearsed, list[StandIn]], more: Mapping[str, str]
) -> list["subprocess.Popen[bytes]"]:
    """Systems Manager: what was sent last goes to its instances. Gives the units that they started."""
    rehearsed, nodes = fleet
    (document,) = [
        resource.inputs["name"]
        for resource in rehearsed.of_type("aws:ssm/document:Document")
        if resource.inputs["documentType"] == "Command"
    ]
    content = json.loads(boto3.client("ssm", REGION).get_document(Name=document)["Content"])
    sent = boto3.client("ssm", REGION).list_commands()["Commands"][-1]
    given = {key: value for key, (value,) in sent["Parameters"].items()}
    done = []
    for node in nodes:
        if node.id in sent["InstanceIds"]:
            node.run_document(content, given)
            done += [node.run_unit(unit, more) for unit in node.started()[-1:]]
    return done


@contextmanager
def stand_ins(folder: Path, user_data: str) -> Iterator[list[StandIn]]:
    """Two instances that a user took, each booted from the user data that the stack registered."""
    ec2 = boto3.client("ec2", REGION)
    tags = {"stack": "test", "pool": "train", "managed": "true", "owner": "moto", "taken": TAKEN}
    marked = [{"Key": f"gpu-fleet:{key}", "Value": value} for key, value in tags.items()]
    asked = {"ImageId": "ami-0123456789abcdef0", "InstanceType": TYPE, "MinCount": 2, "MaxCount": 2}
    launched = ec2.run_instances(**asked, TagSpecifications=[{"ResourceType": "instance", "Tags": marked}])[
        "Instances"
    ]
    with ExitStack() as stack:
        made = []
        for number, instance in enumerate(launched):
            metadata = stack.enter_context(metadata_service())
            metadata.give_role("pool")
            # two instances of one computer: each listens on an address of its own of the loopback
            address = f"127.0.0.{number + 1}"
            said = {"instance-id": instance["InstanceId"], "instance-type": TYPE, "local-ipv4": address}
            metadata.answers |= {f"/latest/meta-data/{path}": text for path, text in said.items()}
            root = folder / f"node-{number}"
            made.append(booted(instance["InstanceId"], address, root, user_data, services(metadata)))
        stack.callback(end, made)
        yield made


def booted(id_: str, address: str, root: Path, user_data: str, own: Mapping[str, str]) -> StandIn:
    """An instance that booted, made the account, and passed its gate."""
    root.mkdir(parents=True)
    first_boot.boot(user_data, root, own, root.with_suffix(".log"))
    made = StandIn(id_, address, root, own)
    executable(root / "stub/systemctl", SYSTEMCTL.format(folder=root))
    made.as_booted()
    return made


def end(nodes: Sequence[StandIn]) -> None:
    """Nothing of theirs goes on."""
    for process in (each_process for each in nodes for each_process in each.processes):
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.wait()


def say_of_requests(known: dict[str, Request], answer: Callable[[str, int], Request]) -> None:
    """The mover's word: what it answers to the key and the count of each request that is new."""
    s3, prefix = boto3.client("s3", REGION), f"reaper/{REQUESTS}/"
    for listed in s3.list_objects_v2(Bucket=RECORDS, Prefix=prefix).get("Contents", []):
        key = listed["Key"].removeprefix(prefix).removesuffix(".json")
        if key not in known:
            asked = json.loads(s3.get_object(Bucket=RECORDS, Key=listed["Key"])["Body"].read())
            known[key] = answer(key, asked["count"])
    state = json.dumps(MoverState(requests=known).to_json())
    s3.put_object(Bucket=RECORDS, Key=f"reaper/{STATE}", Body=state)


def reach_by_their_addresses(monkeypatch: Any, nodes: Sequence[StandIn]) -> None:
    """Let commands reach the instances that they name, and these one another: moto has no network of theirs.

    moto takes a command without targets for one to every instance; Systems Manager to those it names.
    """
    own = {node.id: node.address for node in nodes}
    monkeypatch.setattr(aws, "addresses", lambda _region, _calls, ids: {each: own[each] for each in ids})
    targets = Command._get_instance_ids_from_targets
    monkeypatch.setattr(
        Command, "_get_instance_ids_from_targets", lambda command: targets(command) if command.targets else []
    )

"""From what a shipped stack registers to its log: the instance's own service follows a real journal."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from gpu_fleet_stacks.rehearsal import first_boot
from gpu_fleet_stacks.settings import stack_files
from tests.image.instance.logs import journal_of_its_own
from tests.image.instance.logs.sls_server import sls_server
from tests.image.programs import until
from tests.stacks import first_boots
from tests.stacks.first_boots import INSTANCE, boot

UNIT = "gpu-logs.service"
KEY = "AKIA" + "ABCDEFGH01234567"
PATIENCE_S = 90
LAST_WORDS = 100  # right before the service is stopped


class OwnJournal:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def say(self, unit: str, message: str) -> None:
        self._order({"say": {"MESSAGE": message, "UNIT": unit, "PRIORITY": "6"}})

    def start(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._order({"start": {"args": command, "env": dict(environment)}})

    def stop(self) -> str:
        """End it as systemd does; gives its exit status."""
        return self._order({"stop": True})

    def _order(self, order: Mapping[str, Any]) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip()


@contextmanager
def own_journal() -> Iterator[OwnJournal]:
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0 or not Path(journal_of_its_own.JOURNALD).exists():
        pytest.skip("needs root and journald")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no namespaces on this computer")
    program = [sys.executable, journal_of_its_own.__file__]
    with subprocess.Popen(
        [*command, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield OwnJournal(process)
        finally:
            process.stdin.close()
            process.wait(PATIENCE_S)


def lines_of(
    journal: OwnJournal, root: Path, services: Mapping[str, str], sent: Callable[[], list[Any]]
) -> None:
    """Two lives of the service, and what is said before, between and within them."""
    # the instance's service collects lines for a moment in place of five seconds
    file = root / "opt/gpu-fleet/lib/gpu_fleet_image/instance/logs/shipper.py"
    text = file.read_text()
    assert "FLUSH_S = 5.0" in text
    file.write_text(text.replace("FLUSH_S = 5.0", "FLUSH_S = 0.25"))
    (root / "state").mkdir()
    environment = first_boot.own_environment(root, services) | {"STATE_DIRECTORY": str(root / "state")}
    command = first_boot.service(root, UNIT)
    journal.say("gpu-ready.service", "the gate passed")
    journal.say("cron.service", "nobody asked for this")
    journal.say("trainer@digits.service", f"key {KEY} was printed")
    journal.say(UNIT, "what it says itself")
    journal.start(command, environment)
    until(lambda: len(sent()) == 2, "two lines")
    assert journal.stop() == "0"
    journal.say("gpu-run@ada.service", "said while nobody listened")
    journal.start(command, environment)
    until(lambda: len(sent()) == 3, "the third line")
    journal.say("gpu-fleet-bootstrap.service", "bootstrap is done")
    until(lambda: len(sent()) == 4, "the fourth line")
    for number in range(LAST_WORDS):
        journal.say("gpu-reaper.service", f"last word {number}")
    assert journal.stop() == "0"


EXPECTED = [
    ("gpu-ready.service", "the gate passed"),
    ("trainer@digits.service", "key [redacted] was printed"),
    ("gpu-run@ada.service", "said while nobody listened"),
    ("gpu-fleet-bootstrap.service", "bootstrap is done"),
    *(("gpu-reaper.service", f"last word {number}") for number in range(LAST_WORDS)),
]


@pytest.mark.prove  # as below; and test_services.py
def test_lines_of_an_instance_of_a_shipped_stack_reach_cloudwatch_logs(tmp_path):
    root, name = tmp_path / "instance", "aws-dev"
    with own_journal() as journal, first_boots.aws(name) as cloud:
        text = cloud.user_data()["gpu-fleet-aws-dev-spot-template"]
        boot(cloud, text, root)
        logs = boto3.client("logs", region_name=stack_files.settings_of(name).region)
        place = {"logGroupName": cloud.rehearsed.outputs["instance_log"], "logStreamName": f"spot/{INSTANCE}"}

        def sent() -> list[Any]:
            try:
                return logs.get_log_events(**place, startFromHead=True)["events"]
            except logs.exceptions.ResourceNotFoundException:
                return []

        lines_of(journal, root, cloud.environment, sent)

        said = [json.loads(event["message"]) for event in sent()]
        assert [(line["unit"], line["message"]) for line in said] == EXPECTED
        (group,) = logs.describe_log_groups(logGroupNamePrefix=place["logGroupName"])["logGroups"]
        assert group["retentionInDays"] == stack_files.settings_of(name).logs.retention_days
        assert group["kmsKeyId"] == cloud.rehearsed.outputs["key_arn"]


def test_lines_of_an_instance_of_a_shipped_stack_reach_simple_log_service(tmp_path):
    root, name = tmp_path / "instance", "alicloud-dev"
    with own_journal() as journal, first_boots.alicloud(name) as cloud, sls_server() as server:
        text = next(iter(cloud.user_data().values()))
        boot(cloud, text, root)
        services = {**cloud.environment, "GPU_FLEET_ALICLOUD_LOG_ENDPOINT": server.url}

        lines_of(journal, root, services, lambda: server.lines)

        assert server.refused == []
        assert [(line["unit"], line["message"]) for line in server.lines] == EXPECTED
        _, store = cloud.rehearsed.outputs["instance_log"].split("/")
        assert set(server.places) == {f"/logstores/{store}/shards/lb"}
        pool = tomllib.loads((root / "etc/gpu-fleet/instance.toml").read_text())["pool"]
        assert set(server.topics) == {f"{pool}/{INSTANCE}"}

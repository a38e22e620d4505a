"""The Pulumi CLI as the run drives it: a script stands for it and writes down what it was asked."""

import json
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from gpu_fleet_stacks.acceptance import engine
from gpu_fleet_stacks.acceptance.engine import PulumiCli
from gpu_fleet_stacks.acceptance.errors import AcceptanceError, EngineError
from gpu_fleet_stacks.plan_check import policy_pack
from gpu_fleet_stacks.teardown.command import destroy
from tests.ran import executable

CHECKOUT = Path(__file__).parents[3]
SCRIPT = """#!/bin/sh
cd FOLDER
echo "$@" >> commands
case "$1 $2" in
  version*) echo v3.260.0 ;;
  "stack ls") echo '[{"name": "org/gpu-fleet/aws-dev"}]' ;;
  "stack output") echo '{"region": "us-east-1"}' ;;
  "preview --stack") echo 'PLAN' ;;
  "up --stack") BODY ;;
esac
"""

# An up that goes on until Ctrl-C, and says when it is ready for one.
TRAPPED = "trap 'echo saved; exit 1' INT; echo up > ready; while :; do sleep 0.05; done"


@pytest.fixture
def cli(tmp_path, monkeypatch):
    def made(body: str = ":", plan: str = '{"steps": []}') -> PulumiCli:
        script = SCRIPT.replace("BODY", body).replace("PLAN", plan).replace("FOLDER", str(tmp_path))
        (tmp_path / "bin").mkdir()
        executable(tmp_path / "bin" / "pulumi", script)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        return PulumiCli(CHECKOUT, "aws-dev", tmp_path / "logs" / "pulumi.log")

    return made


def commands(folder: Path) -> list[str]:
    return (folder / "commands").read_text().splitlines()


def test_up_is_the_products_own_which_plans_first_and_asks_nothing(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(policy_pack.PolicyPack, "python", tmp_path / "no-such-pack")

    cli().up(60)

    select, _, plan, change = commands(tmp_path)
    assert select == "stack select --create aws-dev"
    assert plan == "preview --stack aws-dev --json --non-interactive --color=never"
    assert change == "up --stack aws-dev --yes --skip-preview --non-interactive --color=never"


PLAN = """{"steps": [{"op": "create", "urn":
"urn:pulumi:d::p::alicloud:ess/scalingConfiguration:ScalingConfiguration::gpu-fleet-alicloud-dev-cluster",
"newState": {"inputs": {"networkInterfaces": [{"networkInterfaceTrafficMode": "HighPerformance"}]}}}]}"""


def test_what_the_provider_cannot_create_in_one_go_comes_up_in_the_passes_of_up(cli, tmp_path, monkeypatch):
    made = cli('echo "$GPU_FLEET_FIRST_PASS" >> passes', plan=PLAN.replace("\n", " "))
    made._stack = "alicloud-dev"
    monkeypatch.setattr(policy_pack.PolicyPack, "python", tmp_path / "no-such-pack")

    made.up(60)

    name = "gpu-fleet-alicloud-dev-cluster"
    stages = [json.loads(line or "{}") for line in (tmp_path / "passes").read_text().splitlines()]
    assert stages == [{name: "made"}, {name: "joined"}, {}]


def test_destroy_lifts_a_lock_runs_the_products_own_destroy_and_removes_the_stack(cli, tmp_path, monkeypatch):
    made = cli()
    monkeypatch.setattr(engine, "DESTROY", ("pulumi", "stands-for", "gpu-fleet", "destroy"))

    made.destroy(60)
    made.forget()

    asked = [line.partition(" --non")[0] for line in commands(tmp_path) if not line.startswith("stack ls")]
    assert asked == [
        "cancel --yes --stack aws-dev",
        "stands-for gpu-fleet destroy aws-dev --yes --delete-data all --terminate-stopped "
        "--ignore-holds the acceptance run is over",
        "stack rm --yes --preserve-config aws-dev",
    ]


def test_the_flags_of_the_way_down_are_such_that_the_command_takes_them():
    taken = destroy.make_context("destroy", ["aws-dev-accept", *engine.ALL_OF_IT]).params

    assert engine.DESTROY[1:] == ("-m", "gpu_fleet_image.console", "destroy")
    assert (taken["yes"], taken["kinds"], taken["terminate_stopped"]) == (True, ("all",), True)
    assert taken["ignore_holds"]


def test_a_stack_that_no_backend_knows_is_not_destroyed(cli, tmp_path):
    made = cli()
    made._stack = "another"

    made.destroy(60)

    assert commands(tmp_path) == ["stack ls --json"]


def test_outputs_are_read_as_json(cli):
    assert cli().outputs() == {"region": "us-east-1"}


def test_a_failure_says_the_end_of_what_the_cli_said(cli):
    made = cli("echo 'error: VpcLimitExceeded'; exit 255")

    with pytest.raises(EngineError, match=r"exit code 255(.|\n)*VpcLimitExceeded"):
        made.up(60)


@pytest.mark.parametrize(
    ("starting", "interruption"),
    [(False, subprocess.TimeoutExpired("up", 5)), (False, KeyboardInterrupt()), (True, KeyboardInterrupt())],
    ids=["it takes too long", "Ctrl-C", "Ctrl-C while it starts"],
)
def test_an_up_that_is_interrupted_writes_its_state(cli, tmp_path, monkeypatch, starting, interruption):
    made = cli(TRAPPED)

    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **keys):
            super().__init__(*arguments, **keys)
            while not (tmp_path / "ready").exists():
                assert self.poll() is None
                threading.Event().wait(0.05)  # polls another process; its clock is not ours
            if starting:
                signal.raise_signal(signal.SIGINT)

        def wait(self, timeout=None):
            if timeout != 5:
                return super().wait(timeout)
            raise interruption

    monkeypatch.setattr(engine.subprocess, "Popen", Interrupted)

    ends = KeyboardInterrupt if isinstance(interruption, KeyboardInterrupt) else EngineError
    with pytest.raises(ends, match=r"not done after 5 s|^$"):
        made.up(5)
    assert "saved" in (tmp_path / "logs" / "pulumi.log").read_text()


def test_without_the_cli_there_is_one_message(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(AcceptanceError, match="the Pulumi CLI is not on PATH"):
        PulumiCli(tmp_path, "s", tmp_path / "log").version()

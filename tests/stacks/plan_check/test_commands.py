"""`gpu-fleet check|preview|up|outputs`, called by a user at a shell."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.plan_check import deploy, policy_pack, pulumi_command
from gpu_fleet_stacks.plan_check.pulumi_command import REFUSED, refuse
from gpu_fleet_stacks.settings import stack_files
from tests.ran import executable
from tests.stacks.alicloud_examples import stack as alicloud_stack
from tests.stacks.examples import stack, stack_file

ROOT = Path(__file__).parents[3]


class Shell:
    """Shell that runs `gpu-fleet` with only a fake `pulumi` on PATH, which records its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has_cli(self, script: str = "") -> None:
        program = self.folder / "pulumi"
        plan = """case "$*" in preview*--json*) echo '{"steps": []}';; esac"""
        executable(program, f'#!/bin/sh\necho "$@" >> {self.folder}/calls\n{script}\n{plan}\n')

    def run(self, *arguments: str, fails: bool = False) -> str:
        done = CliRunner().invoke(main, [*arguments])
        assert done.exit_code == fails, done.output
        return done.output

    @property
    def calls(self) -> list[str]:
        written = self.folder / "calls"
        return written.read_text().splitlines() if written.exists() else []


OVER_BUDGET = {"monthly": 100, "recipients": ["a@b.org"]}


@pytest.fixture
def shell(tmp_path, monkeypatch) -> Shell:
    monkeypatch.setattr(policy_pack.PolicyPack, "python", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    return Shell(tmp_path)


def test_check_says_what_a_stack_holds_and_what_its_budget_leaves(shell, monkeypatch):
    said, of_groups = shell.run("check", "aws-dev"), shell.run("check", "aws-prod")
    budget = OVER_BUDGET | {"allow_overcommit": True}
    monkeypatch.setattr(stack_files, "with_neighbours", lambda name: (stack(name, budget=budget), []))
    over = shell.run("check", "mine")

    assert "aws-dev: OK; aws us-east-1, pools dev (up to 3 g5.xlarge)" in said
    assert "spot (up to 2 g5.xlarge, g6.xlarge or g4dn.xlarge)" in said
    assert "at worst 3,900.20 USD a month, 1,099.80 USD under the budget" in said
    assert "train (up to 4 p4d.24xlarge: 2 in each of us-east-1a, us-east-1b)" in of_groups
    assert "USD over the budget" in over
    assert "budget.allow_overcommit is true: the worst month may pass the budget" in over


def test_check_names_unknown_assumed_and_foreign_prices(shell, monkeypatch):
    budget = {"monthly": 40000, "currency": "CNY", "recipients": ["a@b.org"], "assume": {"disk": "1.5"}}
    network = {"cidr": "10.0.0.0/16", "zones": ["cn-hangzhou-b"]}
    mine = alicloud_stack("mine", region="cn-hangzhou", network=network, budget=budget)
    monkeypatch.setattr(stack_files, "with_neighbours", lambda name: (mine, []))

    said = shell.run("check", "mine")

    assert "warning: without these, which have no public price: nat_gateway" in said
    assert "warning: prices that the stack assumes, in CNY: disk 1.5" in said
    assert "warning: prices of cn-shenzhen replace those of cn-hangzhou: ecs.gn7i-c8g1.2x" in said
    assert "at worst at least " in said


@pytest.mark.parametrize("command", ["check", "rehearse"])
def test_over_its_budget_a_stack_is_refused_with_the_worst_month_and_the_way_out(
    command, shell, tmp_path, monkeypatch
):
    content = stack_file(budget=OVER_BUDGET)
    text = yaml.safe_dump({"config": {f"gpu-fleet:{key}": value for key, value in content.items()}})
    (tmp_path / "Pulumi.dear.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("GPU_FLEET_DIR", str(tmp_path))
    folder = ["--folder", str(tmp_path)] if command == "rehearse" else []

    said = " ".join(shell.run(command, "dear", *folder, fails=True).split())

    assert "error: stack 'dear': budget.monthly = 100.00 USD: the worst case of a month is 1,604.06" in said
    assert "raise budget.monthly, lower a pool's size.max, or set budget.allow_overcommit: true" in said
    assert "OK" not in said
    assert "Traceback" not in said


def test_a_wrong_name_or_a_missing_cli_is_one_message_that_helps(shell):
    for command in ("up", "destroy"):
        wrong = shell.run(command, "aws-dve", fails=True)
        assert "error: no stack 'aws-dve'; known: " in wrong
        assert "did you mean aws-dev?" in wrong
    for command in ("preview", "up", "outputs"):
        said = shell.run(command, "aws-dev", fails=True)
        assert "https://www.pulumi.com/docs/iac/download-install/" in said


@pytest.mark.parametrize("command", ["preview", "up"])
def test_a_valid_stack_is_handed_to_the_cli_with_the_policy_pack_and_what_follows_the_dashes(command, shell):
    shell.has_cli()

    shell.run(command, "aws-dev", "--", "--target", "urn:x", "-m", "a new pool")

    change = "--policy-pack stacks/gpu_fleet_stacks/crossguard --target urn:x -m a new pool"
    plan = "preview --stack aws-dev --json --target urn:x -m a new pool"
    assert shell.calls[:2] == ["stack select --create aws-dev", "stack output cost --json --stack aws-dev"]
    assert sorted(shell.calls[2:]) == sorted([plan, f"{command} --stack aws-dev {change}"])


def test_without_its_environment_the_policy_pack_says_how_to_make_it(shell, monkeypatch):
    shell.has_cli()
    monkeypatch.setattr(policy_pack.PolicyPack, "python", Path("/nonexistent/python"))

    said = shell.run("preview", "aws-dev", fails=True)
    shell.run("preview", "aws-dev", "--no-policy")

    assert "/nonexistent/python is missing" in said
    assert "`make policy`" in said
    assert shell.calls[-2:] == ["preview --stack aws-dev", "preview --stack aws-dev --json"]


@pytest.mark.parametrize("command", ["preview", "up"])
def test_a_change_that_loses_data_is_refused_in_one_message_and_allowed_by_name(command, shell):
    """A preview shows the change first."""
    urn = "urn:pulumi:d::gpu-fleet::aws:s3/bucket:Bucket::gpu-fleet-aws-dev-data"
    plan = json.dumps({"steps": [{"op": "delete", "urn": urn, "oldState": {"inputs": {}}}]})
    shell.has_cli(f"""case "$*" in preview*--json*) echo '{plan}'; exit 0;; esac""")

    refused = shell.run(command, "aws-dev", fails=True)
    before = [(call.split()[0], "--json" in call) for call in shell.calls if not call.startswith("stack")]
    shell.run(command, "aws-dev", "--replace", "gpu-fleet-aws-dev-data")

    assert "error: refused, and nothing was touched: this change would lose data in 1 resource" in refused
    shows = [("preview", False)] if command == "preview" else []
    assert before == [*shows, ("preview", True)]
    assert [call.split()[0] for call in shell.calls].count("up") == (command == "up")


def test_the_pack_names_the_environment_that_the_command_looks_for():
    pack = policy_pack.of_project(ROOT)
    options = yaml.safe_load((ROOT / pack.flag / "PulumiPolicy.yaml").read_text())["runtime"]["options"]

    assert Path(os.path.normpath(ROOT / pack.flag / options["virtualenv"])) == pack.environment
    assert re.search(r"^POLICY := \$\(VENV\)/policy/", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_a_flag_that_would_undo_a_check_or_another_program_is_refused(shell):
    shell.has_cli()
    for word in (*REFUSED, "--stack=other", "-s", "-sother", "-ys", "-C", "-c", "--config-file=/etc/passwd"):
        said = shell.run("up", "aws-dev", "--", "--yes", word, "value", fails=True)
        assert f"error: {word!r} after --: not allowed, " in said
    for words in (["https://example.com/program"], ["--yes", "--", "program"]):
        said = shell.run("up", "aws-dev", "--", *words, fails=True)
        assert "allowed are flags of the Pulumi CLI, such as -- --diff" in said
    assert shell.calls == []


@given(st.sampled_from("yfdr"), st.text("yfdrmptv", max_size=4), st.sampled_from("sCc"), st.text(max_size=5))
def test_a_refused_letter_is_found_in_any_word_of_flags(first, more, refused, rest):
    """The exception is a letter before it that takes the rest as its value: `-ms` is the message `s`."""
    word = f"-{first}{more}{refused}{rest}"
    if set(more) & set(pulumi_command.TAKE_A_VALUE):
        refuse([word])
    else:
        with pytest.raises(StacksError):
            refuse([word])


def test_the_program_is_given_what_the_deployed_stack_costs(shell, tmp_path):
    for output, code, cost in (
        ('{"currency": "USD"}', 0, '{"currency": "USD"}'),
        ("no output cost", 255, ""),
    ):
        noted = f'"preview"*) echo "told: $GPU_FLEET_DEPLOYED_COST" > {tmp_path}/noted;;'
        shell.has_cli(f"""case "$*" in "stack output"*) echo '{output}'; exit {code};; {noted} esac""")

        shell.run("preview", "aws-dev")

        assert (tmp_path / "noted").read_text() == f"told: {cost}\n"


def test_a_failure_of_the_cli_is_the_exit_code(shell):
    shell.has_cli("exit 7")

    assert CliRunner().invoke(main, ["preview", "aws-dev"]).exit_code == 7


OUTPUTS = {"region": "us-east-1", "bucket_uris": {"records": "s3://x"}}
PRINTED = {
    ("region",): "us-east-1\n",
    ("region", "-o", "json"): '"us-east-1"\n',
    ("bucket_uris",): '{\n  "records": "s3://x"\n}\n',
    ("-o", "json"): json.dumps(OUTPUTS, indent=2) + "\n",
    ("region", "-o", "csv"): "output,value\nregion,us-east-1\n",
}


def test_outputs_are_printed_for_users_and_programs_and_an_unknown_one_is_answered_with_the_nearest(shell):
    shell.has_cli(f"echo '{json.dumps(OUTPUTS)}'")

    assert {words: shell.run("outputs", "aws-dev", *words) for words in PRINTED} == PRINTED
    said = shell.run("outputs", "aws-dev", "regoin", fails=True)
    assert "no output 'regoin'; known: region, bucket_uris; did you mean region?" in said
    shell.has_cli("echo \"error: no stack named 'aws-dev' found\" >&2; exit 255")
    said = shell.run("outputs", "aws-dev", fails=True)
    assert "error: the outputs of aws-dev cannot be read: error: no stack named" in said


def test_all_outputs_are_a_table_that_cuts_nothing_and_takes_no_markup(shell):
    long = "arn:aws:" + "x" * 400
    shell.has_cli(f"echo '{json.dumps({'topic_arn': long, 'flags': [True], 'path': '[/]'})}'")

    shown = [line.split(maxsplit=1)[-1].strip() for line in shell.run("outputs", "aws-dev").splitlines()]

    assert long in "".join(shown)
    assert {"[true]", "[/]"} <= {*shown}


# what a terminal sends at Ctrl-C reaches the command and the CLI alike; the CLI then writes its state

BUSY = """
trap 'sleep 0.6; echo whole > "$FOLDER/state"; exit 1' INT
echo up > "$FOLDER/ready"
while :; do sleep 0.05; done
"""
DRIVER = """
import os
from pathlib import Path
from types import SimpleNamespace
from gpu_fleet_stacks.plan_check import deploy
from gpu_fleet_stacks.teardown import engine
root = Path(os.environ["FOLDER"])
"""


@pytest.mark.parametrize("command", ["up", "destroy"])
def test_ctrl_c_lets_the_cli_write_its_state(command, tmp_path):
    program = tmp_path / "pulumi"
    executable(program, f"#!/bin/sh{BUSY}")
    act = {
        "up": "deploy.Deployment('pulumi', SimpleNamespace(name='aws-dev'), root, os.environ).run('up')",
        "destroy": "engine.Engine('aws-dev', (), 'a test').destroy(())",
    }[command]
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER + act],
        cwd=ROOT,
        env=os.environ | {"FOLDER": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        threading.Event().wait(0.05)  # polls another process; its clock is not ours

    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=120)

    assert (tmp_path / "state").read_text() == "whole\n"
    assert "waiting for Pulumi to finish its running operations" in said


def test_ctrl_c_while_the_cli_is_being_started_waits_for_it_too(tmp_path, monkeypatch, capsys):
    class Interrupted(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.getsignal(signal.SIGINT)

    code = deploy.to_its_end([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)

    assert (code, signal.getsignal(signal.SIGINT)) == (3, before)
    assert "waiting for Pulumi to finish its running operations" in capsys.readouterr().err

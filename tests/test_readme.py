"""Every command that a README shows takes its arguments; the quick ones run, as a reader would run them.

Those that train or rehearse run for real by `make prove-readme`. Commands of pytest are held by `make lint`.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest
import yaml
from torch.distributed.run import get_args_parser

from gpu_fleet.core import config
from tests.image.console.commands import COMMANDS, LEAVES
from tests.prove import PARTS
from tests.ran import executable

ROOT = Path(__file__).parents[1]
ROOMS = ("stacks", "image", "training", "tests")
READMES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(path for room in ROOMS for path in sorted((ROOT / room).rglob("README.md"))),
]
BLOCK = re.compile(r"^```(?:sh|bash|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTEST = ".venv/bin/python -m pytest "
SERVER = ".venv/bin/moto_server -p "
TORCHRUN = ".venv/bin/torchrun "
# What reads a run or trains one, the whole rehearsal, an environment of its own: seconds to a minute each.
SLOW = re.compile(
    r"\S*torchrun |gpu-fleet rehearse |gpu-fleet train (?:prepare|start|report) "
    r"|make (?:policy|preview|up)|gpu-fleet (?:preview|up) "
)
POLICY = "make policy"
# The targets that stand a stack up; the others run what CI and `make prove` run.
TARGETS = (POLICY, "make up ")
WITH_POLICY = (*TARGETS, "gpu-fleet preview ", "gpu-fleet up ")
NOT_RUN = (PYTEST, SERVER, "source ")
# asks a cloud; without an account it says so
ASKING = {"gpu-fleet preflight aws-dev": "Unable to locate credentials"}
PATIENCE_S = 280
READY_AFTER = (
    "requirements.lock",
    "torch-pypi.lock",
    "torch-cpu.lock",
    "pyproject.toml",
    ".ci/environment.py",
)


def blocks() -> dict[str, list[str]]:
    """README and place -> its commands, of every block; comments and empty lines left out."""
    found = {}
    for path in READMES:
        for number, text in enumerate(BLOCK.findall(path.read_text())):
            joined = text.replace("\\\n", " ")
            lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
            found[f"{path.relative_to(ROOT)}[{number}]"] = lines
    return found


def is_run(command: str) -> bool:
    """Whether a test runs it, rather than the whole suite or a server."""
    return command.startswith(TARGETS) if command.startswith("make ") else not command.startswith(NOT_RUN)


BLOCKS = blocks()
EVERY = sorted({command for commands in BLOCKS.values() for command in commands})
# Each quick command once, with those of its block.
QUICK = {place: [] for place in BLOCKS}
for command in EVERY:
    if is_run(command) and not SLOW.match(command):
        QUICK[next(place for place in BLOCKS if command in BLOCKS[place])].append(command)
WHOLE = {place: commands for place, commands in BLOCKS.items() if any(map(SLOW.match, commands))}


@pytest.fixture
def checkout(tmp_path) -> Path:
    """The checkout as a reader has it, whose new files land elsewhere; with a `pulumi` that agrees to all."""
    for entry in ROOT.iterdir():
        if entry.name not in {"build", "data", "runs", ".git"}:
            (tmp_path / entry.name).symlink_to(entry)
    assert_ready(ROOT / ".venv")
    programs = tmp_path / "programs"
    programs.mkdir()
    agreeing = """case "$*" in *"stack output"*|preview*--json*) echo '{}';; esac"""
    executable(programs / "pulumi", f"#!/bin/sh\n{agreeing}\n")
    return tmp_path


def assert_ready(environment: Path) -> None:
    """A `make` that installed through the link would leave the test's folder in all its programs."""
    newest = max((ROOT / name).stat().st_mtime_ns for name in READY_AFTER)
    ready = (environment / ".ready").stat().st_mtime_ns
    assert ready >= newest, f"{environment} is older than its locks: say `make lint` first"


def say(command: str, checkout: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout / 'programs'}:{checkout / '.venv' / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=checkout,
        # the modules of this checkout, also where its .venv is a link to another's
        env=os.environ
        | {"PATH": path, "COLUMNS": "120", "PYTHONPATH": f"{ROOT}/stacks:{ROOT}/image:{ROOT}/training"}
        | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def run(command: str, checkout: Path) -> None:
    if command in ASKING:
        ask_without_account(command, ASKING[command], checkout)
        return
    done = say(command, checkout)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def ask_without_account(command: str, answer: str, checkout: Path) -> None:
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
    done = say(command, checkout, **none, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
    assert done.returncode != 0
    assert answer in done.stdout, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def read(words: list[str]) -> None:
    """Take a command line of `gpu-fleet` as the console does, up to where the command itself would begin.

    Raises:
        click.ClickException: the command does not take these words.
        ConfigError: there is no such key of a run, or it has no such value.
    """
    path = next(path for at in range(len(words), -1, -1) if (path := tuple(words[:at])) in COMMANDS)
    assert path in LEAVES or words == [*path, "--help"], "no such command"
    with COMMANDS[path].make_context(" ".join(path), words[len(path) :]) as context:
        if file := context.params.get("config_file"):
            config.load(ROOT / file, context.params["overrides"])


def read_torchrun(words: list[str]) -> None:
    """Take a command line of torchrun and of what it starts, a script of the checkout or the trainer."""
    options = get_args_parser().parse_args(words)
    if options.module:
        assert options.training_script == "gpu_fleet"
        read(["train", *options.training_script_args])
    else:
        assert (ROOT / options.training_script).is_file()


def taken(command: str) -> bool:
    """Whether a command line is one that its program takes."""
    words = shlex.split(command)
    if command.startswith("make prove-"):
        return words[1].removeprefix("prove-") in PARTS
    if command.startswith("make "):
        dry = subprocess.run([words[0], "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, check=False)
        return dry.returncode == 0
    if command.startswith(TORCHRUN):
        read_torchrun(words[1:])
    elif Path(words[0]).name == "gpu-fleet":
        try:
            read(words[1:])
        except click.exceptions.Exit as end:  # --help
            return end.exit_code == 0
    else:  # run, or held elsewhere; `source FILE`
        return is_run(command) or command.startswith(PYTEST) or (ROOT / words[words[0] == "source"]).exists()
    return True


def test_every_command_of_a_readme_takes_its_arguments():
    refused = []
    for command in EVERY:
        try:
            assert taken(command)
        except (AssertionError, click.ClickException, config.ConfigError, SystemExit) as error:
            refused.append(f"{command}: {error}")

    assert len(EVERY) > 30
    assert refused == []


def test_the_server_of_a_readme_is_the_one_that_the_local_stack_asks():
    ports = {command.removeprefix(SERVER) for command in EVERY if command.startswith(SERVER)}
    settings = yaml.safe_load((ROOT / "stacks/Pulumi.local.yaml").read_text())["config"]

    assert [settings["gpu-fleet:endpoint_url"]] == [f"http://127.0.0.1:{port}" for port in ports]
    assert (ROOT / ".venv/bin/moto_server").exists()


@pytest.mark.parametrize("place", [place for place, commands in QUICK.items() if commands])
def test_the_quick_commands_of_a_readme_work(place, checkout):
    for command in BLOCKS[place]:
        if command in QUICK[place]:
            run(command, checkout)


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", WHOLE)
def test_the_commands_of_a_readme_work(place, checkout):
    if any(command.startswith(WITH_POLICY) for command in WHOLE[place]):
        run(POLICY, ROOT)  # through the link its programs would name the test's folder
    for command in filter(is_run, WHOLE[place]):
        run(command, checkout)

"""Every command that a README shows takes its arguments; the quick ones run, as a reader would run them.

Those that train or rehearse run for real by `make prove-readme`. Commands of pytest are held by `make lint`.
A tutorial's commands run one after another in an empty folder.
"""

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import yaml
from packaging.requirements import Requirement
from torch.distributed.run import get_args_parser

from gpu_fleet.core import config
from tests.image.console.commands import COMMANDS, LEAVES
from tests.prove import PARTS
from tests.ran import executable, ran

ROOT = Path(__file__).parents[1]
ROOMS = ("stacks", "image", "training", "tests")
READMES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(path for room in ROOMS for path in sorted((ROOT / room).rglob("README.md"))),
]
TUTORIALS = ROOT / "docs/tutorials"
BLOCK = re.compile(r"^```(?:sh|bash|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
# A file that a tutorial has its reader write: its first line is its name.
FILE = re.compile(r"^```toml\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PYTEST = ".venv/bin/python -m pytest "
SERVER = ".venv/bin/moto_server -p "
TORCHRUN = ".venv/bin/torchrun "
# What reads a run or trains one, the whole rehearsal, an environment of its own: seconds to a minute each.
SLOW = re.compile(
    r"\S*torchrun |gpu-fleet train (?:prepare|start|launch|report) "
    r"|make (?:policy|preview|up)|gpu-fleet (?:rehearse|policy|preview|up)\b"
)
POLICY = "make policy"
# The targets that stand a stack up; the others run what CI and `make prove` run.
TARGETS = (POLICY, "make up ")
WITH_POLICY = (*TARGETS, "gpu-fleet preview ", "gpu-fleet up ")
PIP = "pip install "
NEW_FOLDER = ("mkdir ", "python3 -m venv .venv")
NOT_RUN = (PYTEST, SERVER, PIP, *NEW_FOLDER, "source ")
# asks a cloud; without an account it says so
ASKING = ("gpu-fleet preflight aws-dev", "gpu-fleet preflight research")
PATIENCE_S = 280
READY_AFTER = (
    *("requirements.lock", "torch-pypi.lock", "torch-cpu.lock", "pyproject.toml"),
    ".ci/environment.py",
)


def blocks() -> dict[str, list[str]]:
    """README and place -> its commands, of every block; those of a tutorial are one place's."""
    found = {}
    for path in READMES:
        texts = BLOCK.findall(path.read_text())
        for number, text in enumerate(["".join(texts)] if path.parent == TUTORIALS and texts else texts):
            joined = text.replace("\\\n", " ")
            lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
            found[f"{path.relative_to(ROOT)}[{number}]"] = lines
    return found


def shown() -> set[str]:
    """The command lines of `gpu-fleet` in blocks that no test runs, without their comments."""
    texts = (text for path in READMES for kind, text in ANY_BLOCK.findall(path.read_text()) if kind == "text")
    # $$ is the number of the reader's shell
    whole = (text.replace("\\\n", " ").replace("$$", str(os.getpid())) for text in texts)
    lines = (line.strip() for text in whole for line in text.splitlines())
    return {shlex.join(shlex.split(line, comments=True)) for line in lines if line.startswith("gpu-fleet ")}


def page(place: str) -> Path:
    return ROOT / place.partition("[")[0]


def is_tutorial(place: str) -> bool:
    return page(place).parent == TUTORIALS


def is_run(command: str) -> bool:
    """Whether a test runs it, rather than the whole suite or a server."""
    return command.startswith(TARGETS) if command.startswith("make ") else not command.startswith(NOT_RUN)


BLOCKS = blocks()
EVERY = sorted({command for commands in BLOCKS.values() for command in commands})
# Each quick command once, with those of its block; a tutorial's all, since one needs those before it.
QUICK = {place: [] for place in BLOCKS}
for command in EVERY:
    if is_run(command) and not SLOW.match(command):
        places = [place for place in BLOCKS if command in BLOCKS[place]]
        tutorials = [place for place in places if is_tutorial(place)]
        for at in tutorials or places[:1]:
            QUICK[at].append(command)
WHOLE = {place: commands for place, commands in BLOCKS.items() if any(map(SLOW.match, commands))}


@pytest.fixture
def reader(tmp_path, place) -> Path:
    """A reader's folder, with a `pulumi` that agrees to all: the checkout, or what a tutorial says to write.

    New files of the checkout land here.
    """
    if is_tutorial(place):
        (tmp_path / ".venv").symlink_to(ROOT / ".venv")
        write_files(page(place), tmp_path)
    else:
        for entry in ROOT.iterdir():
            if entry.name not in {"build", "data", "runs", ".git"}:
                (tmp_path / entry.name).symlink_to(entry)
    assert_ready(ROOT / ".venv")
    programs = tmp_path / "programs"
    programs.mkdir()
    agreeing = """case "$*" in *"stack output"*|preview*--json*) echo '{}';; esac"""
    executable(programs / "pulumi", f"#!/bin/sh\n{agreeing}\n")
    return tmp_path


def write_files(path: Path, folder: Path) -> None:
    for name, text in FILE.findall(path.read_text()):
        (folder / name).write_text(text)


def assert_ready(environment: Path) -> None:
    """A `make` that installed through the link would leave the test's folder in all its programs."""
    newest = max((ROOT / name).stat().st_mtime_ns for name in READY_AFTER)
    ready = (environment / ".ready").stat().st_mtime_ns
    assert ready >= newest, f"{environment} is older than its locks: say `make lint` first"


def say(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'programs'}:{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    # the modules of this checkout, also where its .venv is a link to another's
    modules = f"{ROOT}/stacks:{ROOT}/image:{ROOT}/training"
    own = os.environ | {"PATH": path, "COLUMNS": "120", "PYTHONPATH": modules} | environment
    return ran(["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=own, timeout=PATIENCE_S)


def run(command: str, folder: Path) -> None:
    if command in ASKING:
        ask_without_account(command, folder)
        return
    done = say(command, folder)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def ask_without_account(command: str, folder: Path) -> None:
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
    done = say(command, folder, **none, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
    assert done.returncode != 0
    said = f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "Unable to locate credentials" in done.stdout, said


def read(words: list[str], folder: Path) -> None:
    """Take a command line of `gpu-fleet` as the console does, up to where the command itself would begin.

    Args:
        folder: has the files that tutorials write; others are the checkout's.

    Raises:
        click.ClickException: the command does not take these words.
        ConfigError: there is no such key of a run, or it has no such value.
    """
    path = next(path for at in range(len(words), -1, -1) if (path := tuple(words[:at])) in COMMANDS)
    assert path in LEAVES or words == [*path, "--help"], "no such command"
    with COMMANDS[path].make_context(" ".join(path), words[len(path) :]) as context:
        if file := context.params.get("config_file"):
            own = folder / file
            config.load(own if own.exists() else ROOT / file, context.params["overrides"])


def read_torchrun(words: list[str], folder: Path) -> None:
    """Take a command line of torchrun and of what it starts, a script of the checkout or the trainer."""
    options = get_args_parser().parse_args(words)
    if options.no_python:
        assert options.training_script == "gpu-fleet"
        read(options.training_script_args, folder)
    elif options.module:
        assert options.training_script == "gpu_fleet"
        read(["train", *options.training_script_args], folder)
    else:
        assert (ROOT / options.training_script).is_file()


def is_offered(requirement: Requirement) -> bool:
    """Whether pip can bring it: by a name and extras that the package has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return (
        requirement.name == project["name"] and requirement.extras <= project["optional-dependencies"].keys()
    )


def taken(command: str, folder: Path) -> bool:
    """Whether a command line is one that its program takes."""
    words = shlex.split(command)
    if command.startswith("make prove-"):
        return words[1].removeprefix("prove-") in PARTS
    if command.startswith("make "):
        return ran([words[0], "--dry-run", *words[1:]], cwd=ROOT).returncode == 0
    if command.startswith(PIP):
        return all(is_offered(Requirement(word)) for word in words[2:] if "gpu-fleet" in word)
    if command.startswith(TORCHRUN):
        read_torchrun(words[1:], folder)
    elif Path(words[0]).name == "gpu-fleet":
        try:
            read(words[1:], folder)
        except click.exceptions.Exit as end:  # --help
            return end.exit_code == 0
    else:  # run, or held elsewhere; `source FILE`
        held = is_run(command) or command.startswith((PYTEST, *NEW_FOLDER))
        return held or (ROOT / words[words[0] == "source"]).exists()
    return True


def test_every_command_of_a_readme_takes_its_arguments(tmp_path):
    refused = []
    for path in TUTORIALS.glob("*.md"):
        write_files(path, tmp_path)
    for command in (*EVERY, *shown()):
        try:
            assert taken(command, tmp_path)
        except (AssertionError, click.ClickException, config.ConfigError, SystemExit) as error:
            if not str(error).endswith("' does not exist."):  # a file that the reader has, say a bill
                refused.append(f"{command}: {error}")

    assert len(EVERY) > 30
    assert len(shown()) > 50
    assert refused == []


def test_the_server_of_a_readme_is_the_one_that_the_local_stack_asks():
    ports = {command.removeprefix(SERVER) for command in EVERY if command.startswith(SERVER)}
    settings = yaml.safe_load((ROOT / "stacks/Pulumi.local.yaml").read_text())["config"]

    assert [settings["gpu-fleet:endpoint_url"]] == [f"http://127.0.0.1:{port}" for port in ports]
    assert (ROOT / ".venv/bin/moto_server").exists()


@pytest.mark.parametrize("place", [place for place, commands in QUICK.items() if commands])
def test_the_quick_commands_of_a_readme_work(place, reader):
    for command in BLOCKS[place]:
        if command in QUICK[place]:
            run(command, reader)


def test_a_tutorial_begins_in_an_empty_folder_with_pip():
    begins = {path: BLOCK.findall(path.read_text())[0].splitlines() for path in TUTORIALS.glob("*.md")}

    assert [path.name for path, first in begins.items() if not first[0].startswith("mkdir ")] == []
    installs = {path: [line for line in first if line.startswith(PIP)] for path, first in begins.items()}
    assert [path.name for path, lines in installs.items() if not lines] == []


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", WHOLE)
def test_the_commands_of_a_readme_work(place, reader):
    if not is_tutorial(place) and any(command.startswith(WITH_POLICY) for command in WHOLE[place]):
        run(POLICY, ROOT)  # through the link its programs would name the test's folder
    for command in filter(is_run, WHOLE[place]):
        run(command, reader)

"""Every command that a README shows works, run block by block as a reader would."""

import json
import os
import re
import shlex
import subprocess
import time
import urllib.request
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("stacks", "image", "training", "tests")
READMES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for room in ROOMS for path in sorted((ROOT / room).rglob("README.md"))),
]
BLOCK = re.compile(r"^```(?:sh|bash|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# .ci/run calls these on every change, on a clean checkout
BY_CI = {"make rehearse", "make test", "make test-image", "make lint"}
# What takes root and minutes, beyond what CI has: that it finds its tests.
BY_HAND = {"make test-queue"}
# a server stays until it is told to go
SERVERS = {".venv/bin/moto_server -p 5000": "http://127.0.0.1:5000/moto-api/"}
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
PYTEST = ".venv/bin/python -m pytest "
# {command: its words} to {command: [exit status, what was said]}; in one process, for each would load for 2 s
COLLECT = """
import contextlib, io, json, sys
import pytest

answers = {}
for command, words in json.load(sys.stdin).items():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main([*words, "--collect-only", "-s", "-p", "no:cacheprovider"])
    answers[command] = (status, said.getvalue())
json.dump(answers, sys.stdout)
"""


def blocks() -> list[tuple[str, list[str]]]:
    """(README and place, its commands) of every block, comments and empty lines left out."""
    found = []
    for path in READMES:
        for number, text in enumerate(BLOCK.findall(path.read_text())):
            joined = text.replace("\\\n", " ")
            lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
            found.append((f"{path.relative_to(ROOT)}[{number}]", lines))
    return found


BLOCKS = dict(blocks())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The checkout as a reader has it, whose new files land elsewhere; with a `pulumi` that agrees to all."""
    for entry in ROOT.iterdir():
        if entry.name not in {"build", "data", "runs", ".git"}:
            (tmp_path / entry.name).symlink_to(entry)
    assert_ready(ROOT / ".venv")
    programs = tmp_path / "programs"
    programs.mkdir()
    agreeing = """case "$*" in *"stack output"*|preview*--json*) echo '{}';; esac"""
    (programs / "pulumi").write_text(f"#!/bin/sh\n{agreeing}\n")
    (programs / "pulumi").chmod(0o755)
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
        | {"PATH": path, "COLUMNS": "120", "PYTHONPATH": f"{ROOT}:{ROOT}/training"}
        | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def run(command: str, checkout: Path) -> None:
    done = say(command, checkout)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@cache
def collected() -> dict[str, tuple[int, str]]:
    """What pytest finds for each command of a README that calls it: exit status and words."""
    commands = [line for lines in BLOCKS.values() for line in lines if line.startswith(PYTEST)]
    done = subprocess.run(
        [ROOT / ".venv/bin/python", "-c", COLLECT],
        input=json.dumps({command: shlex.split(command.removeprefix(PYTEST)) for command in commands}),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return json.loads(done.stdout)


def find_tests(command: str) -> None:
    """Tests that a README names are there; they run on each change anyway."""
    status, said = collected()[command]
    assert status == 0, f"{command}\n{said[-2000:]}"


def ask_without_account(command: str, answer: str, checkout: Path) -> None:
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
    done = say(command, checkout, **none, AWS_SHARED_CREDENTIALS_FILE=os.devnull)
    assert done.returncode != 0
    assert answer in done.stdout, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def serve(command: str, url: str, checkout: Path) -> None:
    """Start a server, see it answer, end it."""
    process = subprocess.Popen(
        command.split(), cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _answers(url):
            assert process.poll() is None, f"{command} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{command} does not answer"
            time.sleep(0.1)  # polls another process; its clock is not ours to inject
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return response.status == 200
    except OSError:
        return False


LINKED = [*READMES, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", sorted(set(LINKED)), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_room_has_a_readme():
    for room in ROOMS:
        assert ROOT / room / "README.md" in READMES


@pytest.mark.parametrize("place", BLOCKS)
def test_the_commands_of_a_readme_work(place, checkout):
    by_ci = (ROOT / ".ci" / "run").read_text()

    for command in BLOCKS[place]:
        if command in BY_CI:
            target = command.replace("make", "target")
            assert re.search(rf"^{target}( \|\| test_again)?$", by_ci, re.MULTILINE)
        elif command in BY_HAND:
            run(f"{command} ARGS='--collect-only --quiet'", checkout)
        elif command.startswith(PYTEST):
            find_tests(command)
        elif command in SERVERS:
            serve(command, SERVERS[command], checkout)
        elif command in ASKING:
            ask_without_account(command, ASKING[command], checkout)
        else:
            run(command, checkout)


def test_the_table_of_dependencies_names_every_package_that_is_pinned():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = (ROOT / "requirements.txt", *sorted(ROOT.glob("[!.b]*/**/requirements.txt")))
    pinned = [name for path in files for name in re.findall(r"^([\w-]+).*==", path.read_text(), re.MULTILINE)]

    assert len(pinned) > len(files)
    assert [name for name in pinned if name not in text] == []

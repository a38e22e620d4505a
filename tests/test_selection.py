"""Selections of the suite: the tests that a change can break, and the parts of `make prove`."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.prove import PARTS, figures, passed
from tests.ran import ran
from tests.touched import QUICK, ROOT, changed_files, selected, uses_of

TREE = {
    "image/gpu_fleet_image/deep.py": "",
    "image/gpu_fleet_image/aws/api.py": "",
    "image/gpu_fleet_image/shallow.py": 'import gpu_fleet_image.deep\nload(f"gpu_fleet_image.{cloud}.api")',
    "image/gpu_fleet_image/verbs/__init__.py": "",
    "image/gpu_fleet_image/verbs/take.py": "from gpu_fleet_image.shallow import x",
    "image/gpu_fleet_image/console/commands.toml": 'take = ["gpu_fleet_image.verbs.take:take", "Take"]',
    "training/gpu_fleet/__main__.py": "from gpu_fleet.trainer import loop",
    "training/gpu_fleet/trainer/loop.py": "",
    "tests/helper.py": "import gpu_fleet_image.shallow",
    "tests/conftest.py": "import gpu_fleet_image.deep",
    "tests/room/conftest.py": "import training_set_up",
    "tests/room/test_by_helper.py": "from tests.helper import y",
    "tests/room/test_by_process.py": 'words = ["-m", "gpu_fleet", "start"]',
    "tests/room/test_by_command.py": 'from gpu_fleet_image import console\nsay("take --hours 2")',
    "tests/test_alone.py": "",
}
BY_COMMAND, BY_HELPER, BY_PROCESS = (
    f"tests/room/test_by_{way}.py" for way in ("command", "helper", "process")
)
ALL = [BY_COMMAND, BY_HELPER, BY_PROCESS, "tests/test_alone.py"]
WHAT_RUNS = {
    "image/gpu_fleet_image/deep.py": [BY_COMMAND, BY_HELPER],
    "image/gpu_fleet_image/aws/api.py": [BY_COMMAND, BY_HELPER],
    "image/gpu_fleet_image/verbs/take.py": [BY_COMMAND],
    "image/gpu_fleet_image/verbs/units/take.service": [BY_COMMAND],
    "training/gpu_fleet/trainer/loop.py": [BY_PROCESS],
    "tests/helper.py": [BY_HELPER],
    "tests/room/conftest.py": ALL[:-1],
    "tests/test_alone.py": ["tests/test_alone.py"],
    "tests/conftest.py": ALL,
    "requirements.lock": ALL,
    "image/README.md": [],
    "LICENSE": [],
}


def test_a_change_runs_the_tests_that_use_what_changed_and_no_others():
    uses = uses_of(TREE)

    assert {file: selected([file], uses) for file in WHAT_RUNS} == WHAT_RUNS


def test_a_change_is_what_differs_from_the_base_and_what_git_does_not_know_yet():
    answers = {
        "merge-base main HEAD": ["0a1b"],
        "diff --name-only --no-renames 0a1b": ["b.py", "a.py"],
        "ls-files --others --exclude-standard": ["new.py"],
    }

    assert changed_files("main", lambda *words: answers[" ".join(words)]) == ["a.py", "b.py", "new.py"]


def test_a_base_and_a_part_that_do_not_exist_are_named():
    base, part = (
        ran([sys.executable, "-m", *words], cwd=ROOT, timeout=60)
        for words in (("tests.touched", "--base", "nowhere"), ("tests.prove", "quue"))
    )

    assert (base.returncode, part.returncode) == (2, 2)
    assert "--base 'nowhere'" in base.stderr
    assert [name for name in PARTS if name not in part.stderr] == []


def test_each_test_that_make_test_leaves_out_belongs_to_one_part_of_make_prove():
    marked = re.compile(r"mark\.(?:prove|image|libraries|queue)\b")
    modules = [path for path in (ROOT / "tests").rglob("test_*.py") if marked.search(path.read_text())]

    parts = {str(path.relative_to(ROOT)): parts_of(path) for path in modules if path != Path(__file__)}

    assert parts
    assert {module: found for module, found in parts.items() if len(found) != 1} == {}


def parts_of(module: Path) -> list[str]:
    """The names of the parts that run a module."""

    def lies_in(paths: Iterable[str]) -> bool:
        return any(module.is_relative_to(ROOT / path) for path in paths)

    found = []
    for name, part in PARTS.items():
        ignored = [path.removeprefix("--ignore=") for path in part.paths if path.startswith("--ignore=")]
        if part.marker != QUICK and lies_in(part.paths) and not lies_in(ignored):
            found.append(name)
    return found


def test_a_part_counts_what_passed_and_no_skip(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="1" errors="1" skipped="2"/></testsuites>')

    assert figures("queue", passed(report), 12.34)["prove_queue_tests_passed"]["value"] == 5


def test_the_paths_of_each_part_are_there():
    paths = {path.removeprefix("--ignore=") for part in PARTS.values() for path in part.paths}

    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_each_part_that_a_hosted_runner_can_run_runs_every_night():
    job = yaml.safe_load((ROOT / ".github/workflows/prove.yml").read_text())["jobs"]["prove"]

    assert job["strategy"]["matrix"]["part"] == [part for part in PARTS if part != "provider"]


def test_make_and_the_selection_agree_on_what_is_quick():
    assert f"QUICK := {QUICK}\n" in (ROOT / "Makefile").read_text()

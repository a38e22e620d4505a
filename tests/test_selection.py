"""Selections of the suite: the tests that a change can break, and the parts of `make prove`."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from tests.prove import PARTS, figures, passed
from tests.ran import ran
from tests.touched import QUICK, ROOT, changed, selected
from tests.uses import BODY, TEXT, WHOLE, Graph, changed_nodes

TREE = {
    "image/gpu_fleet_image/deep.py": (
        "LIMIT = 1\n\ndef used(): return LIMIT\n\ndef unused(): text()\n\ndef text(): pass"
    ),
    "image/gpu_fleet_image/aws/api.py": "",
    "image/gpu_fleet_image/lazy.py": 'TABLE = LazyGroup({"x": "gpu_fleet_image.loaded:run"})',
    "image/gpu_fleet_image/loaded.py": "def run(): pass",
    "image/gpu_fleet_image/shallow.py": (
        "from gpu_fleet_image.deep import used, unused\n"
        "class X:\n    def x(self): return used()\n"
        'def y(cloud): load(f"gpu_fleet_image.{cloud}.api")'
    ),
    "image/gpu_fleet_image/verbs/__init__.py": "",
    "image/gpu_fleet_image/verbs/take.py": (
        "from gpu_fleet_image import shallow\ntake = group()\n@take.command()\ndef sub(): shallow.X()"
    ),
    "image/gpu_fleet_image/console/commands.toml": 'take = ["gpu_fleet_image.verbs.take:take", "Take"]',
    "training/gpu_fleet/__main__.py": "from gpu_fleet.cli import main\nmain()",
    "training/gpu_fleet/cli.py": 'main = Group({\n        "start": "gpu_fleet.trainer.loop:start",\n})',
    "training/gpu_fleet/trainer/loop.py": (
        'OPENERS = {"text": "gpu_fleet.trainer.text"}\ndef start(): import_module(OPENERS)\ndef stop(): pass'
    ),
    "training/gpu_fleet/trainer/text.py": "def opened(): pass",
    "tests/helper.py": "from gpu_fleet_image import shallow\ndef y(): shallow.y()\ndef z(): pass",
    "tests/conftest.py": "from gpu_fleet_image.deep import unused\nimport pytest\nunused()",
    "tests/room/conftest.py": (
        "import pytest\nfrom tests import helper\n"
        "@pytest.fixture\ndef asked(): helper.z()\n"
        "@pytest.fixture(autouse=True)\ndef always(): pass"
    ),
    "tests/room/test_by_helper.py": "from tests.helper import y\ndef test_it(): y()",
    "tests/room/test_by_process.py": 'WORDS = ["-m", "gpu_fleet", "start"]',
    "tests/room/test_by_command.py": (
        'from gpu_fleet_image import console\ndef test_it(asked): say("take --hours 2")'
    ),
    "tests/room/test_by_name.py": 'def test_it(patch): patch("gpu_fleet_image.deep.used", 3)',
    "tests/test_alone.py": "def test_it(): pass",
    "tests/test_script.py": (
        'SCRIPT = """\nfrom gpu_fleet_image import shallow, lazy\n""" + UNIT\nUNIT = "gpu-run@.service"'
    ),
}
BY_COMMAND, BY_HELPER, BY_NAME, BY_PROCESS = (
    f"tests/room/test_by_{way}.py" for way in ("command", "helper", "name", "process")
)
ALONE, SCRIPT = "tests/test_alone.py", "tests/test_script.py"
IN_THE_ROOM = [BY_COMMAND, BY_HELPER, BY_NAME, BY_PROCESS]
ALL = [*IN_THE_ROOM, ALONE, SCRIPT]
WHAT_RUNS = {
    ("image/gpu_fleet_image/deep.py", "used"): [BY_COMMAND, BY_NAME, SCRIPT],
    ("image/gpu_fleet_image/deep.py", "LIMIT"): [BY_COMMAND, BY_NAME, SCRIPT],
    ("image/gpu_fleet_image/loaded.py", "run"): [SCRIPT],
    ("image/units/gpu-run@.service", WHOLE): [SCRIPT],
    ("stacks/Pulumi.dev.yaml", WHOLE): [ALONE, SCRIPT],
    ("image/gpu_fleet_image/deep.py", "unused"): [SCRIPT],
    ("image/gpu_fleet_image/deep.py", "text"): [SCRIPT],
    ("image/gpu_fleet_image/deep.py", TEXT): [],
    ("image/gpu_fleet_image/deep.py", BODY): [*IN_THE_ROOM, SCRIPT],
    ("image/gpu_fleet_image/aws/api.py", WHOLE): [BY_HELPER, SCRIPT],
    ("image/gpu_fleet_image/verbs/take.py", "sub"): [BY_COMMAND],
    ("image/gpu_fleet_image/verbs/units/take.service", WHOLE): [BY_COMMAND],
    ("training/gpu_fleet/trainer/loop.py", "start"): [BY_PROCESS],
    ("training/gpu_fleet/trainer/loop.py", "stop"): [],
    ("training/gpu_fleet/trainer/text.py", "opened"): [BY_PROCESS],
    ("tests/helper.py", "y"): [BY_HELPER],
    ("tests/helper.py", "z"): [BY_COMMAND],
    ("tests/room/conftest.py", "always"): IN_THE_ROOM,
    ("tests/room/conftest.py", "asked"): [BY_COMMAND],
    ("tests/test_alone.py", "test_it"): [ALONE],
    ("tests/conftest.py", "unused"): ALL,
    ("requirements.lock", WHOLE): ALL,
    ("image/README.md", WHOLE): [],
    ("LICENSE", WHOLE): [],
}


def test_a_change_runs_the_tests_that_use_what_changed_and_no_others():
    graph = Graph(TREE)

    assert {node: selected([node], graph) for node in WHAT_RUNS} == WHAT_RUNS


def test_a_name_that_was_removed_or_moved_counts_where_it_is_said():
    before = "LIMIT = 1\n\ndef unused(): pass\n\ndef used(): return LIMIT\n"
    renamed, moved = (
        changed_nodes("image/gpu_fleet_image/deep.py", before, after)
        for after in (before.replace("LIMIT =", "MOST ="), TREE["image/gpu_fleet_image/deep.py"])
    )

    graph = Graph(TREE)

    assert selected(renamed, graph) == [BY_COMMAND, BY_NAME, SCRIPT]
    assert selected(moved, graph) == [*IN_THE_ROOM, SCRIPT]


def test_a_change_is_each_name_that_says_something_else_than_at_the_base_and_each_other_file():
    before = "import a\nfrom b import c\n\ndef f():\n    return 1\n\ndef g(): pass\n"
    after = "import a\nfrom b import c, d  # why\n\ndef f():\n    return 2\n\n\ndef g():\n    pass\nf()\n"
    answers = {
        "merge-base main HEAD": "0a1b\n",
        "diff --name-status --no-renames 0a1b": "M\tb.yaml\nM\ta.py\n",
        "ls-files --others --exclude-standard": "new.py\n",
        "show 0a1b:a.py": before,
    }

    differ = changed("main", {"a.py": after, "new.py": ""}, lambda *words: answers[" ".join(words)])

    assert differ == {
        *(("a.py", name) for name in ("f", BODY, "d", "import d", TEXT)),
        ("b.yaml", WHOLE),
        ("new.py", WHOLE),
    }


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

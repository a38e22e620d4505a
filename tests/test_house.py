"""`.ci/house.py` names what breaks a rule of the house: each kind of rule, broken in a small checkout."""

from pathlib import Path

import house
from checks import arrows, changes, pages, pins, tables, trips, unused, words
from checks.sources import Checkout
from tests.image.alicloud_api import misfit

ROOT = Path(__file__).parents[1]
TRIP = trips.TRIPS["stacks/README.md"]
REGIONS = {tables.REGIONS: '[aws]\nregions = ["eu-nowhere-1"]\n'}
DATA = '[project.optional-dependencies]\ndata = ["tokens==1"]\n'
BUILT = '[build-system]\nrequires = ["tokens==1"]\n'
RELEASES = {
    "CHANGELOG.md": "## [0.10.0] - 2026-01-01\n",
    "pyproject.toml": '[tool]\nsetuptools_scm = {fallback_version = "0.2.0.dev0"}\n'
    'towncrier = {type = [{directory = "added"}]}\n',
}
CIRCLE = {  # through the __init__ of a folder
    "stacks/gpu_fleet_stacks/__init__.py": "from gpu_fleet_stacks.b import load\n",
    "stacks/gpu_fleet_stacks/b.py": "from gpu_fleet_stacks import c\n",
    "stacks/gpu_fleet_stacks/c.py": "from gpu_fleet_stacks import load\n",
}
LOCKS = {"requirements.lock": "torch==2.1 \\\n    --hash=sha256:x\n", "torch-cpu.lock": "torch==2.0+cpu \\\n"}


def drawn(*stops: str) -> dict[str, str]:
    """The first trip, all files empty, and the README that draws it."""
    return dict.fromkeys(TRIP, "") | {
        "stacks/README.md": "\n".join(["```text", "trip: x", *stops, "```", ""])
    }


def action(page: str, answer: str) -> dict[str, str]:
    """A row of Alibaba Cloud's actions, which no stand-in answers."""
    row = f'[GetRole]\npage = "https://www.alibabacloud.com/help/{page}"\nsource = "x"\nanswer = [{answer}]'
    return {tables.ACTIONS: f"{row}\nread = 2026-01-01\n", "tests/a.py": ""}


IMAGE, STACKS = "image/gpu_fleet_image/a.py", "stacks/gpu_fleet_stacks/a.py"
STEP, WHEELS = "image/gpu_fleet_image/recipe/steps/a", "image/gpu_fleet_image/recipe/wheels/debian-12.txt"
FRAGMENT, ODD_NAME = "docs/changes/a.added.md", "docs/changes/a.b.md"
PROGRAM, OSS = "stacks/gpu_fleet_stacks/program.py", "image/gpu_fleet_image/oss.py"
# (rule, its first words, the files of a checkout that breaks it)
BROKEN = [
    (words.of_modules, f"{IMAGE}:2: 'machine'", {IMAGE: 'A = "machine"\nB = f"{A}: my machine"\n'}),
    (words.of_modules, f"{IMAGE}:1: 'told'", {IMAGE: "# who was told\n"}),
    (words.of_modules, f"{IMAGE}:2: 'told'", {IMAGE: '"""A\nb told."""\n'}),
    (words.of_modules, f"{IMAGE}:1: the name told", {IMAGE: "told = 1\n"}),
    (words.beginnings, f"{STACKS}:2: begins with 'What'", {STACKS: 'def a():\n    """What it is."""\n'}),
    (words.beginnings, f"{STACKS}:1: begins with 'Of'", {STACKS: 'a(help="Of one cloud.")\n'}),
    (
        words.of_documents,
        "image/gpu_fleet_image/a.sh:1: 'told'",
        {"image/gpu_fleet_image/a.sh": "# who was told\n"},
    ),
    (words.digits, "image/a.py:2: '\\\\d' takes", {"image/a.py": 'B = rb"\\d"\nA = r"\\d"\n'}),
    (
        words.digits,
        "image/a.py:2: '.isdigit(' takes",
        {"image/a.py": "x.isascii() and x.isdigit()\nx.isdigit()\n"},
    ),
    (words.exceptions, "docs/how-to/accounts.md:1: exception", {"docs/how-to/accounts.md": ""}),
    (pages.links, "docs/a.md:1: the link to b.md", {"docs/a.md": "[b](b.md)", "b.md": ""}),
    (pages.commands, "a.md:1: .venv", {"a.md": f"{pages.PYTEST}tests/a.py -k b", "tests/a.py": "def test_a"}),
    (pages.paths, "docs/a.md:2: b.py is not there", {"docs/a.md": "\n`b.py`"}),
    (pages.paths, "docs/how-to/monitor.md:1: provisioning/ is", {"docs/how-to/monitor.md": ""}),
    (
        pages.maps,
        "image/README.md:1: does not",
        {"image/README.md": "", "image/gpu_fleet_image/a/__init__.py": ""},
    ),
    (pages.maps, "stacks:1: has no README", {"image/README.md": ""}),
    (pages.rooms, "image/README.md:1: has 81 lines", {"image/README.md": "\n" * 81}),
    (pages.top, "sso2:1: is not of the top level", {"sso2": "[default]", "Makefile": ""}),
    (pages.front_page, "README.md:1: has 1201 words", {"README.md": "a " * 1201}),
    (pages.dependencies, "image/requirements.txt:1: tokens", {"image/requirements.txt": "tokens==1\n"}),
    (trips.drawings, "stacks/README.md:3: draws", drawn(*(f"{file} network" for file in TRIP[1:]))),
    (
        trips.drawings,
        "stacks/README.md:4: stacks/gpu_fleet_stacks/settings/schema.py",
        drawn(*(f"{file} x" for file in TRIP)),
    ),
    (arrows.rooms, f"{STACKS}:2: imports tests.b", {STACKS: "def a():\n import tests.b\n"}),
    (
        arrows.names_there,
        "tests/a.py:1: gpu_fleet_stacks.b has no C",
        {"tests/a.py": "from gpu_fleet_stacks.b import C", "stacks/gpu_fleet_stacks/b.py": "B = 1\n"}
        | {IMAGE: "", "training/gpu_fleet/a.py": ""},
    ),
    (
        arrows.environments,
        f"{STACKS}:1: imports gpu_fleet_image.b",
        {STACKS: "from gpu_fleet_image import b\n"},
    ),
    (
        arrows.environments,
        "stacks/gpu_fleet_stacks/cost/a.py:1: imports boto3",
        {"stacks/gpu_fleet_stacks/cost/a.py": "import boto3\n"},
    ),
    (
        arrows.environments,
        f"{STACKS}:1: stacks/gpu_fleet_stacks/settings/reader",
        {STACKS: "import pulumi.config\n"},
    ),
    (arrows.environments, f"{STACKS}:1: stands in no room", {STACKS: ""}),
    (
        arrows.console,
        "image/gpu_fleet_image/console/a.py:1: imports rich",
        {"image/gpu_fleet_image/console/a.py": "import rich\n"},
    ),
    (arrows.program, f"{PROGRAM}:1: imports gpu_fleet_image.a", {PROGRAM: "import gpu_fleet_image.a\n"}),
    (arrows.program, f"{PROGRAM}:41: has 41", {PROGRAM: "\n" * 41}),
    (arrows.sizes, "image/a.py:501: has 501 lines", {"image/a.py": "\n" * 501}),
    (arrows.sizes, "image/a.py:1: B has 301", {"image/a.py": "class B:\n" + "    c = 1\n" * 300}),
    (arrows.circles, "stacks/gpu_fleet_stacks/", CIRCLE),
    (
        arrows.homes,
        f"{IMAGE}:2: A is",
        {IMAGE: "\nclass A: ...\n", "image/gpu_fleet_image/b.py": "class A: ...\n"},
    ),
    (arrows.homes, f"{IMAGE}:1: execute_policy", {IMAGE: "execute_policy()\n"}),
    (arrows.component_types, f"{STACKS}:1: gpu", {STACKS: 'a.__init__("gpu-fleet:aws")'}),
    (unused.names, f"{IMAGE}:2: a: nothing", {IMAGE: "A = 1\ndef a(): A\n", STEP: ""}),
    (unused.names, ".ci/checks/unused.py:1: CALLED", {IMAGE: "", STEP: ""}),
    (unused.helpers, "tests/a.py:3: b:", {"tests/a.py": "def a():\n a()\ndef b():\n", "tests/c.py": "b\n"}),
    (pins.requirements, "image/a/requirements.txt:1: is not", {"image/a/requirements.txt": ""}),
    (pins.requirements, "requirements.txt:1: a has 0", {"requirements.txt": "a\n"}),
    (pins.locks, "requirements.lock:1: has a None", {"requirements.txt": "a==1\n"}),
    (pins.locks, "torch-cpu.lock:1: torch==2.0+cpu has no hash", LOCKS),
    (pins.torch, "torch-cpu.lock:1: has torch 2.0", LOCKS),
    (pins.wheels, f"{WHEELS}:1: a 1", {WHEELS: "a==1\n"}),
    (pins.beside_the_locks, "pyproject.toml:1: the extra", {"pyproject.toml": DATA, "tests/a.py": ""}),
    (pins.beside_the_locks, "pyproject.toml:1: asks", {"pyproject.toml": f"{BUILT}{DATA}", "tests/a.py": ""}),
    (tables.actions, f"{tables.ACTIONS}:1: GetRole names", action("a", '"A"')),
    (tables.actions, f"{tables.ACTIONS}:1: GetRole lacks", action("getrole", "")),
    (tables.actions, f"{tables.ACTIONS}:1: no stand-in", action("getrole", '"A"')),
    (tables.actions, f"{OSS}:1: ListUsers", action("getrole", '"A"') | {OSS: 'ask("ram", "ListUsers")'}),
    (tables.regions, f"{tables.REGIONS}:1: eu-nowhere-1", REGIONS),
    (tables.regions, f"{tables.CATALOG[0]}:1: moon", REGIONS | {tables.CATALOG[0]: 'region = "moon"'}),
    (
        tables.written,
        "docs/reference/settings.md:1: is of other settings",
        {"docs/reference/settings.md": ""},
    ),
    (changes.fragments, f"{ODD_NAME}:1: must be named", RELEASES | {ODD_NAME: ""}),
    (changes.fragments, f"{FRAGMENT}:1: must be a text", RELEASES | {FRAGMENT: "A."}),
    *(
        (changes.fragments, f"{FRAGMENT}:{line}: must {wanted}", RELEASES | {FRAGMENT: text})
        for line, wanted, text in (
            (1, "have one paragraph", "A.\n\nDeployed stacks: x.\n\nDeployed stacks: nothing.\n"),
            (1, "be UTF-8", "A \ufffd.\n\nDeployed stacks: nothing.\n"),
            (1, "have no heading", "# A\n\nDeployed stacks: nothing.\n"),
            (3, "be finished", "A.\n\nDeployed stacks: TODO.\n"),
            (1, "be a text", "A.\n\nDeployed stacks: Nothing\n"),
        )
    ),
    (changes.next_release, "pyproject.toml:1: fallback_version 0.2.0.dev0 is older than 0.10.0", RELEASES),
]


def said(rule, files) -> list[str]:
    return [str(finding) for finding in house.findings(rule, Checkout(ROOT, files))]


def test_what_breaks_a_rule_is_named():
    answers = [(first, said(rule, files)) for rule, first, files in BROKEN]

    assert [row for row in answers if not any(line.startswith(row[0]) for line in row[1])] == []
    assert {rule for rule, _, _ in BROKEN} == set(house.CHECKS)


def test_a_rule_that_finds_nothing_to_look_at_is_broken():
    silent = [rule for rule in house.CHECKS if not said(rule, {"LICENSE": "", ".ci/checks/z.py": ""})]

    assert silent == []


def test_an_answer_that_alibaba_cloud_does_not_give_is_named():
    answer = {"ScalingGroups": [{"ScalingGroupId": "asg-1", "Desired": 1}]}

    assert misfit("DescribeScalingGroups", ["ScalingGroupIds.1"], answer).endswith("answers no ['Desired']")
    assert "takes no ['GroupIds']" in misfit("DescribeScalingGroups", ["GroupIds.1"], {})
    assert misfit("DescribeScalingGroups", ["Action", "RegionId", "ScalingGroupIds.1"], {}) == ""
    assert misfit("RunInstances", [], {}) == "RunInstances is in no row of alicloud_api.toml"

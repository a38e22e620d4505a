"""Three trips through the house, as the READMEs draw them: the files a reader opens from end to end.

A README holds a block ``text`` whose first line is ``trip: ...``. Each line after it is a stop: a file, the
name in it that the trip passes, and what happens there. Every stop must be tied to the one before it, by an
import or by a text that both files hold, or to the earlier one that ``BY_AN_OBJECT`` names. A drawing
of more files than its limit fails here, one that passes a name that is gone, and one that leaves a stop out
or adds one: ties alone would not show it where the two beside it are tied to each other.
"""

import ast
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRIP = re.compile(r"^```text\ntrip: (?P<title>[^\n]+)\n(?P<stops>.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_FILES = {"stacks/README.md": 6, "training/README.md": 9, "image/reaper/README.md": 15}
# README -> every file that a reader opens, in order: a stop that a drawing leaves out, or adds, is seen here.
TRIPS = {
    "stacks/README.md": [
        "stacks/Pulumi.aws-prod.yaml",
        "stacks/settings/schema.py",
        "stacks/settings/reader.py",
        "__main__.py",
        "stacks/aws/stack.py",
        "stacks/aws/firewall.py",
    ],
    "training/README.md": [
        "training/gpu_fleet/data/shards.py",
        "training/gpu_fleet/data/images.py",
        "training/gpu_fleet/data/dataset.py",
        "training/gpu_fleet/data/loader.py",
        "training/gpu_fleet/data/prefetch.py",
        "training/gpu_fleet/prepared_run.py",
        "training/gpu_fleet/loop.py",
        "training/gpu_fleet/parallel/spread.py",
        "training/gpu_fleet/evaluation.py",
    ],
    "image/reaper/README.md": [
        "image/reaper/agent/sensors/gpu.py",
        "image/reaper/agent/sensors/look.py",
        "image/reaper/agent/loop.py",
        "image/reaper/agent/judge.py",
        "image/reaper/agent/command.py",
        "image/reaper/agent/publish.py",
        "image/reaper/sweep/evidence.py",
        "image/reaper/aws/metrics.py",
        "image/reaper/sweep/verdict.py",
        "image/reaper/sweep/sweep.py",
        "image/reaper/handshake.py",
        "image/reaper/agent/answers.py",
        "image/reaper/agent/listening.py",
        "image/reaper/sweep/carry_out.py",
        "image/reaper/aws/instances.py",
    ],
}
EVERY_STOP = [(readme, stop) for readme, stops in TRIPS.items() for stop in range(len(stops))]
# What hands a trip on where no import does: the text that both files hold.
HANDED_ON = {
    ("stacks/Pulumi.aws-prod.yaml", "stacks/settings/schema.py"): "network",
    ("image/reaper/agent/sensors/look.py", "image/reaper/agent/loop.py"): "sample(",
    ("image/reaper/agent/publish.py", "image/reaper/sweep/evidence.py"): "METRIC_SECONDS_SINCE_ACTIVITY",
    ("image/reaper/sweep/evidence.py", "image/reaper/aws/metrics.py"): "Heartbeats",
    ("image/reaper/sweep/carry_out.py", "image/reaper/aws/instances.py"): "terminate",
}
# Stops that the one before reaches through an object alone -> the stop that brings it.
BY_AN_OBJECT = {
    "training/gpu_fleet/parallel/spread.py": "training/gpu_fleet/prepared_run.py",
    "training/gpu_fleet/evaluation.py": "training/gpu_fleet/loop.py",
    "image/reaper/sweep/verdict.py": "image/reaper/sweep/evidence.py",
    "image/reaper/sweep/carry_out.py": "image/reaper/sweep/sweep.py",
}


@dataclass(frozen=True)
class Stop:
    file: str
    name: str

    @property
    def source(self):
        return (ROOT / self.file).read_text()

    @property
    def module(self):
        return self.file.removeprefix("training/").removesuffix(".py").replace("/", ".")


def trip(readme):
    (drawing,) = TRIP.finditer((ROOT / readme).read_text())
    return [Stop(*line.split()[:2]) for line in drawing["stops"].splitlines()]


def is_as_drawn(readme):
    return [stop.file for stop in trip(readme)] == TRIPS[readme]


def defined(stop):
    """Every class, function and method of a Python file; every key of a YAML file."""
    if stop.file.endswith(".yaml"):
        return set(re.findall(r"([\w-]+):", stop.source))
    kinds = (ast.ClassDef, ast.FunctionDef)
    tree = ast.parse(stop.source)
    methods = {
        f"{owner.name}.{node.name}"
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if isinstance(node, ast.FunctionDef)
    }
    return methods | {node.name for node in tree.body if isinstance(node, kinds)}


def imported(stop):
    """The modules that a file imports; of a folder's own ``__init__`` that which it hands on."""
    if stop.file.endswith(".yaml"):
        return set()
    names = set()
    for node in ast.walk(ast.parse(stop.source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    faces = {"stacks.settings": "stacks.settings.schema", "stacks.catalog": "stacks.catalog.lookup"}
    return names | {faces[name] for name in names if name in faces}


def uses(stop, name):
    """``name``, where the file of a stop uses it other than to define or to import it."""
    if stop.file.endswith(".yaml"):
        return set()
    nodes = list(ast.walk(ast.parse(stop.source)))
    words = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (words | {node.attr for node in nodes if isinstance(node, ast.Attribute)}) & {name}


def tied(stop, other):
    handed = HANDED_ON.get((other.file, stop.file))
    if handed is not None:
        return handed in stop.source and handed in other.source
    return stop.module in imported(other) or other.module in imported(stop)


@pytest.mark.parametrize("readme", TRIPS)
def test_a_readme_draws_every_stop_of_its_trip_and_no_other(readme):
    assert is_as_drawn(readme)


@pytest.mark.parametrize("readme", TRIPS)
def test_a_trip_has_no_more_files_than_its_limit(readme):
    assert len({stop.file for stop in trip(readme)}) <= MOST_FILES[readme]


@pytest.mark.parametrize(("readme", "stop"), EVERY_STOP)
@pytest.mark.parametrize("times", [0, 2], ids=["left out", "drawn twice"])
def test_a_stop_that_a_drawing_leaves_out_or_adds_is_seen(readme, stop, times, tmp_path, monkeypatch):
    text = (ROOT / readme).read_text()
    (line,) = re.findall(rf"^{re.escape(TRIPS[readme][stop])} .*\n", text, re.MULTILINE)
    (tmp_path / readme).parent.mkdir(parents=True)
    (tmp_path / readme).write_text(text.replace(line, line * times))
    monkeypatch.setattr("tests.test_trips.ROOT", tmp_path)

    assert not is_as_drawn(readme)


@pytest.mark.parametrize("readme", TRIPS)
def test_every_stop_of_a_trip_is_where_the_readme_says(readme):
    assert [stop for stop in trip(readme) if stop.name not in defined(stop)] == []


@pytest.mark.parametrize("readme", TRIPS)
def test_every_stop_of_a_trip_is_tied_to_the_one_before_it(readme):
    stops = trip(readme)
    files = [stop.file for stop in stops]

    loose = [stop for at, stop in enumerate(stops) if at and not tied(stop, _brought_by(stops, at))]

    assert loose == []
    assert len(files) == len(set(files))


def test_what_an_object_brings_is_tied_to_no_neighbour():
    neighbours = [pair for readme in TRIPS for pair in pairwise(trip(readme))]

    assert {after.file for before, after in neighbours if not tied(after, before)} == set(BY_AN_OBJECT)


def _brought_by(stops, at):
    """The stop that brings another: the one before, or an earlier one of the trip."""
    before = BY_AN_OBJECT.get(stops[at].file, stops[at - 1].file)
    return next(stop for stop in stops[:at] if stop.file == before)


@pytest.mark.parametrize("readme", TRIPS)
def test_every_stop_of_a_trip_is_called_at_one_of_them(readme):
    """By its last name: a method is called on an object that comes from elsewhere."""
    stops = trip(readme)
    names = {stop: stop.name.rpartition(".")[2] for stop in stops[1:]}

    lonely = [stop for stop, name in names.items() if not any(name in uses(other, name) for other in stops)]

    assert lonely == []

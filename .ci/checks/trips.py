"""Three trips through the house, drawn in the READMEs: the files that a reader opens from end to end.

A README holds a block ``text`` whose first line is ``trip: ...``. Each line after it is a stop: a file, the
name in it that the trip passes, and what happens there. Every stop must be tied to the one before it, by an
import or by a text in both files, or to the earlier one that ``BY_AN_OBJECT`` names.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from checks.sources import Checkout, Finding, Module, NothingToCheckError, line_of

TRIP = re.compile(r"^```text\ntrip: [^\n]+\n(?P<stops>.*?)^```$", re.MULTILINE | re.DOTALL)
# README -> every file that a reader opens, in order: ties alone would not show that a drawing lacks a stop
# whose neighbours are tied to each other.
TRIPS = {
    "stacks/README.md": [
        "stacks/Pulumi.aws-prod.yaml",
        "stacks/gpu_fleet_stacks/settings/schema.py",
        "stacks/gpu_fleet_stacks/settings/reader.py",
        "stacks/gpu_fleet_stacks/program.py",
        "stacks/gpu_fleet_stacks/aws/stack.py",
        "stacks/gpu_fleet_stacks/aws/firewall.py",
    ],
    "training/README.md": [
        "training/gpu_fleet/data/shards.py",
        "training/gpu_fleet/data/images.py",
        "training/gpu_fleet/data/dataset.py",
        "training/gpu_fleet/data/loader.py",
        "training/gpu_fleet/trainer/prepared_run.py",
        "training/gpu_fleet/trainer/loop.py",
        "training/gpu_fleet/step/spread.py",
    ],
    "image/gpu_fleet_image/controllers/sweep/README.md": [
        "image/gpu_fleet_image/instance/agent/sensors/gpu.py",
        "image/gpu_fleet_image/instance/agent/sensors/poll.py",
        "image/gpu_fleet_image/instance/agent/loop.py",
        "image/gpu_fleet_image/instance/agent/idle_detection.py",
        "image/gpu_fleet_image/instance/agent/publish.py",
        "image/gpu_fleet_image/controllers/sweep/evidence.py",
        "image/gpu_fleet_image/providers/aws/metrics.py",
        "image/gpu_fleet_image/controllers/sweep/sweep.py",
        "image/gpu_fleet_image/controllers/sweep/verdict.py",
        "image/gpu_fleet_image/controllers/sweep/idle_rules.py",
        "image/gpu_fleet_image/core/handshake.py",
        "image/gpu_fleet_image/instance/agent/answers.py",
        "image/gpu_fleet_image/instance/agent/listening.py",
        "image/gpu_fleet_image/controllers/sweep/carry_out.py",
        "image/gpu_fleet_image/providers/aws/instances.py",
    ],
}
# Ties without an import: a text in both files.
HANDED_ON = {
    ("stacks/Pulumi.aws-prod.yaml", "stacks/gpu_fleet_stacks/settings/schema.py"): "network",
    (
        "image/gpu_fleet_image/instance/agent/sensors/poll.py",
        "image/gpu_fleet_image/instance/agent/loop.py",
    ): "sample(",
    (
        "image/gpu_fleet_image/instance/agent/publish.py",
        "image/gpu_fleet_image/controllers/sweep/evidence.py",
    ): "METRIC_SECONDS_SINCE_ACTIVITY",
    (
        "image/gpu_fleet_image/controllers/sweep/evidence.py",
        "image/gpu_fleet_image/providers/aws/metrics.py",
    ): "Heartbeats",
    (
        "image/gpu_fleet_image/controllers/sweep/carry_out.py",
        "image/gpu_fleet_image/providers/aws/instances.py",
    ): "terminate",
}
SWEEP = "image/gpu_fleet_image/controllers/sweep"
# Stop that the one before reaches only through an object -> the stop that provides the object.
BY_AN_OBJECT = {
    f"{SWEEP}/sweep.py": f"{SWEEP}/evidence.py",
    f"{SWEEP}/carry_out.py": f"{SWEEP}/sweep.py",
}
# Folders that re-export names of one of their modules.
FACES = {
    "gpu_fleet_stacks.settings": "gpu_fleet_stacks.settings.schema",
    "gpu_fleet_stacks.catalog": "gpu_fleet_stacks.catalog.lookup",
}


class Stop(NamedTuple):
    """A line of a drawing."""

    file: str
    name: str
    line: int


def drawings(checkout: Checkout) -> Iterator[Finding]:
    """Find drawings that differ from the trip, and stops that are missing, untied or not called."""
    for readme, files in TRIPS.items():
        stops = drawn(readme, checkout.text(readme))
        if [stop.file for stop in stops] != files:
            names = ", ".join(stop.file for stop in stops)
            yield Finding(readme, stops[0].line, f"draws {names} where TRIPS has {', '.join(files)}")
            continue
        for stop, words in of_trip(checkout, stops):
            yield Finding(readme, stop.line, f"{stop.file} {stop.name}: {words}")


def drawn(readme: str, text: str) -> list[Stop]:
    """Return the stops of a README's drawing."""
    drawing = TRIP.search(text)
    if drawing is None or not drawing["stops"]:
        raise NothingToCheckError(f"{readme}: draws no trip")
    first = line_of(text, drawing.start("stops"))
    rows = enumerate(drawing["stops"].splitlines(), first)
    return [Stop(file, name, line) for line, row in rows for file, name, *_ in (row.split(),)]


def of_trip(checkout: Checkout, stops: list[Stop]) -> Iterator[tuple[Stop, str]]:
    """Yield (stop, problem) of a trip with the right files."""
    by_file = {stop.file: stop for stop in stops}
    words = {stop: _used(checkout, stop) for stop in stops}
    for stop in stops:
        if stop.name not in _defined(checkout, stop):
            yield stop, "is not defined there"
    for before, stop in pairwise(stops):
        brought_by = BY_AN_OBJECT.get(stop.file)
        if not _tied(checkout, stop, by_file[brought_by] if brought_by else before):
            yield stop, f"is tied neither to {before.file} nor to another by BY_AN_OBJECT"
        if brought_by and _tied(checkout, stop, before):
            yield stop, "needs no row in BY_AN_OBJECT"
        # a method may be called on an object from elsewhere
        if not any(stop.name.rpartition(".")[2] in used for used in words.values()):
            yield stop, "no stop of the trip calls it"


def _module(checkout: Checkout, stop: Stop) -> Module:
    return checkout.module(stop.file) if stop.file.endswith(".py") else Module(stop.file, "")


def _defined(checkout: Checkout, stop: Stop) -> set[str]:
    """Return every class, function and method of a Python file, or every key of a YAML file."""
    if not stop.file.endswith(".py"):
        return set(re.findall(r"([\w-]+):", checkout.text(stop.file)))
    module = _module(checkout, stop)
    tops = [node for node, _ in module.statements if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    owners = list(module.all(ast.ClassDef))
    methods = {
        f"{owner.name}.{part.name}"
        for owner in owners
        for part in owner.body
        if isinstance(part, ast.FunctionDef)
    }
    return methods | {node.name for node in tops}


def _used(checkout: Checkout, stop: Stop) -> set[str]:
    """Return the names that the file of a stop uses."""
    module = _module(checkout, stop)
    names = {node.id for node in module.all(ast.Name)}
    return names | {node.attr for node in module.all(ast.Attribute)}


def _tied(checkout: Checkout, stop: Stop, other: Stop) -> bool:
    """Return whether one of two stops imports the other, or both hold the text that ties them."""
    handed = HANDED_ON.get((other.file, stop.file))
    if handed is not None:
        return all(handed in checkout.text(file) for file in (stop.file, other.file))
    one, two = _module(checkout, stop), _module(checkout, other)
    return two.name in _known(one) or one.name in _known(two)


def _known(module: Module) -> set[str]:
    return {*module.imports, *(FACES[name] for name in FACES.keys() & module.imports.keys())}


CHECKS = (drawings,)

"""``python -m tests.bench [NAME ...]``: run the benches and write ``build/bench.json``.

Every module ``bench_<name>`` measures two things side by side in a run of its own, prints its entries as one
JSON object at the end of its output, and can be run alone. An entry is
``name -> {value, unit, peer, ratio, goal, command}``; a goal is the largest ratio or value that is good, as
its text says. A bench that fails leaves the figures of the others and of its own last good run in place.
"""

import json
import subprocess
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
TARGET = ROOT / "build" / "bench.json"
FIELDS = {"value", "unit", "peer", "ratio", "goal", "command"}

Entries = dict[str, dict[str, Any]]


class BenchError(Exception):
    """A bench that cannot be run, or whose output is no set of entries."""


def names() -> list[str]:
    """The benches there are."""
    return sorted(path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py"))


def measured(name: str) -> Entries:
    """Run one bench in a process of its own; gives its entries.

    Raises:
        BenchError: with the end of its output.
    """
    command = [sys.executable, "-m", f"tests.bench.bench_{name}"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{name}: exit code {done.returncode}; its last words: {done.stdout[-500:]}")
    return entries_in(done.stdout, name)


def entries_in(output: str, name: str) -> Entries:
    """The JSON object that ends a bench's output. Pure.

    Raises:
        BenchError: there is none, or an entry lacks a field.
    """
    start = output.find("{\n") if not output.startswith("{") else 0
    try:
        found: Entries = json.loads(output[start:])
    except ValueError as error:
        raise BenchError(f"{name}: its output ends with no JSON object: {error}") from error
    for key, entry in found.items():
        missing = FIELDS - entry.keys()
        if missing:
            raise BenchError(f"{name}: entry {key} lacks {', '.join(sorted(missing))}")
    return found


def merge(target: Path, entries: Entries) -> Entries:
    """Put entries into the file beside what it holds already; gives all."""
    before: Entries = json.loads(target.read_text()) if target.exists() else {}
    merged = dict(sorted((before | entries).items()))
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = target.with_suffix(".tmp")
    staged.write_text(json.dumps(merged, indent=2) + "\n")
    staged.replace(target)
    return merged


def table(entries: Entries) -> Table:
    """The entries for people."""
    view = Table(title=str(TARGET.relative_to(ROOT)), title_justify="left")
    for heading in ("figure", "value", "peer", "ratio", "goal"):
        view.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, entry in entries.items():
        value = f"{_shown(entry['value'])} {entry['unit']}"
        view.add_row(name, value, _shown(entry["peer"]), _shown(entry["ratio"]), _shown(entry["goal"]))
    return view


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@click.command()
@click.argument("wanted", nargs=-1, metavar="[NAME]...")
def main(wanted: tuple[str, ...]) -> None:
    """Run the named benches, or all."""
    console = Console()
    known = names()
    for name in wanted:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise click.BadParameter(f"{name!r}; allowed: {', '.join(known)}{hint}")
    failed, found = [], {}
    for name in wanted or known:
        console.print(f"bench {name} ...")
        try:
            found = merge(TARGET, measured(name))
        except BenchError as error:
            failed.append(name)
            console.print(f"failed: {error}", style="red", markup=False)
    console.print(table(found))
    if failed:
        sys.exit(f"{len(failed)} of {len(wanted or known)} benches failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""``python -m tests.prove [PART ...]``: run what takes longer than CI may; ``make prove-PART`` for one part.

A part is tests that ``make test`` leaves out, then the benches that are proofs. Each part writes its figures
to ``build/bench.json``: seconds, tests that passed, and what its benches measured.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import click

from tests.bench.__main__ import ROOT, TARGET, Entries, merge
from tests.bench.entries import entry
from tests.touched import QUICK


@dataclass(frozen=True)
class Part:
    """Tests by marker and path, and the benches that belong to them."""

    marker: str
    paths: tuple[str, ...]
    benches: tuple[str, ...] = ()
    options: tuple[str, ...] = ("-n", "2", "--dist", "loadfile")


PROVIDER = "tests/stacks/aws/test_aws_provider.py"
README = ("tests/test_readme.py", "tests/training/test_types.py", "tests/test_docs.py")
PROGRAMS = "tests/image/instance/agent/sensors/test_real_programs.py"  # JupyterLab, tmux, Open MPI and others
ONE_BY_ONE = ("-n", "0")
PARTS = {
    "stacks": Part("prove", ("tests/stacks", f"--ignore={PROVIDER}"), ("plan_check",)),
    "provider": Part("prove", (PROVIDER,), options=ONE_BY_ONE),
    "readme": Part("prove", README, options=ONE_BY_ONE),
    "wheel": Part("prove", ("tests/test_wheel.py",), options=ONE_BY_ONE),
    "training": Part("prove", ("tests/training", "tests/bench", f"--ignore={README[1]}")),
    "libraries": Part("libraries", ("tests/libraries",), options=ONE_BY_ONE),
    "reaper": Part(
        "prove",
        (
            *(f"tests/image/{room}" for room in ("console", "controllers", "core", "instance", "providers")),
            f"--ignore={PROGRAMS}",
        ),
        ("reaper", "reaper_mutants", "reaper_alicloud", "reaper_moto"),
    ),
    # an emulated computer leaves half the cores idle; modules that share a bake run in one process
    "image": Part(
        "image or prove",
        ("tests/image/recipe", "tests/image/stand_ins", PROGRAMS),
        ("image", "first_boot"),
        ("-n", "2", "--dist", "loadgroup"),
    ),
    # `make test` once more, the tests of each module the other way round: none may need one before it
    "order": Part(QUICK, ("tests",), options=("-p", "tests.reversed", "-n", "2", "--dist", "loadfile")),
    "queue": Part("queue or prove", ("tests/image/slurm",), ("queue",), ONE_BY_ONE),
}


def passed(report: Path) -> int:
    """The number of tests that passed by pytest's report; skipped ones did not."""
    counts = [
        int(suite.get("tests", 0))
        - sum(int(suite.get(kind, 0)) for kind in ("failures", "errors", "skipped"))
        for suite in ElementTree.parse(report).iter("testsuite")
    ]
    return sum(counts)


def prove(name: str, arguments: Sequence[str]) -> bool:
    """Run one part and write its figures; gives whether all of it held, and was not skipped."""
    part, began = PARTS[name], time.monotonic()
    report = TARGET.parent / f"prove-{name}.xml"
    report.parent.mkdir(exist_ok=True)
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-m", part.marker, *part.options, f"--junitxml={report}"]
    status = subprocess.run([*command, *part.paths, *arguments], cwd=ROOT, check=False).returncode
    if "--collect-only" in arguments:
        return status == 0
    if part.benches:
        benches = [sys.executable, "-m", "tests.bench", *part.benches]
        status = subprocess.run(benches, cwd=ROOT, check=False).returncode or status
    count = passed(report) if report.exists() else 0
    merge(TARGET, figures(name, count, time.monotonic() - began))
    return status == 0 and count > 0


def figures(name: str, tests: int, seconds: float) -> Entries:
    """The entries of a part for ``build/bench.json``."""
    command = f"make prove-{name}"
    return {
        f"prove_{name}_tests_passed": entry(tests, "tests", None, "all", command=command),
        f"prove_{name}_s": entry(seconds, "s", None, "", command=command),
    }


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[PART]... [PYTEST OPTION]...")
def main(words: tuple[str, ...]) -> None:
    """Run the named parts, or all."""
    first_option = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    wanted, arguments = words[:first_option], words[first_option:]
    for name in wanted:
        if name not in PARTS:
            raise click.BadParameter(f"{name!r}; allowed: {', '.join(PARTS)}")
    failed = [name for name in wanted or PARTS if not prove(name, arguments)]
    if failed:
        sys.exit(f"{len(failed)} of {len(wanted or PARTS)} parts failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

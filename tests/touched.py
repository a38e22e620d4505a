"""``make touched``: run the tests that a change can break, by who uses what changed.

What changed is each function, class and constant that says something else than where the branch began; a test
module runs if it uses one, at any depth: see `tests.uses`. A changed file that is no module counts as all
modules of the nearest folder with modules. pytest-testmon would follow calls, but sees none in the processes
that half of these tests start, and needs a recorded run of the whole suite first.
"""

import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click

from tests.uses import COMMANDS, ROOMS, TEXT, WHOLE, Graph, Node, changed_nodes, is_test_module

ROOT = Path(__file__).parents[1]
# What all tests depend on: the suite's own set-up, and the packages.
EVERYTHING = re.compile(
    r"tests/conftest\.py|tests/preloaded\.py|tests/image/alicloud_api\.py"
    r"|pyproject\.toml|(.*/)?requirements\.(txt|lock)|torch-.*\.lock"
)
# Files that are no module -> the tests that read them.
READERS = {
    r".*\.md": r"tests/(.*/)?test_(readme|docs)\.py",
    r"stacks/Pulumi\..*\.yaml": r"tests/(stacks|image/console)/.*|tests/test_\w+\.py",
    r"tests/releases/.*": r"tests/releases/.*|tests/training/(.*/)?test_library\.py",
    r"docs/changes/.*": r"tests/test_\w+\.py",
    r"training/examples/.*": r"tests/training/.*",
    r"image/gpu_fleet_image/recipe/(steps|rootfs|keys)/.*": (
        r"tests/image/(recipe|stand_ins|instance|slurm|console/runs)/.*"
        r"|tests/stacks/payload/test_first_boot\.py"
    ),
    r"Makefile|Pulumi\.yaml|\.pre-commit-config\.yaml|\.(ci|github)/.*": (
        r"tests/test_\w+\.py|tests/stacks/settings/test_project_file\.py"
    ),
}
# Modules -> the tests that read their text, beside those that use them.
READ_AS_TEXT = {
    r"stacks/gpu_fleet_stacks/.*\.py": r"tests/stacks/(test_symmetry|rehearsal/test_readme)\.py",
    r"stacks/gpu_fleet_stacks/preflight/.*\.py": r"tests/test_docs\.py",
    r"stacks/gpu_fleet_stacks/acceptance/.*\.py": r"tests/stacks/acceptance/test_(calls|alicloud)\.py",
    r"image/gpu_fleet_image/instance/(gate|agent)/.*\.py": (
        r"tests/image/instance/(gate/test_readiness|agent/test_aws_agent)\.py"
    ),
    r"(stacks|image|training)/gpu_\w+/.*\.py": (
        r"tests/(test_wheel|(.*/)?test_readme|image/console/test_console)\.py"
    ),
}
QUICK = "not image and not libraries and not queue and not prove"

Ask = Callable[..., str]  # git with its words


def readers_of(file: str, table: Mapping[str, str]) -> list[str]:
    """The patterns of the tests that read a file, by a table of patterns."""
    return [tests for read, tests in table.items() if re.fullmatch(read, file)]


def modules_beside(file: str, graph: Graph) -> list[str]:
    """The modules of the nearest folder above a file that has any; none at the top."""
    for folder in Path(file).parents[:-1]:
        beside = [other for other in graph.modules if Path(other).parent == folder]
        if beside:
            return beside
    return []


def selected(changed: Iterable[Node], graph: Graph) -> list[str]:
    """The test modules that a change of these names, or of the whole of a file, can break."""
    nodes = [*changed]
    tests = sorted(filter(is_test_module, graph.modules))
    if any(EVERYTHING.fullmatch(file) for file, name in nodes if name != TEXT):
        return tests
    begin, readers = list[Node](), list[str]()
    for file, name in nodes:
        reading = readers_of(file, READERS)
        readers += [*reading, *readers_of(file, READ_AS_TEXT)]
        if file in graph.modules:
            begin += graph.whole(file) if name == WHOLE else [(file, name)]
        else:
            modules = [*graph.naming(file), *([] if reading else modules_beside(file, graph))]
            begin += [node for module in modules for node in graph.whole(module)]
    users, read = graph.users_of(begin), re.compile("|".join({*readers}) or "(?!)")
    return [test for test in tests if (test, WHOLE) in users or read.fullmatch(test)]


def sources(top: Path = ROOT) -> dict[str, str]:
    """Each module of the rooms with its text, by path from the top, and the tables of commands."""
    rooms = [path for room in ROOMS for path in [top / room, *(top / room).rglob("*.py")]]
    paths = (path for path in [*rooms, *(top / file for file in COMMANDS)] if path.is_file())
    return {str(path.relative_to(top)): path.read_text(encoding="utf-8") for path in paths}


def git(*words: str) -> str:
    """What git says in this checkout."""
    command = ["git", *words]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout


def changed(base: str, now: Mapping[str, str], ask: Ask = git) -> set[Node]:
    """What differs from where this branch left its base, with what is not committed yet.

    `now` are the sources of the modules, which differ by their names; another file differs as a whole.
    """
    since = ask("merge-base", base, "HEAD").strip()
    differ = [line.split("\t") for line in ask("diff", "--name-status", "--no-renames", since).splitlines()]
    others = ask("ls-files", "--others", "--exclude-standard").splitlines()
    found = set[Node]()
    for status, file in [*differ, *(["?", file] for file in others)]:
        if status == "M" and file in now and file.endswith(".py"):
            found |= changed_nodes(file, ask("show", f"{since}:{file}"), now[file]) | {(file, TEXT)}
        else:
            found.add((file, WHOLE))
    return found


def default_base(ask: Ask = git) -> str:
    """The main branch of the remote, or here where there is no remote."""
    return "origin/main" if ask("branch", "--remotes", "--list", "origin/main") else "main"


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--base", help="The branch that this one left.  [default: origin/main, without it main]")
@click.option("--list", "only_list", is_flag=True, help="Name the test modules and run none.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PYTEST OPTION]...")
def main(base: str | None, only_list: bool, arguments: tuple[str, ...]) -> None:
    """Run the tests that the change can break."""
    try:
        now = sources()
        differ = changed(base or default_base(), now)
    except subprocess.CalledProcessError as error:
        raise click.BadParameter(f"--base {base!r}: {error.stderr.strip()}") from error
    gc.disable()  # it would look through the trees of 1,300 modules again and again, for three seconds
    found = selected(differ, Graph(now))
    files = len({file for file, _ in differ})
    click.echo(f"{len(differ)} names in {files} files changed, {len(found)} test modules use them", err=True)
    if only_list or not found:
        click.echo("\n".join(found))
        return
    options = ("-m", QUICK, "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")  # as `make test`
    command = [sys.executable, "-m", "pytest", *options, *found, *arguments]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()

"""``make touched``: run the tests that a change can break, by who uses what changed.

A test module is run when it uses a changed module: by an import at any depth, by a module's name in a string,
as ``python -m`` and commands have it, or by the name of a command of ``gpu-fleet``. A changed file that is no
module counts as all modules of the nearest folder with modules. pytest-testmon would follow calls, but sees
none in the processes that half of these tests start, and needs a recorded run of the whole suite first.
"""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
# Where modules lie, and the folder that their names begin below.
ROOMS = {
    "stacks/gpu_fleet_stacks": "stacks/",
    "image/gpu_fleet_image": "image/",
    "training/gpu_fleet": "training/",
    "training/gpu_fleet_jobs": "training/",
    "tests": "",
    "__main__.py": "",
}
COMMANDS = "image/gpu_fleet_image/console/commands.toml"
COMMAND = re.compile(r'^(?:[\w-]+\.commands\.)?([\w-]+) = \["([\w.]+):', re.MULTILINE)
SUITE = "tests/conftest.py"  # its fixtures are about the suite, not about what is tested
# What all tests depend on: the suite's own set-up, and the packages.
EVERYTHING = re.compile(
    rf"{SUITE}|tests/preloaded\.py|tests/image/alicloud_api\.py"
    r"|pyproject\.toml|(.*/)?requirements\.(txt|lock)|torch-.*\.lock"
)
# Files that are no module -> the tests that read them.
READERS = {
    r".*\.md": r"tests/(.*/)?test_(readme|docs)\.py",
    r"tests/releases/.*": r"tests/releases/.*|tests/training/(.*/)?test_library\.py",
    r"docs/changes/.*": r"tests/test_\w+\.py",
    r"training/examples/.*": r"tests/training/.*",
    r"image/gpu_fleet_image/recipe/(steps|rootfs|keys)/.*": (
        r"tests/image/(recipe|stand_ins|instance/(?!agent/)|queue|console/runs)/.*"
        r"|tests/stacks/payload/test_first_boot\.py"
    ),
    r"Makefile|Pulumi\.yaml|\.pre-commit-config\.yaml|\.(ci|github)/.*": (
        r"tests/test_\w+\.py|tests/stacks/settings/test_project_file\.py"
    ),
}
WORDS = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
CLOUDS = ("aws", "alicloud")
LONGEST_NAME = 200  # characters; longer strings are texts
QUICK = "not image and not libraries and not queue and not prove"

Uses = Mapping[str, frozenset[str]]  # file -> files that it uses, all by path from the top


def names_of(files: Iterable[str]) -> dict[str, str]:
    """The dotted name of each module, with its file, but the `__main__` of the top: every script says it."""
    found = {}
    for file in files:
        below = next((base for room, base in ROOMS.items() if file.startswith(room)), "")
        name = file.removeprefix(below).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found[name] = file
    found.pop("__main__", None)
    return found


def references(file: str, source: str, commands: Mapping[str, str]) -> Iterator[str]:
    """Dotted names that a module imports, and those that a test has in a string, made absolute."""
    package = file.split("/")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])
            base = parent if node.level else node.module or ""
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.JoinedStr):
            yield from names_by_cloud(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and file.startswith("tests/"):
            yield from names_in(node.value, commands)


def names_by_cloud(text: ast.JoinedStr) -> Iterator[str]:
    """What an f-string names, as `f"gpu_fleet_stacks.{cloud}.stack"` does, for each cloud."""
    for cloud in CLOUDS:
        name = "".join(str(part.value) if isinstance(part, ast.Constant) else cloud for part in text.values)
        if WORDS.fullmatch(name):
            yield name


def names_in(text: str, commands: Mapping[str, str]) -> Iterator[str]:
    """What a string of a test may name: modules, and a command's module."""
    if len(text) < LONGEST_NAME:
        yield from (word for word in WORDS.findall(text) if "." in word or word == text)
        yield from (commands[word] for word in text.split() if word in commands)


def files_of(reference: str, modules: Mapping[str, str]) -> Iterator[str]:
    """The file of a dotted name, and of each package on the way to it, whose code runs first."""
    parts = reference.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        if name in modules:
            yield modules[name]
    if f"{reference}.__main__" in modules:
        yield modules[f"{reference}.__main__"]


def uses_of(sources: Mapping[str, str]) -> Uses:
    """Who uses whom directly."""
    modules, commands = names_of(sources), dict(COMMAND.findall(sources.get(COMMANDS, "")))
    return {
        file: frozenset(
            found
            for name in set(references(file, text, commands if "console" in text else {}))
            for found in files_of(name, modules)
        )
        for file, text in sources.items()
        if file != COMMANDS
    }


def users_of(changed: Iterable[str], uses: Uses) -> set[str]:
    """All files that use a changed one, at any depth, with the changed ones."""
    users = defaultdict(set)
    for file, used in uses.items():
        for one in used:
            users[one].add(file)
    found: set[str] = set()
    ahead = [*changed]
    while ahead:
        file = ahead.pop()
        if file not in found:
            found.add(file)
            ahead += users[file]
            if Path(file).name == "conftest.py" and file != SUITE:  # its fixtures serve the tests below it
                ahead += [other for other in uses if other.startswith(f"{Path(file).parent}/")]
    return found


def modules_beside(file: str, uses: Uses) -> list[str]:
    """The modules of the nearest folder above a file that has any; none at the top."""
    for folder in Path(file).parents[:-1]:
        beside = [other for other in uses if Path(other).parent == folder]
        if beside:
            return beside
    return []


def selected(changed: Iterable[str], uses: Uses) -> list[str]:
    """The test modules that a change of these files can break."""
    files = [*changed]
    tests = sorted(file for file in uses if Path(file).name.startswith("test_"))
    if any(EVERYTHING.fullmatch(file) for file in files):
        return tests
    begin, readers = list[str](), list[str]()
    for file in files:
        reading = [tests_of_it for read, tests_of_it in READERS.items() if re.fullmatch(read, file)]
        readers += reading
        begin += [file] if file in uses else [] if reading else modules_beside(file, uses)
    users = users_of(begin, uses)
    return [test for test in tests if test in users or any(re.fullmatch(one, test) for one in readers)]


def sources(top: Path = ROOT) -> dict[str, str]:
    """Each module of the rooms with its text, by path from the top, and the table of commands."""
    rooms = [path for room in ROOMS for path in [top / room, *(top / room).rglob("*.py")]]
    paths = (path for path in [*rooms, top / COMMANDS] if path.is_file())
    return {str(path.relative_to(top)): path.read_text(encoding="utf-8") for path in paths}


def git(*words: str) -> list[str]:
    """The lines that git says in this checkout."""
    command = ["git", *words]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    return said.splitlines()


def changed_files(base: str, ask: Callable[..., list[str]] = git) -> list[str]:
    """Files that differ from where this branch left its base, with what is not committed yet."""
    since = ask("merge-base", base, "HEAD")[0]
    differ = ask("diff", "--name-only", "--no-renames", since)
    return sorted({*differ, *ask("ls-files", "--others", "--exclude-standard")})


def default_base(ask: Callable[..., list[str]] = git) -> str:
    """The main branch of the remote, or here where there is no remote."""
    return "origin/main" if ask("branch", "--remotes", "--list", "origin/main") else "main"


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--base", help="The branch that this one left.  [default: origin/main, without it main]")
@click.option("--list", "only_list", is_flag=True, help="Name the test modules and run none.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[PYTEST OPTION]...")
def main(base: str | None, only_list: bool, arguments: tuple[str, ...]) -> None:
    """Run the tests that the change can break."""
    try:
        changed = changed_files(base or default_base())
    except subprocess.CalledProcessError as error:
        raise click.BadParameter(f"--base {base!r}: {error.stderr.strip()}") from error
    found = selected(changed, uses_of(sources()))
    click.echo(f"{len(changed)} files changed, {len(found)} test modules use them", err=True)
    if only_list or not found:
        click.echo("\n".join(found))
        return
    options = ("-m", QUICK, "-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")  # as `make test`
    command = [sys.executable, "-m", "pytest", *options, *found, *arguments]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()

"""Targets that pages name: links, paths in backticks, rooms on the map, tests, packages; files at the top.

A path whose first part is a room of the checkout is said from the root; any other from the page's own folder
or from the package that users import. A file name without a folder is one below the page's own; on a page
of the site it may be anywhere.
"""

import fnmatch
import posixpath
import re
from collections.abc import Iterator

from checks.sources import ROOMS, Checkout, Finding, NothingToCheckError, line_of

PACKAGES = (
    "training/gpu_fleet",
    "training/gpu_fleet_jobs",
    "image/gpu_fleet_image",
    "image/gpu_fleet_image/controllers",
    "stacks/gpu_fleet_stacks",
)
WITH_README = ("stacks", "image", "training", "tests")
MIRRORED = re.compile(r"(\w+)/gpu_fleet\w*/(.+)")  # a room that has a folder of the same name in tests
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
IN_BACKTICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(
    r"[\w.*-]+(?:/[\w.*-]+)*/|(?:[\w.*-]+/)*[\w.*-]+\.(?:py|md|toml|yaml|sh|txt|json|lock|service|timer)"
)
# Folders and files of a computer, an instance or a bucket, which the checkout lacks.
ELSEWHERE = re.compile(
    r"""(?x)
    (?: build | \.venv )/ .*                     # what `make` leaves
    | .* (?: \b[A-Z]{3,}\b | \bN\b | NN- ) .*    # with a place for a name
    | (?: .*/ )? instance\.toml                  # on an instance
    | (?! stacks | image | training | tests ) .* \.json  # of a run, a bucket or an instance
    """
)
# page -> path that it names and the checkout lacks -> the reason
NOT_HERE = {
    "docs/explanation/instance-start.md": {"gpu-fleet-bootstrap.service": "a part of the user data"},
    "docs/how-to/monitor.md": {"provisioning/": "below the folder that the page names"},
    "image/README.md": {"vendor/": "a folder of the payload"},
    "image/gpu_fleet_image/slurm/README.md": dict.fromkeys(
        (".gpu-fleet-accounting/", ".gpu-fleet-queue/"), "on the shared homes"
    ),
    "training/README.md": {"train/": "in a data set", "val/": "in a data set"},
}
# What the top level holds, beside the rooms: each file there is one of these.
TOP = {
    *("Pulumi.yaml", "__main__.py", "requirements.txt", "pyproject.toml", "Makefile"),
    *("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *("requirements.lock", "torch-cpu.lock", "torch-pypi.lock"),
}
SITE = "docs/"
MOST_WORDS = 1200  # of the first page
MOST_LINES = 80  # of a room's README
CHANGELOG = "CHANGELOG.md"  # it names what was there
# pytest with one file or folder of tests, and a word of a test's name
TESTS = re.compile(
    r"^\.venv/bin/python -m pytest (?:-q )?(?P<file>tests/\S+)(?: -k (?P<word>\w+))?$", re.MULTILINE
)
PYTEST = ".venv/bin/python -m pytest "
ANY_TESTS = re.compile(r"^\.venv/bin/python -m pytest .*$", re.MULTILINE)


def links(checkout: Checkout) -> Iterator[Finding]:
    """Find links to missing files."""
    for page, line, hit in named(checkout, LINK):
        if not checkout.has(posixpath.join(posixpath.dirname(page), hit[1])):
            yield Finding(page, line, f"the link to {hit[1]} leads nowhere")


def commands(checkout: Checkout) -> Iterator[Finding]:
    """Find commands that run missing tests."""
    for page, line, command in named(checkout, ANY_TESTS):
        hit = TESTS.fullmatch(command[0])
        name = re.compile(rf"^ *def test_.*{hit['word'] or ''}" if hit else "", re.MULTILINE)
        if hit is None or not name.search(checkout.text(hit["file"])):
            yield Finding(page, line, f"{command[0]}: has no such test")


def named(checkout: Checkout, what: re.Pattern[str]) -> Iterator[tuple[str, int, re.Match[str]]]:
    """Return (page, line, match) for each match on a page.

    Raises:
        NothingToCheckError: there is no match.
    """
    places = [(page, hit) for page in checkout.pages() for hit in what.finditer(checkout.text(page))]
    if not places:
        raise NothingToCheckError(f"no page has {what.pattern}")
    return ((page, line_of(hit.string, hit.start()), hit) for page, hit in places)


def paths(checkout: Checkout) -> Iterator[Finding]:
    """Find missing paths in backticks, and exceptions that are no longer needed."""
    for page in checkout.pages():
        text = checkout.text(page)
        words = set(IN_BACKTICKS.findall(BLOCK.sub("", text))) if page != CHANGELOG else set()
        paths = {word for word in words if PATH.fullmatch(word) and not ELSEWHERE.fullmatch(word)}
        missing = {path for path in paths if not is_there(checkout, path, page)}
        allowed = NOT_HERE.get(page, {}).keys()
        for path in sorted(missing - allowed):
            yield Finding(page, line_of(text, f"`{path}`"), f"{path} is not there")
        for path in sorted(allowed - missing):
            yield Finding(page, 1, f"{path} is an exception that nothing needs")


def is_there(checkout: Checkout, path: str, page: str) -> bool:
    """Return whether a page's path exists."""
    bare, folder = path.removesuffix("/"), posixpath.dirname(page)
    if path.partition("/")[0] in ROOMS:
        return checkout.has(bare)
    if path.endswith((".service", ".timer")):
        return bool(_below(checkout, "image", path))
    if "/" not in path:
        start = "" if page.startswith(SITE) else folder
        return checkout.has(path) or bool(_below(checkout, start, path))
    return any(checkout.has(posixpath.join(start, bare)) for start in ("", folder, *PACKAGES))


def _below(checkout: Checkout, folder: str, name: str) -> list[str]:
    """Return the files of a name below a folder."""
    inside = [path for path in checkout.paths if not folder or path.startswith(f"{folder}/")]
    return fnmatch.filter((posixpath.basename(path) for path in inside), name)


def maps(checkout: Checkout) -> Iterator[Finding]:
    """Find rooms that are not on the map of the README above them.

    A room is a package, or has a README of its own; other folders have neither. A folder of tests that
    mirrors a room needs no name.
    """
    marked = {
        posixpath.dirname(path)
        for path in checkout.files(*WITH_README)
        if path.endswith(("/README.md", "/__init__.py"))
    }
    yield from (
        Finding(room, 1, "has no README.md") for room in WITH_README if not checkout.has(f"{room}/README.md")
    )
    mirrors = {f"tests/{hit[1]}/{hit[2]}" for room in marked if (hit := MIRRORED.fullmatch(room))}
    for room in sorted({*marked, *WITH_README, ".ci", "docs", "docs/decisions"} - mirrors):
        page = posixpath.join(posixpath.dirname(room), "README.md")
        while not checkout.has(page) and "/" in page:
            page = posixpath.join(posixpath.dirname(posixpath.dirname(page)), "README.md")
        name = re.escape(posixpath.basename(room))
        if not re.search(rf"[`\s(/\[]{name}/", checkout.text(page)):
            yield Finding(page, 1, f"does not name {room}/")


def dependencies(checkout: Checkout) -> Iterator[Finding]:
    """Find pinned packages that the table of CONTRIBUTING.md lacks."""
    files = [path for path in checkout.paths if posixpath.basename(path) == "requirements.txt"]
    pinned = {
        name: path
        for path in files
        for name in re.findall(r"^([\w-]+).*==", checkout.text(path), re.MULTILINE)
    }
    if not pinned:
        raise NothingToCheckError("no requirements.txt pins a package")
    table = checkout.text("CONTRIBUTING.md")
    for name in sorted(name for name in pinned if name not in table):
        yield Finding(pinned[name], 1, f"{name} is not in the table of CONTRIBUTING.md")


def front_page(checkout: Checkout) -> Iterator[Finding]:
    """Find a first page that is longer than newcomers read; its details belong into docs/."""
    words = len(checkout.text("README.md").split())
    if not words:
        raise NothingToCheckError("README.md is empty")
    if words > MOST_WORDS:
        yield Finding("README.md", 1, f"has {words} words, allowed: {MOST_WORDS}")


def top(checkout: Checkout) -> Iterator[Finding]:
    """Find what the top level lacks, and files that have no business there, as an attempt leaves them."""
    here = {
        path for path in checkout.paths if "/" not in path and not path.startswith(".")
    }  # tools' begin so
    for path in sorted(here - TOP):
        yield Finding(path, 1, "is not of the top level, whose files .ci/checks/pages.py lists")
    for path in sorted(TOP - here):
        yield Finding(path, 1, "is missing")


def rooms(checkout: Checkout) -> Iterator[Finding]:
    """Find each room's README that is too long: what a user reads belongs into docs/."""
    for page in checkout.files(*WITH_README, suffix="README.md"):
        if (lines := checkout.text(page).count("\n")) > MOST_LINES:
            yield Finding(page, 1, f"has {lines} lines, allowed: {MOST_LINES}")


CHECKS = (links, commands, paths, maps, dependencies, front_page, top, rooms)

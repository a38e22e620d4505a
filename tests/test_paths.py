"""Every path that a page names in backticks is there: a reader opens it without a search.

A path whose first part is a room of the checkout is said from the root; any other from the page's own folder
or from the package that users import. A file name without a folder is one below the page's own.
"""

import fnmatch
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("stacks", "image", "training", "tests", "docs", ".ci", ".github")
PACKAGE = ROOT / "training" / "gpu_fleet"
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
IN_BACKTICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
PATH = re.compile(
    r"[\w.*-]+(?:/[\w.*-]+)*/|(?:[\w.*-]+/)*[\w.*-]+\.(?:py|md|toml|yaml|sh|txt|json|lock|service|timer)"
)
# Folders and files that a computer, an instance or a bucket has and the checkout has not.
ELSEWHERE = re.compile(
    r"""(?x)
    (?: build | \.venv )/ .*                     # what `make` leaves
    | .* (?: \b[A-Z]{3,}\b | \bN\b | NN- ) .*    # with a place for a name
    | (?: .*/ )? instance\.toml                  # on an instance
    | (?! stacks | image | training | tests ) .* \.json  # of a run, a bucket or an instance
    """
)
# page -> what it names and the checkout has not, and why
NOT_HERE = {
    "README.md": {"stacks/Pulumi.research.yaml": "`gpu-fleet new` writes it"},
    "image/README.md": {
        "gpu-fleet-bootstrap.service": "a part of the user data",
        "vendor/": "a folder of the payload",
    },
    "image/queue/README.md": dict.fromkeys(
        (".gpu-fleet-accounting/", ".gpu-fleet-queue/"), "on the shared homes"
    ),
    "image/reaper/README.md": {
        **dict.fromkeys(
            ("budget/", "reaper/budget/", "reaper/ledger/", "reaper/leftovers/", "reaper/started/"),
            "in the bucket",
        ),
    },
    "stacks/README.md": {"image/files/": "in the bucket", "reaper/handshake/": "in the bucket"},
    "stacks/alicloud/README.md": dict.fromkeys(
        ("closed_buckets.py", "dashboard.py", "first_image.py", "image_roles.py", "sessions.py"),
        "files that AWS alone has",
    ),
    "training/README.md": {"train/": "in a data set", "val/": "in a data set"},
}


def pages():
    """Every page but the changelog, which names what was there."""
    of_rooms = [path for room in ROOMS for path in (ROOT / room).rglob("*.md")]
    return sorted({*ROOT.glob("*.md"), *of_rooms} - {ROOT / "CHANGELOG.md"})


@cache
def below(folder):
    """Every file below a folder, but below the environment at the top."""
    folders = [folder / room for room in ROOMS] if folder == ROOT else [folder]
    return [path.name for start in folders for path in start.rglob("*") if path.is_file()]


def is_there(path, page):
    if path.split("/")[0] in ROOMS:
        return any(ROOT.glob(path.removesuffix("/")))
    if path.endswith((".service", ".timer")):
        return path in below(ROOT / "image")
    if "/" not in path:
        return (ROOT / path).exists() or bool(fnmatch.filter(below(page.parent), path))
    return any(any(folder.glob(path.removesuffix("/"))) for folder in (ROOT, page.parent, PACKAGE))


def missing(page):
    words = IN_BACKTICKS.findall(BLOCK.sub("", page.read_text()))
    paths = {word for word in words if PATH.fullmatch(word) and not ELSEWHERE.fullmatch(word)}
    return {path for path in paths if not is_there(path, page)}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_is_there(page):
    assert missing(page) == NOT_HERE.get(str(page.relative_to(ROOT)), {}).keys()

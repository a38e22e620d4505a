"""Notes on each release for deployed stacks: the migration fields of the changes.

A change is a file of ``docs/changes/`` until its release. Then towncrier moves it into CHANGELOG.md, and its
migration field under a heading of its own.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.releases import version

FIELD = "Deployed stacks:"  # begins the last paragraph of each change
NOTHING = "nothing."
HEADING = "### Deployed stacks"
_RELEASE = re.compile(rf"^## \[({version.PATTERN})\][^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_SECTION = re.compile(rf"^{HEADING}\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"^- (.*(?:\n  .*)*)", re.MULTILINE)
_IN_WHEEL = Path(__file__).parent

Notes = Mapping[str, tuple[str, ...]]


def migration(change: str) -> str | None:
    """Return the migration field of a change; empty for nothing, None where it is missing. Pure."""
    *text, last = change.strip().split("\n\n")
    if not text or not last.startswith(f"{FIELD} "):
        return None
    said = " ".join(last.removeprefix(FIELD).split())
    return "" if said.lower() == NOTHING else said


def of_changelog(text: str) -> Notes:
    """Return release -> notes of a changelog, the newest first. Pure."""
    return {
        release: tuple(
            " ".join(item.split()) for section in _SECTION.findall(body) for item in _ITEM.findall(section)
        )
        for release, body in _RELEASE.findall(text)
    }


def known() -> Notes:
    """Return release -> notes of each release, and of the one in preparation."""
    released = _released()
    files = sorted((_in_checkout() if _in_checkout().is_dir() else _IN_WHEEL / "changes").glob("*.md"))
    changes = [path.read_text(encoding="utf-8") for path in files]
    to_come = tuple(filter(None, map(migration, changes)))
    prepared = version.running()
    noted = {prepared: released.get(prepared, ()) + to_come, **_without(released, prepared)}
    # Several changes of a release may ask for the same: it is said once.
    return {release: tuple(dict.fromkeys(said)) for release, said in noted.items()}


def is_released(release: str) -> bool:
    """Return whether the changelog has a release."""
    return release in _released()


def _released() -> Notes:
    folder = version.CHECKOUT if _in_checkout().is_dir() else _IN_WHEEL
    return of_changelog((folder / "CHANGELOG.md").read_text(encoding="utf-8"))


def _in_checkout() -> Path:
    return version.CHECKOUT / "docs" / "changes"


def _without(notes: Notes, release: str) -> Notes:
    return {name: said for name, said in notes.items() if name != release}


def since(start: str, notes: Notes) -> Notes:
    """Return the notes of the releases after one, the oldest first. Pure.

    Args:
        start: a known release, or any older than the program, as a stack file may name.

    Raises:
        StacksError: it is none; the message has the newest.
    """
    start = start.removeprefix("v")
    if start not in notes and not version.is_older(start):
        newest = _sorted(notes)[-1]
        raise StacksError(f"VERSION {start!r}: must be a release of three numbers, {newest} or older")
    return {name: notes[name] for name in _sorted(notes) if version.order(name) > version.order(start)}


def _sorted(releases: Iterable[str]) -> list[str]:
    return sorted(releases, key=version.order)

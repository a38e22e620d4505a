"""Every room is on a map: the README above it names its folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("image", "stacks", "training", "tests")
# A room is a package, or has a README of its own; the rest of the top has neither.
MARKS = ("README.md", "__init__.py")
FOUND = {path.parent for top in SOURCES for mark in MARKS for path in (ROOT / top).rglob(mark)}
ROOMS = sorted(FOUND | {ROOT / ".ci", ROOT / "docs", ROOT / "docs/decisions"})


def map_of(room: Path) -> Path:
    """The nearest README above a room."""
    return next(above / "README.md" for above in room.parents if (above / "README.md").exists())


def is_on(text: str, room: str) -> bool:
    """Whether a text names a folder, as `room/`, in a link or within a path."""
    return re.search(rf"[`\s(/\[]{re.escape(room)}/", text) is not None


def test_there_are_rooms_to_find():
    assert {ROOT / "stacks", ROOT / "image/capacity", ROOT / "training/gpu_fleet/data/preparation"} <= set(
        ROOMS
    )
    assert map_of(ROOT / "image/reaper/agent") == ROOT / "image/reaper/README.md"
    assert map_of(ROOT / "image") == ROOT / "README.md"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(ROOT)))
def test_a_room_is_on_the_map_above_it(room):
    page = map_of(room)

    assert is_on(page.read_text(), room.name), f"{room.relative_to(ROOT)}/ is not in {page.relative_to(ROOT)}"

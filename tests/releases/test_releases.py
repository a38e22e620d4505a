"""State of each release is read by this one: the facts that were in it then are in it now."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.releases.record import FACTS, KINDS, RUN, facts, folders

RECORDED = [folder / name for folder in folders() for name in KINDS if (folder / name).exists()]


def lacking(before: Any, now: Any, at: str = "") -> list[str]:
    """The places where a fact of before is gone or is another; new ones may be beside it."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [place for key in before for place in lacking(before[key], now.get(key), f"{at}.{key}")]
    return [] if before == now else [f"{at}: {before} -> {now}"]


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_a_release_wrote_says_what_it_said_then(file: Path) -> None:
    before = json.loads((file.parent / FACTS).read_text())

    assert lacking(before[file.name], facts(file)) == []


def test_every_folder_is_whole() -> None:
    for folder in folders():
        before = json.loads((folder / FACTS).read_text())
        assert [name for name in before if not (folder / name).exists()] == []
        assert RUN in before
    assert folders()

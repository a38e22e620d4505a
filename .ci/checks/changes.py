"""Changes since the last release: each is a file that towncrier and `gpu-fleet upgrade-notes` can read."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from checks.sources import Checkout, Finding, NothingToCheckError
from gpu_fleet_stacks.releases import notes, version

FOLDER, SETTINGS, CHANGELOG = "docs/changes", "pyproject.toml", "CHANGELOG.md"
TEMPLATE = ".jinja"
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|TBD)\b")


def fragments(checkout: Checkout) -> Iterator[Finding]:
    """Find changes with a wrong name, and without text or migration field."""
    types = [row["directory"] for row in _settings(checkout)["towncrier"]["type"]]
    name = re.compile(rf"{FOLDER}/[a-z0-9-]+\.(?:{'|'.join(types)})\.md")
    for path in checkout.files(FOLDER):
        if path.endswith(TEMPLATE):
            continue
        if not name.fullmatch(path):
            yield Finding(path, 1, f"must be named WORDS.TYPE.md, TYPE is one of {', '.join(types)}")
        text = checkout.text(path)
        said = notes.migration(text)
        if said is None or said.lower() == notes.NOTHING.rstrip("."):
            wanted = f"a text, an empty line, and `{notes.FIELD} {notes.NOTHING}` or what they see"
            yield Finding(path, 1, f"must be {wanted}")
        for number, line in enumerate(text.splitlines(), 1):
            if wrong := _wrong_with(line):
                yield Finding(path, number, wrong)
        if text.count(notes.FIELD) > 1:
            yield Finding(path, 1, f"must have one paragraph `{notes.FIELD}`, the last")


def _wrong_with(line: str) -> str:
    """Return why a line may not be in a change, which towncrier makes an item of a list; else empty."""
    if line.startswith("#"):
        return "must have no heading: the types of changes are the changelog's"
    if UNFINISHED.search(line):
        return "must be finished"
    return "must be UTF-8" if "\N{REPLACEMENT CHARACTER}" in line else ""


def next_release(checkout: Checkout) -> Iterator[Finding]:
    """Check that the release in preparation is not older than the newest of the changelog."""
    here = _settings(checkout)["setuptools_scm"]["fallback_version"]
    prepared = version.order(here.removesuffix(".dev0"))
    for release in notes.of_changelog(checkout.text(CHANGELOG)):
        if version.order(release) > prepared:
            yield Finding(SETTINGS, 1, f"fallback_version {here} is older than {release} of {CHANGELOG}")


def _settings(checkout: Checkout) -> dict[str, dict[str, Any]]:
    if not (text := checkout.text(SETTINGS)):
        raise NothingToCheckError(f"{SETTINGS} is missing")
    tools: dict[str, dict[str, Any]] = tomllib.loads(text)["tool"]
    return tools


CHECKS = (fragments, next_release)

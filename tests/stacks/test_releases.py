"""Releases: what a deployed stack sees of each, and stack files of other releases."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.new import stack_file
from gpu_fleet_stacks.releases import notes, version
from gpu_fleet_stacks.settings import stack_files
from tests.stacks import examples
from tests.stacks.shipped import SHIPPED

ROOT = Path(__file__).parents[2]
ADDED = "A key `x`\nof two lines.\n\nDeployed stacks: nothing.\n"
CHANGED = "Homes are faster.\n\nDeployed stacks: `up` replaces the mount target; write\n`home_gib` first.\n"
NOTES = (0, "0.4.0\n  - `up` replaces the mount target; write `home_gib` first.\n")
HEADER = "# Changelog\n\n<!-- towncrier release notes start -->\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """Return a checkout that prepares 0.4.0, with two changes; commands run in it."""
    changes = tmp_path / "docs" / "changes"
    changes.mkdir(parents=True)
    project = (ROOT / "pyproject.toml").read_text()
    settings = project.replace('fallback_version = "', 'fallback_version = "0.4.0" # ')
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "CHANGELOG.md").write_text(HEADER)
    (changes / "template.md.jinja").write_text((ROOT / "docs/changes/template.md.jinja").read_text())
    (changes / "key.added.md").write_text(ADDED)
    (changes / "homes.changed.md").write_text(CHANGED)
    monkeypatch.setattr(version, "CHECKOUT", tmp_path)
    version.running.cache_clear()
    yield tmp_path
    version.running.cache_clear()


def release(checkout: Path, number: str) -> None:
    command = (sys.executable, "-m", "towncrier", "build", "--yes", "--version", number)
    subprocess.run(command, cwd=checkout, check=True, capture_output=True)


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, [*words])
    return done.exit_code, done.output


def test_upgrade_notes_are_the_migration_fields_of_the_changes_before_and_after_their_release(checkout):
    (checkout / "CHANGELOG.md").write_text(f"{HEADER}\n## [0.3.0] - 2026-12-01\n\n### Added\n\n- All.\n")
    before = run("upgrade-notes", "0.3.0")
    release(checkout, "0.4.0")
    after = run("upgrade-notes", "v0.3.0")

    assert before == after == NOTES
    assert not list((checkout / "docs/changes").glob("*.md"))
    changelog = (checkout / "CHANGELOG.md").read_text()
    assert "### Added\n\n- A key `x`\n  of two lines.\n\n### Changed\n\n- Homes are faster.\n\n" in changelog
    assert run("upgrade-notes", "0.4.0")[1].startswith("0.4.0 is the newest release")


def test_what_two_changes_of_a_release_bring_is_said_once(checkout):
    (checkout / "docs/changes/more.changed.md").write_text(CHANGED)

    to_come = run("upgrade-notes", "0.3.0")
    release(checkout, "0.4.0")

    assert to_come == run("upgrade-notes", "0.3.0") == NOTES


def test_a_note_says_by_itself_what_it_is_about():
    """`upgrade-notes` shows it without the change: no "such jobs", of which the change speaks."""
    said = [note for of_release in notes.known().values() for note in of_release]

    assert [note for note in said if re.search(r"\bsuch (?!as\b)|^(one|nothing)\b", note)] == []


def test_any_older_release_has_notes_and_one_that_is_none_yet_is_not_called_the_newest(checkout):
    assert run("upgrade-notes", "0.3.7") == NOTES
    assert run("upgrade-notes", "0.4.0")[1].startswith("0.4.0 is the release in preparation")


def test_an_unknown_release_is_refused_with_the_newest(checkout):
    (checkout / "CHANGELOG.md").write_text(f"{HEADER}\n## [0.3.0] - 2026-12-01\n\n## [0.10.0] - 2026-12-02\n")

    code, said = run("upgrade-notes", "main")

    words = "error: VERSION 'main': must be a release of three numbers, 0.10.0 or older\n"
    assert (code, said) == (1, words)


@given(st.tuples(*[st.integers(0, 30)] * 3), st.tuples(*[st.integers(0, 30)] * 3))
def test_releases_are_in_the_order_of_their_numbers(one, other):
    names = [".".join(map(str, numbers)) for numbers in (one, other)]

    assert (version.order(names[0]) < version.order(names[1])) is (one < other)


def refusal(**changes) -> str:
    return examples.refusal(examples.stack_file(**changes))


def test_new_and_shipped_files_name_the_release_that_they_are_written_for():
    answers = stack_file.starting_from("research", Cloud.AWS, "us-east-1")
    written = {name: stack_files.settings_of(name).version for name in SHIPPED}

    assert stack_file.settings_of(answers).version == version.running()
    assert {name for name, release in written.items() if release is None} == set()


@pytest.mark.usefixtures("checkout")
def test_a_file_of_a_newer_release_is_refused_with_one_message_and_older_ones_are_read():
    newer = "is newer than this gpu-fleet, which is 0.4.0: install gpu-fleet 0.10.0 or newer"

    assert [examples.stack(version=number).version for number in ("0.3.9", "0.4.0")] == ["0.3.9", "0.4.0"]
    assert examples.stack().version is None
    said = refusal(version="0.10.0", of_tomorrow=1)
    assert said == f"stack 'test' has 1 problem:\n  - version = '0.10.0': {newer}"


@pytest.mark.usefixtures("checkout")
def test_a_problem_of_an_older_file_names_the_notes_since_its_release():
    hint = "`gpu-fleet upgrade-notes 0.3.0` says what changed"

    assert hint in refusal(version="0.3.0", of_yesterday=1)
    assert "upgrade-notes" not in refusal(version="0.4.0", of_yesterday=1)
    assert "must be a release of gpu-fleet, such as 0.2.0" in refusal(version="newest")
    for number in (99, 0.2):
        allowed = 'must be a release of gpu-fleet, such as "0.2.0"'
        assert f"version = {number}: {allowed}" in refusal(version=number)

"""Type checkers find the trainer's types from a user's own repository, whatever its folders are called."""

import sys
import venv
from pathlib import Path

import pytest

import environment
from tests.ran import ran

# `test_environment.py` holds the path by which mypy finds the package, `test_wheel.py` its marker of types.
pytestmark = pytest.mark.prove
SCRIPT = """\
import image
import training
from gpu_fleet import Run

def follow(run: Run) -> None:
    for step in run.steps({total}):
        print(step, image.OWNER, training.OWNER)
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """Create a researcher's repository; two of its packages have names of this project's folders."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("training", "image"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("OWNER = 'the researcher'\n")
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Return the Python of an environment of this checkout, without libraries: mypy would need a minute."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    environment.show_trainer(next(folder.glob("lib/python*/site-packages")))
    return folder / "bin" / "python"


def checked(repository: Path, python: Path, cache: Path, **words: str) -> str:
    (repository / "script.py").write_text(SCRIPT.format(**words))
    mypy = (sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "--cache-dir", cache)
    done = ran([*mypy, "script.py"], cwd=repository, env={})
    return done.stdout + done.stderr


def test_mypy_finds_the_types_from_a_folder_of_ones_own_and_says_where_a_user_is_wrong(
    repository, python, tmp_path
):
    right, wrong = (checked(repository, python, tmp_path, total=total) for total in ("100", "'many'"))

    assert right.startswith("Success")
    assert 'Argument 1 to "steps" of "Run" has incompatible type "str"; expected "int"' in wrong

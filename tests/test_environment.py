"""The development environment: how it is set up, torch without CUDA where it can, and what CI runs in it."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import environment
from tests.longest import LONGEST, longest_first
from tests.ran import executable, ran

ROOT = Path(__file__).parents[1]


def test_torch_and_cuda_are_in_a_lock_of_their_own(tmp_path):
    whole, torch = tmp_path / "whole", tmp_path / "torch"
    numpy, torch_too = "numpy==1 \\\n    --hash=a\n", "torch==3 \\\n    --hash=b\n"
    whole.write_text(f"# head\n{numpy}nvidia-cublas==1\nnvidia-ml-py==2\n{torch_too}")

    environment.split(whole, torch)

    assert whole.read_text() == f"# head\n{numpy}nvidia-ml-py==2\n"
    assert torch.read_text() == f"# head\nnvidia-cublas==1\n{torch_too}"


def never() -> bool:
    raise AssertionError("asked the network")


def test_torch_brings_cuda_only_where_there_is_a_gpu_or_no_other_build():
    linux, reached = ("Linux", "x86_64"), [lambda: True, lambda: False]
    sources = [
        *(environment.torch_sources(*linux, False, answer) for answer in reached),
        environment.torch_sources(*linux, True, never),
        environment.torch_sources("Darwin", "arm64", False, never),
    ]

    pypi = environment.FROM_PYPI
    wanted = [environment.CPU_BUILD, environment.CPU_ELSEWHERE, pypi, pypi]
    assert [each[0] for each in sources] == wanted
    assert all(each[-1] == pypi for each in sources)


def test_an_index_that_cannot_be_reached_is_named_and_asked_once(monkeypatch, capsys):
    asked = []

    def refuse(url, timeout):
        asked.append(timeout)
        raise OSError("no route")

    monkeypatch.setattr(environment.urllib.request, "urlopen", refuse)

    assert not environment.index_answers()
    assert asked == [environment.PROBE_S]
    assert "https://download.pytorch.org/whl/cpu cannot be reached" in capsys.readouterr().out


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Stands for pip: refuses the CPU build with what it is told; remembers what was asked for."""
    asked = []

    def answer(*options):
        asked.append(options)
        return answer.refusal if environment.TORCH_CPU in options else ""

    answer.asked = asked
    sources = [environment.CPU_ELSEWHERE, environment.FROM_PYPI]
    monkeypatch.setattr(environment, "SITE", tmp_path)
    monkeypatch.setattr(environment, "pip", answer)
    monkeypatch.setattr(environment, "torch_sources", lambda *_: sources)
    return answer


def test_set_up_tries_the_next_source_of_torch(pip, capsys):
    pip.refusal = "ERROR: No matching distribution found"

    assert environment.install() == 0
    files = [environment.LOCK, environment.TORCH_CPU, environment.TORCH_PYPI, "."]
    assert [options[-1] for options in pip.asked] == files
    assert all("--require-hashes" in options for options in pip.asked[:3])
    assert "torch: PyPI's build" in capsys.readouterr().out
    (trainer,) = environment.SITE.iterdir()
    assert (trainer.suffix, trainer.read_text()) == (".pth", f"{ROOT / 'training'}\n")


def test_a_wheel_that_was_tampered_with_ends_the_set_up(pip, capsys):
    pip.refusal = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."

    assert environment.install() == 1
    assert pip.asked[-1][-1] == environment.TORCH_CPU
    assert "DO NOT MATCH" in capsys.readouterr().out


def test_make_lets_python_keep_what_it_compiled():
    """`.venv` comes uncompiled, and hundreds of processes of the tests import torch."""
    forbidden = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    asking = 'include Makefile\ntold: ; @echo "[$$PYTHONDONTWRITEBYTECODE]"\n'

    done = ran(["make", "--silent", "-f", "-", "told"], input=asking, cwd=ROOT, env=forbidden, check=True)

    assert done.stdout == "[]\n"


def test_the_longest_modules_are_there_and_begin_first():
    names = ["tests/test_a.py", LONGEST[1], LONGEST[0], "tests/test_b.py"]
    items = [SimpleNamespace(path=ROOT / name) for name in names]

    assert [name for name in LONGEST if not (ROOT / name).is_file()] == []
    assert longest_first(items) == [items[2], items[1], items[0], items[3]]


def test_the_hooks_use_the_tools_of_the_environment():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]

    assert {hooks_of["repo"] for hooks_of in hooks} == {"local"}
    assert all(hook["entry"].startswith(".venv/bin/") for hooks_of in hooks for hook in hooks_of["hooks"])


def test_the_workflow_runs_what_a_laptop_runs_and_takes_actions_by_commit():
    job = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["ci"]
    runs = [step["run"] for step in job["steps"] if "run" in step]
    actions = [step["uses"] for step in job["steps"] if "uses" in step]

    assert runs == [".ci/run"]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in actions)


MAKE = """#!/bin/bash
echo "$*" >>asked
[ "$1" = {broken} ] && exit 3
[ "$1" = boot ] && {{ sleep {boot_s} && echo booted >>asked; }}
[ "$1" = test ] || exit 0
[ "$(grep --count --extended-regexp '^test( |$)' asked)" -le {failing} ] || exit 0
mkdir -p .pytest_cache/v/cache
echo '{failed}' >.pytest_cache/v/cache/lastfailed
exit 2
"""


def run_ci(folder, *, failed=(), failing=0, broken="nothing", boot_s=0):
    """CI with a `make` of which the first so many `test` fail. Gives it and what it asked for."""
    failures = json.dumps(dict.fromkeys(failed, True))
    make = MAKE.format(failed=failures, failing=failing, broken=broken, boot_s=boot_s)
    for path, text in (".ci/run", (ROOT / ".ci/run").read_text()), ("bin/make", make), ("bin/promtool", ""):
        executable(folder / path, text)
    own = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
    return ran([folder / ".ci/run"], env=own), (folder / "asked").read_text().splitlines()


def test_ci_runs_the_module_of_a_failure_again_and_names_what_passes_then(tmp_path):
    done, asked = run_ci(tmp_path, failed=["tests/test_a.py::test_b"], failing=1)

    assert done.returncode == 0, done.stderr
    assert asked[-2:] == ["test", "test ARGS=-n 0 tests/test_a.py "]
    assert "passed with its module run again, mend it: tests/test_a.py::test_b" in done.stdout


@pytest.mark.parametrize(("tests", "failing"), [(1, 2), (4, 1), (0, 1)])
def test_ci_ends_where_a_test_fails_again_or_many_fail_or_none_is_named(tmp_path, tests, failing):
    failed = [f"tests/test_a.py::test_{number}" for number in range(tests)]

    done, _ = run_ci(tmp_path, failed=failed, failing=failing)

    assert done.returncode != 0
    assert "mend it" not in done.stdout


def test_ci_tests_when_the_image_has_booted_and_says_what_each_took(tmp_path):
    done, asked = run_ci(tmp_path, boot_s=0.3)

    assert done.returncode == 0, done.stderr
    assert asked.index("booted") < asked.index("test")
    assert set(asked) == {".venv/.ready", "boot", "booted", "lint", "rehearse", "test-libraries", "test"}
    assert re.findall(r"^ci: make (\S+) +\d+ s, exit status 0$", done.stdout, re.MULTILINE)[-1] == "test"
    assert len(re.findall(r"^ci: in all +\d+ s of 1800$", done.stdout, re.MULTILINE)) == 1


@pytest.mark.parametrize("broken", ["boot", "lint", "test-libraries", "rehearse"])
def test_ci_ends_with_what_failed_before_the_tests(tmp_path, broken):
    done, asked = run_ci(tmp_path, broken=broken, boot_s=0.1)

    assert done.returncode == 3
    assert "test" not in asked
    assert re.search(rf"^ci: make {broken} +\d+ s, exit status 3$", done.stdout, re.MULTILINE)


def test_ci_leaves_no_boot_behind(tmp_path):
    done, asked = run_ci(tmp_path, broken="lint", boot_s=600)

    assert done.returncode == 3  # at once: subprocess waits for all who hold its output
    assert "booted" not in asked

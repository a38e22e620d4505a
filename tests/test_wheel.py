"""What the wheel brings: every package with all that it opens, and from an empty folder a rehearsed stack."""

import ast
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet_image.recipe.wheels import pins
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.payload import built
from tests.ran import ran

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCES = (
    *("pyproject.toml", "CHANGELOG.md", "README.md", "LICENSE"),
    *("docs/changes", "image", "stacks", "training"),
)
# What users' commands are made of: they need no extra.
ROOMS = tuple(
    f"gpu_fleet_image/{name}"
    for name in (
        *("console", "controllers/meter", "controllers/mover", "controllers/sweep"),
        *("core", "instance/agent", "providers", "slurm"),
    )
)
OWN = ("gpu_fleet", "gpu_fleet_jobs", "gpu_fleet_image", "gpu_fleet_stacks")
FOLDERS = (
    *("image/gpu_fleet_image", "stacks/gpu_fleet_stacks", "training/gpu_fleet", "training/gpu_fleet_jobs"),
    *("training/examples", "docs/changes/*.md", "CHANGELOG.md"),
)
INSTALLED = {
    "training/examples/": "gpu_fleet_image/examples/",
    "docs/changes/": "gpu_fleet_stacks/releases/changes/",
    "CHANGELOG.md": "gpu_fleet_stacks/releases/CHANGELOG.md",
    **dict.fromkeys(("image/", "stacks/", "training/"), ""),
}
# Stack files name accounts: a checkout's own are no part of the wheel.
LEFT_OUT = re.compile(r"stacks/Pulumi\.[^/]*\.yaml")
# Who asks for them names them: trackers and callbacks say so where they are not there.
# The policy pack has an environment of its own.
OPTIONAL = {"lightning", "datasets", "pyarrow", "pulumi_policy"}
# What another one brings, whose very versions it goes with.
BROUGHT = {"botocore": "boto3", "pydantic_core": "pydantic", "tokenizers": "transformers", "werkzeug": "moto"}
CONSOLE = "from gpu_fleet_image.console.cli import main; main()"
HELPS = """
import contextlib, sys
from gpu_fleet_image.console.cli import main

for name in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        main([name, "--help"])
"""
# The files of the package that its modules name, of which a checkout has some elsewhere.
LACKED = """
import importlib, pkgutil
from pathlib import Path
import gpu_fleet_image.recipe as room

for found in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
    for name, value in vars(importlib.import_module(found.name)).items():
        if isinstance(value, Path) and "gpu_fleet_image" in value.parts and not value.exists():
            print(found.name, name, value)
"""
COPY = (sys.executable, "-c", "import setuptools; setuptools.setup()")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """What a wheel would install: by the step of its build that copies, over what an earlier one has left."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "removed_since.py").touch()
    subprocess.run([*COPY, "build_py", "--build-lib", folder], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built as pip builds it, from a copy in which an earlier build has left a module."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    stale = source / "build/lib/gpu_fleet_image/core/removed_since.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", target)
    subprocess.run([*pip, source], check=True, capture_output=True)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def python(site, tmp_path_factory) -> Path:
    """Of an environment with the wheel and the libraries; of the checkout it knows nothing."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "here.pth").write_text(f"{site}\n{sysconfig.get_path('purelib')}\n")
    return folder / "bin" / "python"


def run(python: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command, alone = [python, *arguments], {"HOME": str(folder)}
    return ran(command, cwd=folder, env=alone)


def wanted() -> set[str]:
    """The files of the packages, as git lists them."""
    command = ["git", "ls-files", "-co", "--exclude-standard", *FOLDERS]
    listed = ran(command, cwd=ROOT, check=True).stdout.splitlines()
    return {installed(name) for name in listed if not LEFT_OUT.fullmatch(name) and (ROOT / name).is_file()}


def installed(name: str) -> str:
    here = next(place for place in INSTALLED if name.startswith(place))
    return INSTALLED[here] + name.removeprefix(here)


def test_it_has_every_file_of_its_packages_and_no_other(site):
    found = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}

    assert "gpu_fleet/py.typed" in found
    assert {name for name in found if not name.endswith(".pyc")} == wanted()


@pytest.mark.prove
def test_a_wheel_that_pip_builds_has_these_files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == wanted()


def test_its_recipe_finds_its_own_files(python, tmp_path):
    done = run(python, tmp_path, "-c", LACKED)

    assert (done.stdout, done.stderr) == ("", "")


def module(node: ast.ImportFrom, alias: ast.alias) -> bool:
    """Whether a name that is imported from a package is a module of the checkout."""
    place = f"{node.module}.{alias.name}".replace(".", "/")
    return any((ROOT / room / f"{place}.py").is_file() for room in ("stacks", "image", "training"))


def imports(site: Path, folder: str) -> Iterator[str]:
    for path in (site / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield str(node.module)
                yield from (f"{node.module}.{alias.name}" for alias in node.names if module(node, alias))


def test_it_imports_nothing_that_it_lacks(site):
    found = {name for folder in OWN for name in imports(site, folder)}
    own = {name for name in found if name.split(".")[0] in OWN}
    places = {name: site / name.replace(".", "/") for name in own}

    missing = [name for name, at in places.items() if not (at.is_dir() or at.with_suffix(".py").is_file())]
    assert len(own) > 100
    assert missing == []


def plain(requirement: str) -> str:
    return re.split(r"[=><\[]", requirement)[0].lower()


@pytest.mark.parametrize(
    ("folders", "extras"),
    [(ROOMS, ()), (("gpu_fleet_stacks",), ("platform",)), (("gpu_fleet", "gpu_fleet_jobs"), ("train",))],
)
def test_every_library_is_asked_for(site, folders, extras):
    brought = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    asked = {plain(dependency) for dependencies in brought for dependency in dependencies}
    distributions = packages_distributions()

    used = {name.split(".")[0] for folder in folders for name in imports(site, folder)}
    used -= sys.stdlib_module_names
    wanted = {
        distributions.get(BROUGHT.get(name, name), [name])[0].lower().replace("_", "-")
        for name in used - OPTIONAL - {*OWN}
    }
    assert wanted <= asked


def test_torch_is_no_older_than_what_is_tested():
    tested = pins((ROOT / "training/requirements.txt").read_text())["torch"]

    assert f"torch>={tested}" in PROJECT["optional-dependencies"]["train"]


@pytest.mark.prove
def test_the_trainer_works_beside_a_users_own_folders(python, site, tmp_path):
    (tmp_path / "training").mkdir()
    (tmp_path / "training/__init__.py").write_text("OWNER = 'the researcher'\n")
    program = "import gpu_fleet as it, training as own; print(it.Run.__module__, it.__file__, own.OWNER)"

    done = run(python, tmp_path, "-c", program)

    said = f"gpu_fleet.integrations.run {site}/gpu_fleet/__init__.py the researcher\n"
    assert done.stdout == said, done.stderr


LACKS = (
    "error: needs the Python package {}, which is not installed here; "
    "pip install 'gpu-fleet[{}]' installs it\n"
)


def without(modules: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in an interpreter that lacks some modules."""
    bare = f"import sys; sys.modules.update({modules}); {CONSOLE}"
    return ran([sys.executable, "-c", bare, *words], **options)


def test_without_its_extra_a_platform_command_says_which_brings_what_it_needs(site, tmp_path):
    done = without("pydantic=None", "check", "aws-dev", cwd=tmp_path, env={"PYTHONPATH": str(site)})

    assert done.stderr == LACKS.format("pydantic", "platform")


@pytest.mark.parametrize(
    "words",
    [("status", "-s", "lab"), ("keep", "2h", "--reason", "x", "--instance", "i-0abc", "-s", "lab")],
)
def test_without_an_extra_a_users_command_asks_the_cloud(site, tmp_path, words):
    alone = {"PYTHONPATH": str(site), "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    lacking, region = "pydantic=None, yaml=None", ("--region", "us-east-1")

    assert "credentials" in without(lacking, *words, *region, cwd=tmp_path, env=alone).stderr


def test_the_trainer_says_what_it_lacks(site, tmp_path):
    """Where the wheel was installed without its extra."""
    venv.create(tmp_path, symlinks=True)

    (next(tmp_path.glob("lib/python*/site-packages")) / "here.pth").write_text(f"{site}\n")
    done = run(tmp_path / "bin/python", tmp_path, "-m", "gpu_fleet", "start", "job.toml")

    assert (done.stderr, done.returncode) == (LACKS.format("click", "train"), 65)


def test_the_commands_load_from_the_wheel_alone(python, tmp_path):
    names = ("take", "status", "connect", "submit", "runs", "sweep", "report", "agent")

    done = run(python, tmp_path, "-c", HELPS, *names)

    assert done.returncode == 0, done.stderr
    assert re.findall(r"^Usage: gpu-fleet ([a-z]+)", done.stdout, re.MULTILINE) == [*names]


@pytest.fixture(scope="module")
def own(wheel, tmp_path_factory) -> Path:
    """The programs of a new environment, in which pip has installed the wheel with its extra."""
    folder = tmp_path_factory.mktemp("own")
    venv.create(folder, symlinks=True, with_pip=True)
    pip = (folder / "bin/python", "-m", "pip", "install", "--quiet", f"{wheel}[platform]")
    subprocess.run(pip, check=True, capture_output=True)
    return folder / "bin"


STACK = (
    *("--stack", "research", "--cloud", "aws", "--region", "us-east-1"),
    *("--account", "123456789012", "--recipient", "ml@example.com"),
)
PAYLOADS = """
from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.payload import built

print(*(built.built(cloud).sha256 for cloud in Cloud))
"""


@pytest.mark.prove
def test_from_an_empty_folder_to_a_rehearsed_stack_with_the_wheel_alone(own, tmp_path):
    infra, fleet = tmp_path / "infra", own / "gpu-fleet"
    steps = {
        ("init", ".", *STACK): "written  stacks/Pulumi.research.yaml",
        ("new", "lab", *STACK[2:], "--cidr", "10.30.0.0/16"): "Pulumi.lab.yaml is written",
        ("check", "research"): "research: OK",
        ("cost", "stacks/Pulumi.lab.yaml"): "at worst",
        ("schema",): "A stack of gpu-fleet",
        ("rehearse", "research"): "resources.created",
        ("--version",): "gpu-fleet 0.2.0.dev0, Python",
        ("upgrade-notes", "0.2.0"): "0.2.0 is the release in preparation",
    }
    infra.mkdir()

    done = {words: run(fleet, infra, *words) for words in steps}

    assert {words: step.stderr for words, step in done.items() if step.returncode} == {}
    assert [words for words, says in steps.items() if says not in done[words].stdout] == []


@pytest.mark.prove
def test_the_payload_of_a_wheel_is_that_of_the_checkout(own, tmp_path):
    done = run(own / "python", tmp_path, "-I", "-c", PAYLOADS)

    assert done.stdout.split() == [built.built(cloud).sha256 for cloud in Cloud], done.stderr

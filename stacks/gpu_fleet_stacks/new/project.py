"""The files of a project that a platform team commits. Pure but for the package's own data."""

import json
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePath

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import reference

STACKS, REQUIREMENTS, MAIN, GITIGNORE = "stacks", "requirements.txt", "__main__.py", ".gitignore"
WANTED = f"{naming.PROJECT}[platform]"
UNRELEASED = re.compile(r"\.dev[0-9]|\+")  # in a version: one between two releases, or one built here
WORKFLOW = Path(__file__).with_name("workflow.yml")
# One name of a module, as text: the engine starts this program in the project's own environment.
PROGRAM = """\
from gpu_fleet_stacks import main

main()
"""
IGNORED = """\
.venv/
build/
# made by `gpu-fleet accept`, which removes it
stacks/Pulumi.*-accept.yaml
"""


def files() -> Mapping[str, str]:
    """Return path -> text of everything but stack files and the workflow."""
    return {
        "Pulumi.yaml": reference.pulumi_project(),
        MAIN: PROGRAM,
        REQUIREMENTS: f"{requirement()}\n",
        GITIGNORE: IGNORED,
        f"{STACKS}/{reference.FILE.name}": reference.text(),
    }


def workflow(folder: PurePath) -> tuple[str, str]:
    """Return path and text of the workflow of a project: GitHub reads it at the repository's root alone."""
    name = "-".join((naming.PROJECT, *re.findall(r"\w+", folder.as_posix())))
    text = WORKFLOW.read_text(encoding="utf-8").replace("@NAME@", name)
    prefix = f"{folder.as_posix()}/" if folder.parts else ""
    text = text.replace("@FOLDER@/", prefix).replace("@FOLDER@", folder.as_posix())
    return f".github/workflows/{name}.yml", text


def requirement() -> str:
    """Return the line that installs this gpu-fleet: its release, its commit, or the URL that it came from."""
    package = metadata.distribution(naming.PROJECT)
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"{WANTED} @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    if UNRELEASED.search(package.version) and "url" in origin:
        return f"{WANTED} @ {origin['url']}"
    return f"{WANTED}=={package.version}"


def warning(line: str) -> str:
    """Return why others cannot install a requirement, and what to write instead; empty if they can."""
    elsewhere = f"write {WANTED} @ git+https://HOST/gpu-fleet, or where else all can install it from"
    if "file:" in line:
        return f"{REQUIREMENTS} names a path of this computer; before you share the project {elsewhere}"
    if "==" in line and UNRELEASED.search(line):
        return f"{REQUIREMENTS} names a version that no index has; {elsewhere}"
    return ""


def lacks_requirement(text: str) -> bool:
    """Return whether a file of requirements does not name gpu-fleet."""
    return re.search(rf"^\s*{naming.PROJECT}\b", text, re.MULTILINE | re.IGNORECASE) is None


def starts_another_program(text: str) -> bool:
    """Return whether a kept ``__main__.py`` does not start gpu-fleet: the engine would run it instead."""
    return "gpu_fleet_stacks" not in text


def not_ignored(text: str) -> list[str]:
    """Return the lines that a kept ``.gitignore`` lacks: without them a team commits its environment."""
    said = {line.strip().strip("/") for line in text.splitlines()}
    wanted = [line for line in IGNORED.splitlines() if not line.startswith("#")]
    return [line for line in wanted if line.strip("/") not in said]

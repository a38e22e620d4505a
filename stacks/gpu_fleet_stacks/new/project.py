"""The files of a project that a platform team commits. Pure but for the package's own data."""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.settings import reference

STACKS = "stacks"
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
    """Return path -> text of everything but stack files."""
    return {
        "Pulumi.yaml": reference.pulumi_project(),
        "__main__.py": PROGRAM,
        "requirements.txt": f"{requirement()}\n",
        ".gitignore": IGNORED,
        ".github/workflows/gpu-fleet.yml": WORKFLOW.read_text(encoding="utf-8"),
        f"{STACKS}/{reference.FILE.name}": json.dumps(reference.json_schema(), indent=1) + "\n",
    }


def requirement() -> str:
    """Return the line that installs this version of gpu-fleet, or the commit that it was installed from."""
    package = metadata.distribution(naming.PROJECT)
    wanted = f"{naming.PROJECT}[platform]"
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        return f"{wanted} @ {vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
    return f"{wanted}=={package.version}"

"""``gpu-fleet init DIR``: make a project repository with its first stack."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpu_fleet_stacks.core import files, naming
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.new import command, project
from gpu_fleet_stacks.settings import projects, reference

FIRST = "dev"
SET_UP = (
    "python3 -m venv .venv",
    ".venv/bin/pip install -r requirements.txt",
    "source .venv/bin/activate",
)


@click.command(
    epilog="\b\nExamples:\n  gpu-fleet init infra\n"
    "  gpu-fleet init infra --stack research --cloud aws --region us-east-1 \\\n"
    "      --account 123456789012 --recipient ml@example.com"
)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False))
@click.option(
    "-s", "--stack", "first", metavar="NAME", help="Also write its first stack file, as `new` does."
)
@command.answer_options
def init(directory: str, first: str | None, **flags: Any) -> None:
    """Write the files that a platform team commits: project, program, requirement, workflow, first stack.

    Every other command finds the project from any folder in it. Existing files are kept.
    """
    if not directory:
        raise StacksError("DIR ''; allowed: a folder, `.` for this one")
    folder = Path(directory)
    if (folder / projects.FILE).exists():
        raise StacksError(f"{folder / projects.FILE} already exists; nothing was written")
    if first is None and command.at_terminal() and not any((folder / project.STACKS).glob(projects.PATTERN)):
        first = _first_name()
    if first is None and any(flags.values()):
        raise StacksError("--stack is missing: the other flags are of a first stack")
    content = _files(folder)
    if first is not None:
        content |= _stack_file(folder, first, flags)
    for path, text in content.items():
        click.echo(_put(path, text))
    requirements = folder / project.REQUIREMENTS
    for said in (
        _about_requirement(requirements, content[requirements].strip()),
        _about_program(folder / project.MAIN),
        _about_ignored(folder / project.GITIGNORE),
    ):
        if said:
            click.echo(f"warning: {said}", err=True)
    click.echo("\n".join(["next:", *(f"  {step}" for step in _set_up(folder))]))
    click.echo(command.next_steps(first) if first else "  gpu-fleet new NAME")


def _files(folder: Path) -> dict[Path, str]:
    """Return path -> text of all but the stack file.

    The workflow belongs to the root of the git repository that the project is in, if there is one.
    """
    whole = folder.resolve()
    root = next((place for place in (whole, *whole.parents) if (place / ".git").exists()), whole)
    name, text = project.workflow(whole.relative_to(root))
    workflow = (folder if root == whole else root) / name
    return {folder / name: text for name, text in project.files().items()} | {workflow: text}


def _stack_file(folder: Path, name: str, flags: Mapping[str, Any]) -> dict[Path, str]:
    """Return path and text of the first stack file; raise StacksError if the folder has it already."""
    path = folder / project.STACKS / f"Pulumi.{name}.yaml"
    if path.exists():
        raise StacksError(f"{path} already exists; nothing was written. Without --stack it is kept")
    return {path: command.stack_text(name, flags, f"{reference.MODELINE}{reference.FILE.name}")}


def _first_name() -> str:
    """Ask a user until the name is valid."""
    while True:
        text = click.prompt("Name of the first stack", default=FIRST, err=True)
        try:
            return command.stack_name(text)
        except StacksError as error:
            click.echo(f"  {error}", err=True)


def _set_up(folder: Path) -> list[str]:
    """Return the commands that lead to a prepared shell in the project: none where this is one."""
    enter = [] if folder.resolve() == Path.cwd() else [f"cd {shlex.quote(str(folder))}"]
    return enter if Path(sys.prefix) == folder.resolve() / ".venv" else [*enter, *SET_UP]


def _put(path: Path, text: str) -> str:
    """Write a file if there is none; return one line about it."""
    if path.exists():
        return f"kept     {path}"
    path.parent.mkdir(parents=True, exist_ok=True)
    files.replace(path, text)
    return f"written  {path}"


def _about_requirement(path: Path, line: str) -> str:
    """Return what a user must add to or change in the requirements before others can install them."""
    text = _text(path)
    if project.lacks_requirement(text):
        return f"{path} was kept and does not name {naming.PROJECT}; add the line {line}"
    return project.warning(line) if line in text else ""


def _about_program(path: Path) -> str:
    """Return that the engine would run another program: `up` would deploy that one."""
    if not project.starts_another_program(_text(path)):
        return ""
    program = ", ".join(f"`{line}`" for line in project.PROGRAM.splitlines() if line)
    return f"{path} was kept and does not start {naming.PROJECT}; its lines must be {program}"


def _about_ignored(path: Path) -> str:
    """Return what a user must add to the file before `git add .`."""
    lines = project.not_ignored(_text(path))
    return f"{path} was kept; add the lines {', '.join(lines)}" if lines else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")

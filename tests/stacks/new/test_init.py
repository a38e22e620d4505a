"""`gpu-fleet init`: a user's own repository, and its use by every command."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.new import command, project
from gpu_fleet_stacks.plan_check import policy_pack
from gpu_fleet_stacks.settings import projects
from tests.stacks.new.test_new import AWS

ROOT = Path(__file__).parents[3]


def run(*arguments: str, **options) -> str:
    done = CliRunner().invoke(main, [*arguments], **options)
    return done.output if done.exit_code == 0 else f"{done.exit_code}: {done.output}"


@pytest.fixture
def infra(tmp_path, monkeypatch) -> Path:
    """Create a repository with the stack `research`; commands run outside of it."""
    monkeypatch.chdir(tmp_path)
    assert "written" in run("init", "infra", "--stack", "research", *AWS)
    return tmp_path / "infra"


def test_it_writes_what_a_team_commits_and_check_takes_the_stack(infra):
    assert {str(path.relative_to(infra)) for path in infra.rglob("*") if path.is_file()} == {
        *("Pulumi.yaml", "__main__.py", "requirements.txt", ".gitignore"),
        *(".github/workflows/gpu-fleet.yml", "stacks/stack.schema.json", "stacks/Pulumi.research.yaml"),
    }
    assert (infra / "Pulumi.yaml").read_text() == (ROOT / "Pulumi.yaml").read_text()
    assert (infra / "__main__.py").read_text() == (ROOT / "__main__.py").read_text()
    assert "research: OK" in run("--dir", str(infra), "check", "research")


def test_a_stack_is_found_from_any_folder_of_the_project_by_name_by_path_and_by_flag(infra, monkeypatch):
    file = infra / "stacks" / "Pulumi.research.yaml"
    ways = [
        (infra, ("check", "research")),
        (infra / "stacks", ("check", "research")),
        (infra / ".github" / "workflows", ("check", "research")),
        (infra.parent, ("check", str(file))),
        (infra.parent, ("check", "infra/stacks/Pulumi.research.yaml")),
        (infra / "stacks", ("check", "Pulumi.research.yaml")),
        (infra.parent, ("--dir", "infra", "check", "research")),
        (ROOT, ("--dir", str(infra), "check", "research")),
    ]
    said = []
    for folder, words in ways:
        monkeypatch.chdir(folder)
        said.append(run(*words))

    assert [text for text in said if "research: OK" not in text] == []


def test_a_path_means_the_files_beside_it_for_this_command_alone(infra, monkeypatch):
    monkeypatch.chdir(ROOT)
    run("check", str(infra / "stacks" / "Pulumi.research.yaml"))

    assert "no stack 'research'; known: alicloud-dev" in run("check", "research")


WRONG_PATHS = {
    "nowhere/Pulumi.research.yaml": "there is no such file",
    "infra/Pulumi.yaml": "a stack file is named Pulumi.NAME.yaml",
}


def test_a_path_that_is_no_stack_file_is_refused(infra):
    assert [path for path, says in WRONG_PATHS.items() if says not in run("check", path)] == []


def test_a_folder_that_is_not_there_is_named_with_the_flag(infra):
    assert "GPU_FLEET_DIR (--dir) = 'nowhere': there is no such folder" in run(
        "--dir", "nowhere", "check", "x"
    )


def test_outside_of_any_project_it_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(projects, "OWN", tmp_path)  # no checkout

    said = run("check", "research")

    assert "no project of gpu-fleet in" in said
    assert "`gpu-fleet init DIR` makes one" in said
    assert run("check").strip().endswith("--dir DIR or GPU_FLEET_DIR names one elsewhere")


def test_a_project_of_another_name_is_said_to_be_none(infra, monkeypatch):
    monkeypatch.chdir(infra)
    monkeypatch.setattr(projects, "OWN", infra)  # no checkout
    file = infra / "Pulumi.yaml"
    file.write_text(file.read_text().replace("name: gpu-fleet", "name: infra"))

    assert f"above it ({file} has another name than gpu-fleet): `gpu-fleet init" in run("check", "research")


def test_the_environment_of_a_project_names_it_in_no_other_folder(infra, monkeypatch):
    """`gpu-fleet destroy` elsewhere, from that environment, has no stack of it for its only one."""
    monkeypatch.setattr(projects, "OWN", infra / ".venv" / "lib" / "python3.11")

    assert "no project of gpu-fleet in" in run("check", "research")
    assert "no project of gpu-fleet in" in run("new", "lab", *AWS)
    assert not (infra / "stacks" / "Pulumi.lab.yaml").exists()


def test_a_project_without_a_stack_names_the_command_that_writes_one(tmp_path, monkeypatch):
    run("init", str(tmp_path / "infra"))
    monkeypatch.chdir(tmp_path / "infra")

    said = run("check")

    assert f"no stack file in {tmp_path / 'infra' / 'stacks'}; `gpu-fleet new NAME` writes one" in said
    assert "no project" not in said
    assert "no stack file in" in run("cost")
    monkeypatch.chdir(tmp_path)
    assert "no stack file in" in run("--dir", "infra", "check")


def test_pulumi_runs_where_the_stack_files_are_the_projects_own(infra, monkeypatch):
    aside = infra / "old"
    aside.mkdir()
    (infra / "stacks" / "Pulumi.research.yaml").rename(aside / "Pulumi.research.yaml")
    monkeypatch.setenv("GPU_FLEET_DIR", str(aside))

    with pytest.raises(StacksError, match=r"above it: .*; Pulumi runs in a project alone"):
        projects.root()
    monkeypatch.setenv("GPU_FLEET_DIR", str(infra / ".github"))
    assert projects.root() == infra


def test_new_writes_beside_the_other_stacks_and_names_the_schema_there(infra, monkeypatch):
    monkeypatch.chdir(infra)

    assert "written" in run("new", "lab", *AWS, "--cidr", "10.30.0.0/16")

    first, _, _ = (infra / "stacks" / "Pulumi.lab.yaml").read_text().partition("\n")
    assert (infra / "stacks" / first.partition("$schema=")[2]).is_file()


def test_a_project_that_is_there_is_refused_and_other_files_are_kept(infra, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / ".gitignore").write_text("mine")

    assert "Pulumi.yaml already exists; nothing was written" in run("init", "infra")
    assert f"kept     {Path('other/.gitignore')}" in run("init", "other")
    assert (other / ".gitignore").read_text() == "mine"


def test_a_kept_file_that_does_not_do_what_a_project_needs_is_named(tmp_path, monkeypatch):
    """Else Pulumi runs the other program, and `git add .` commits the environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "__main__.py").write_text("import pulumi\n")
    (tmp_path / ".gitignore").write_text("/build\n*.pyc\n")

    said = run("init", ".")

    assert "warning: __main__.py was kept and does not start gpu-fleet; its lines must be `from gpu" in said
    assert "warning: .gitignore was kept; add the lines .venv/, stacks/Pulumi.*-accept.yaml\n" in said


def test_kept_files_that_do_are_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("init", ".")
    (tmp_path / "Pulumi.yaml").unlink()

    said = run("init", ".")

    assert "kept     __main__.py" in said
    assert "was kept" not in said


def test_next_is_what_this_shell_still_lacks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    elsewhere = run("init", "my infra").partition("next:\n")[2]
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    here = run("init", ".").partition("next:\n")[2]

    assert elsewhere.startswith("  cd 'my infra'\n")
    assert [line.split()[0] for line in elsewhere.splitlines()[:3]] == ["cd", "python3", ".venv/bin/pip"]
    assert here == "  gpu-fleet new NAME\n"


def test_a_wrong_answer_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    said = run("init", "infra", "--stack", "research", *AWS, "--account", "12")
    forgotten = run("init", "infra", *AWS)

    assert "--account '12'" in said
    assert "--stack is missing" in forgotten
    assert list(tmp_path.iterdir()) == []


def test_at_a_terminal_it_asks_for_the_first_stack_until_its_name_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "at_terminal", lambda: True)

    run("init", "infra", input="My Lab|lab|aws|us-east-1|123456789012||||||||a@b.org|||".replace("|", "\n"))

    assert (tmp_path / "infra/stacks/Pulumi.lab.yaml").is_file()


def test_a_folder_that_cannot_be_written_is_named_and_no_temporary_file(tmp_path, monkeypatch):
    def refusing(prefix: str, **_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", f"{prefix}a1b2c3")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refusing)

    said = run("init", str(tmp_path / "infra"))

    assert said == f"1: error: {tmp_path / 'infra'}: Read-only file system\n"


WHEEL = '{"url": "file:///tmp/gpu_fleet-7.1-py3-none-any.whl", "archive_info": {}}'
GIT = '{"url": "https://x/y", "vcs_info": {"vcs": "git", "commit_id": "ab12"}}'
CHECKOUT = '{"url": "file:///src", "dir_info": {"editable": true}}'
LOCAL = "7.1.dev4+gab12"
# version and origin of the installation -> its requirement, and words of the warning
ORIGINS = {
    (LOCAL, GIT): (" @ git+https://x/y@ab12", ""),
    (LOCAL, GIT.replace("https:", "file:")): (" @ git+file://x/y@ab12", "path of this computer"),
    ("7.1", CHECKOUT): ("==7.1", ""),
    ("7.1", None): ("==7.1", ""),
    (LOCAL, CHECKOUT): (" @ file:///src", "path of this computer"),
    (LOCAL, WHEEL): (" @ file:///tmp/gpu_fleet-7.1-py3-none-any.whl", "path of this computer"),
    (LOCAL, None): (f"=={LOCAL}", "no index has"),
}


def installed(monkeypatch, version: str, origin: str | None) -> None:
    package = SimpleNamespace(version=version, read_text=lambda _: origin)
    monkeypatch.setattr(project.metadata, "distribution", lambda _: package)


@pytest.mark.parametrize("installation", ORIGINS)
def test_the_requirement_is_what_can_be_installed_or_has_a_warning(installation, monkeypatch):
    installed(monkeypatch, *installation)
    pin, warned = ORIGINS[installation]

    line = project.requirement()

    assert line == f"gpu-fleet[platform]{pin}"
    assert warned in (said := project.warning(line))
    assert bool(said) is bool(warned)


def test_init_warns_of_a_requirement_that_no_index_has_and_of_a_kept_file_without_one(tmp_path, monkeypatch):
    installed(monkeypatch, LOCAL, None)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "requirements.txt").write_text("boto3\n")

    assert "warning: requirements.txt names a version that no index has" in run("init", str(tmp_path / "new"))
    assert f"does not name gpu-fleet; add the line gpu-fleet[platform]=={LOCAL}" in run("init", str(kept))


def test_in_a_folder_of_a_repository_the_workflow_is_at_its_root_and_works_in_that_folder(
    tmp_path, monkeypatch
):
    """GitHub reads workflows nowhere else; a second project of the repository has its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()

    run("init", "clouds/my lab")
    run("init", "infra")

    lab, infra = sorted((tmp_path / ".github/workflows").iterdir())
    assert [lab.name, infra.name] == ["gpu-fleet-clouds-my-lab.yml", "gpu-fleet-infra.yml"]
    assert list(tmp_path.glob("*/**/.github")) == []
    workflow = yaml.safe_load(lab.read_text())
    assert workflow["defaults"]["run"]["working-directory"] == "clouds/my lab"
    assert workflow[True]["pull_request"]["paths"] == ["clouds/my lab/**", f".github/workflows/{lab.name}"]
    python = [step["with"] for step in workflow["jobs"]["check"]["steps"] if "python" in step.get("uses", "")]
    assert python[0]["cache-dependency-path"] == "clouds/my lab/requirements.txt"


def test_a_stack_file_that_is_there_is_refused_and_not_asked_for(tmp_path, monkeypatch):
    """Its flags would be lost; without them the file is kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks/Pulumi.lab.yaml").write_text("config: {}\n")

    said = run("init", ".", "--stack", "lab", *AWS)

    assert said.startswith("1: error: stacks/Pulumi.lab.yaml already exists; nothing was written")
    assert [path.name for path in tmp_path.iterdir()] == ["stacks"]
    monkeypatch.setattr(command, "at_terminal", lambda: True)
    assert "Name of the first stack" not in run("init", ".")


# Comments of a pull request -> the call that brings the cost there.
COMMENTS = {
    '[{"id": 7, "user": {"login": "github-actions[bot]"}, "body": "tests passed"}]': "issues/3/comments",
    '[{"id": 8, "user": {"login": "ada"}, "body": "<!-- gpu-fleet: cost -->"}]': "issues/3/comments",
    "[]": "issues/3/comments",
    '[][{"id": 9, "user": {"login": "github-actions[bot]"}, "body": "<!-- gpu-fleet: cost -->\\nold"}]': (
        "--method PATCH repos/o/r/issues/comments/9"
    ),
}
GH = """#!/bin/sh
case "$*" in *--paginate*) cat comments;; *) echo "$@" > call; cp comment.json sent;; esac
"""


@pytest.mark.skipif(shutil.which("jq") is None, reason="the step needs jq, which GitHub's runners have")
def test_the_cost_goes_into_the_comment_of_this_workflow_and_no_other(infra, tmp_path):
    jobs = yaml.safe_load((infra / ".github/workflows/gpu-fleet.yml").read_text())["jobs"]
    (step,) = [step["run"] for step in jobs["check"]["steps"] if step.get("name") == "comment the cost"]
    (tmp_path / "gh").write_text(GH)
    (tmp_path / "gh").chmod(0o755)
    (tmp_path / "cost.md").write_text("12 USD\n")
    names = {"GITHUB_WORKFLOW": "gpu-fleet", "GITHUB_REPOSITORY": "o/r", "NUMBER": "3"}

    for comments, call in COMMENTS.items():
        (tmp_path / "comments").write_text(comments)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **names}
        subprocess.run(["bash", "-ec", step], cwd=tmp_path, env=environment, check=True)
        assert call in (tmp_path / "call").read_text()
        assert json.loads((tmp_path / "sent").read_text())["body"] == "<!-- gpu-fleet: cost -->\n12 USD\n"
    (tmp_path / "cost.md").write_text("of many stacks " * 9_000)
    subprocess.run(["bash", "-ec", step], cwd=tmp_path, env=environment, check=True)
    assert 65_000 < len(json.loads((tmp_path / "sent").read_text())["body"]) < 65_536


def test_the_workflow_checks_costs_and_previews_each_stack_with_no_rights_that_it_does_not_need(infra):
    workflow = yaml.safe_load((infra / ".github/workflows/gpu-fleet.yml").read_text())
    said = json.dumps(workflow["jobs"])

    assert [
        verb for verb in ("check", "cost", "preview") if f'gpu-fleet {verb} \\"$file\\"' not in said
    ] == []
    assert workflow["permissions"] == {"contents": "read"}
    assert "${{ github.event.pull_request.title" not in said


def test_the_workflow_passes_where_there_is_no_stack_file_yet(infra, tmp_path):
    jobs = yaml.safe_load((infra / ".github/workflows/gpu-fleet.yml").read_text())["jobs"]
    loops = [
        step["run"] for job in jobs.values() for step in job["steps"] if "Pulumi.*" in step.get("run", "")
    ]

    ended = [subprocess.run(["bash", "-ec", loop], cwd=tmp_path, check=False).returncode for loop in loops]

    assert ended == [0, 0, 0]


def test_the_workflow_previews_the_stacks_of_aws_and_names_the_others(infra, tmp_path):
    jobs = yaml.safe_load((infra / ".github/workflows/gpu-fleet.yml").read_text())["jobs"]
    (step,) = [step["run"] for step in jobs["preview"]["steps"] if step.get("name") == "preview"]
    for name, cloud in {"a": "aws", "b": '"aws"', "c": "alicloud"}.items():
        (tmp_path / "stacks").mkdir(exist_ok=True)
        (tmp_path / f"stacks/Pulumi.{name}.yaml").write_text(f"config:\n  gpu-fleet:cloud: {cloud}\n")
    fleet = tmp_path / ".venv/bin/gpu-fleet"
    fleet.parent.mkdir(parents=True)
    fleet.write_text('#!/bin/sh\necho "$1 $2"\n')
    fleet.chmod(0o755)

    done = subprocess.run(["bash", "-ec", step], cwd=tmp_path, check=True, capture_output=True, text=True)

    assert done.stdout.splitlines() == [
        "preview stacks/Pulumi.a.yaml",
        "preview stacks/Pulumi.b.yaml",
        "stacks/Pulumi.c.yaml is no stack of AWS: not previewed here",
    ]


def test_an_empty_name_of_a_folder_is_not_this_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(main, ["init", ""])

    assert (done.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert "error: DIR ''; allowed: a folder, `.` for this one" in done.output


def test_outside_of_a_checkout_the_policy_pack_is_a_copy_with_an_environment_of_its_own(infra, monkeypatch):
    commands = []
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr(
        policy_pack.subprocess,
        "run",
        lambda command, **_: [commands.append(command), _made(command)] and done,
    )

    pack = policy_pack.ready(infra, lambda _: None)
    policy_pack.ready(infra, lambda _: None)

    assert pack.flag == "build/policy/stacks/gpu_fleet_stacks/crossguard"
    options = yaml.safe_load((infra / pack.flag / "PulumiPolicy.yaml").read_text())["runtime"]["options"]
    assert (infra / pack.flag / options["virtualenv"]).resolve() == pack.environment
    assert not list((infra / "build/policy/stacks").glob("Pulumi.*.yaml"))
    assert [command[2] for command in commands] == ["venv", "pip"]


def _made(command: list[str]) -> None:
    """Create the folder of `python -m venv`."""
    if command[2] == "venv":
        Path(command[3]).mkdir(parents=True)

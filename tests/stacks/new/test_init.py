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
from tests.ran import executable
from tests.stacks.new.test_new import AWS

ROOT = Path(__file__).parents[3]


def run(*arguments: str, **options) -> str:
    done = CliRunner().invoke(main, [*arguments], **options)
    return done.output if done.exit_code == 0 else f"{done.exit_code}: {done.output}"


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def infra(here) -> Path:
    """Create a repository with the stack `research`; commands run outside of it."""
    assert "written" in run("init", "infra", "--stack", "research", *AWS)
    return here / "infra"


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


def test_a_path_that_is_no_stack_file_or_no_folder_is_refused(infra):
    for words, says in {
        ("check", "nowhere/Pulumi.research.yaml"): "there is no such file",
        ("check", "infra/Pulumi.yaml"): "a stack file is named Pulumi.NAME.yaml",
        ("--dir", "nowhere", "check", "x"): "GPU_FLEET_DIR (--dir) = 'nowhere': there is no such folder",
    }.items():
        assert says in run(*words)


def test_outside_of_any_project_it_says_how_to_make_one(here, monkeypatch):
    monkeypatch.setattr(projects, "OWN", here)  # no checkout

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

    for words in (("check", "research"), ("new", "lab", *AWS)):
        assert "no project of gpu-fleet in" in run(*words)
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


def test_a_kept_file_that_does_not_do_what_a_project_needs_is_named(here):
    """Else Pulumi runs the other program, and `git add .` commits the environment."""
    (here / "__main__.py").write_text("import pulumi\n")
    (here / ".gitignore").write_text("/build\n*.pyc\n")

    said = run("init", ".")

    assert "warning: __main__.py was kept and does not start gpu-fleet; its lines must be `from gpu" in said
    assert "warning: .gitignore was kept; add the lines .venv/, stacks/Pulumi.*-accept.yaml\n" in said
    assert (here / ".gitignore").read_text() == "/build\n*.pyc\n"


def test_kept_files_that_do_are_not_and_a_project_that_is_there_is_refused(here):
    run("init", ".")
    again = run("init", ".")
    (here / "Pulumi.yaml").unlink()

    said = run("init", ".")

    assert "Pulumi.yaml already exists; nothing was written" in again
    assert "kept     __main__.py" in said
    assert "was kept" not in said


def test_next_is_what_this_shell_still_lacks(here, monkeypatch):
    elsewhere = run("init", "my infra").partition("next:\n")[2]
    monkeypatch.setattr(sys, "prefix", str(here / ".venv"))

    assert elsewhere.startswith("  cd 'my infra'\n")
    assert [line.split()[0] for line in elsewhere.splitlines()[:3]] == ["cd", "python3", ".venv/bin/pip"]
    assert run("init", ".").partition("next:\n")[2] == "  gpu-fleet new NAME\n"


def test_a_wrong_answer_leaves_nothing_behind(here):
    wrong = run("init", "infra", "--stack", "research", *AWS, "--account", "12")
    forgotten = run("init", "infra", *AWS)
    nameless = run("init", "")

    assert "--account '12'" in wrong
    assert "--stack is missing" in forgotten
    assert nameless.startswith("1: error: DIR ''; allowed: a folder, `.` for this one")
    assert list(here.iterdir()) == []


def test_at_a_terminal_it_asks_for_the_first_stack_until_its_name_is_one(here, monkeypatch):
    monkeypatch.setattr(command, "at_terminal", lambda: True)

    run("init", "infra", input="My Lab|lab|aws|us-east-1|123456789012||||||||a@b.org|||".replace("|", "\n"))

    assert (here / "infra/stacks/Pulumi.lab.yaml").is_file()


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


def test_in_a_folder_of_a_repository_the_workflow_is_at_its_root_and_works_in_that_folder(here):
    """GitHub reads workflows nowhere else; a second project of the repository has its own."""
    (here / ".git").mkdir()

    run("init", "clouds/my lab")
    run("init", "infra")

    lab, infra = sorted((here / ".github/workflows").iterdir())
    assert [lab.name, infra.name] == ["gpu-fleet-clouds-my-lab.yml", "gpu-fleet-infra.yml"]
    assert list(here.glob("*/**/.github")) == []
    workflow = yaml.safe_load(lab.read_text())
    assert workflow["defaults"]["run"]["working-directory"] == "clouds/my lab"
    assert workflow[True]["pull_request"]["paths"] == ["clouds/my lab/**", f".github/workflows/{lab.name}"]
    python = [step["with"] for step in workflow["jobs"]["check"]["steps"] if "python" in step.get("uses", "")]
    assert python[0]["cache-dependency-path"] == "clouds/my lab/requirements.txt"


def test_a_stack_file_that_is_there_is_refused_and_not_asked_for(here, monkeypatch):
    """Its flags would be lost; without them the file is kept."""
    (here / "stacks").mkdir()
    (here / "stacks/Pulumi.lab.yaml").write_text("config: {}\n")

    said = run("init", ".", "--stack", "lab", *AWS)

    assert said.startswith("1: error: stacks/Pulumi.lab.yaml already exists; nothing was written")
    assert [path.name for path in here.iterdir()] == ["stacks"]
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


@pytest.fixture
def step(infra, tmp_path):
    """``step(job, name)`` runs a step of the written workflow, as GitHub does; returns what it printed."""
    jobs = yaml.safe_load((infra / ".github/workflows/gpu-fleet.yml").read_text())["jobs"]

    def run_step(job, name, **environ):
        (script,) = [step["run"] for step in jobs[job]["steps"] if step.get("name") == name]
        command = ["bash", "-ec", script]
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            command, cwd=tmp_path, env=path | environ, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    return run_step


@pytest.mark.skipif(shutil.which("jq") is None, reason="the step needs jq, which GitHub's runners have")
def test_the_cost_goes_into_the_comment_of_this_workflow_and_no_other(step, tmp_path):
    executable(tmp_path / "gh", GH)
    names = {"GITHUB_WORKFLOW": "gpu-fleet", "GITHUB_REPOSITORY": "o/r", "NUMBER": "3"}

    def sent(cost, comments):
        (tmp_path / "cost.md").write_text(cost)
        (tmp_path / "comments").write_text(comments)
        step("check", "comment the cost", **names)
        return (tmp_path / "call").read_text(), json.loads((tmp_path / "sent").read_text())["body"]

    for comments, expected in COMMENTS.items():
        call, body = sent("12 USD\n", comments)
        assert expected in call
        assert body == "<!-- gpu-fleet: cost -->\n12 USD\n"
    assert 65_000 < len(sent("of many stacks " * 9_000, "[]")[1]) < 65_536


def test_the_workflow_checks_costs_and_previews_each_stack_with_no_rights_that_it_does_not_need(
    infra, tmp_path
):
    workflow = yaml.safe_load((infra / ".github/workflows/gpu-fleet.yml").read_text())
    said = json.dumps(workflow["jobs"])
    scripts = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]

    for verb in ("check", "cost", "preview"):
        assert f'gpu-fleet {verb} \\"$file\\"' in said
    assert workflow["permissions"] == {"contents": "read"}
    assert "${{ github.event.pull_request.title" not in said
    # where there is no stack file yet
    loops = [["bash", "-ec", script] for script in scripts if "Pulumi.*" in script]
    assert [subprocess.run(loop, cwd=tmp_path, check=False).returncode for loop in loops] == [0, 0, 0]


def test_the_workflow_previews_the_stacks_of_aws_and_names_the_others(step, tmp_path):
    (tmp_path / "stacks").mkdir()
    for name, cloud in {"a": "aws", "b": '"aws"', "c": "alicloud"}.items():
        (tmp_path / f"stacks/Pulumi.{name}.yaml").write_text(f"config:\n  gpu-fleet:cloud: {cloud}\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    executable(tmp_path / ".venv/bin/gpu-fleet", '#!/bin/sh\necho "$1 $2"\n')

    assert step("preview", "preview").splitlines() == [
        "preview stacks/Pulumi.a.yaml",
        "preview stacks/Pulumi.b.yaml",
        "stacks/Pulumi.c.yaml is no stack of AWS: not previewed here",
    ]


def test_outside_of_a_checkout_the_policy_pack_is_a_copy_with_an_environment_of_its_own(infra, monkeypatch):
    commands = []

    def made(command, **_):
        commands.append(command[2])
        if command[2] == "venv":
            Path(command[3]).mkdir(parents=True)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(policy_pack.subprocess, "run", made)

    pack = policy_pack.ready(infra, lambda _: None)
    policy_pack.ready(infra, lambda _: None)

    assert pack.flag == "build/policy/stacks/gpu_fleet_stacks/crossguard"
    options = yaml.safe_load((infra / pack.flag / "PulumiPolicy.yaml").read_text())["runtime"]["options"]
    assert (infra / pack.flag / options["virtualenv"]).resolve() == pack.environment
    assert not list((infra / "build/policy/stacks").glob("Pulumi.*.yaml"))
    assert commands == ["venv", "pip"]

"""`gpu-fleet`: every command of the house, each with an example, and never a traceback."""

import ast
import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import NoReturn
from unittest.mock import Mock

import click
import pytest
from botocore.exceptions import ConfigParseError, ProfileNotFound
from click.testing import CliRunner, Result

from gpu_fleet_image.console import INTERRUPTED, cli, groups, lazy, version
from gpu_fleet_image.console import __main__ as entry
from gpu_fleet_image.console.cli import FAILED, main
from gpu_fleet_image.console.table import SECTIONS, Row
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from tests.image.console.commands import COMMANDS, LEAVES
from tests.ran import executable, ran

ROOT = Path(__file__).parents[3]
SCRIPT = Path(sys.executable).parent / "gpu-fleet"
DIGITS = str(ROOT / "training/examples/digits.toml")
DEFECTS = ("Traceback", "a defect of gpu-fleet")
SIGNALLED = 126  # and above, a shell says what else ended a process
DEFINES = re.compile(r"(command|group)$")


def run(*arguments, **options):
    return CliRunner().invoke(main, [*arguments], **options)


def refusal(command: click.Command, arguments: list[str]) -> str | None:
    """Why a command does not take its arguments; a file of an example need not be here."""
    try:
        command.make_context("command", arguments)
    except click.UsageError as error:
        return None if "does not exist" in error.format_message() else error.format_message()
    return None


RANGES = [
    (" ".join(path), option)
    for path, command in LEAVES.items()
    for option in command.params
    if isinstance(option.type, click.FloatRange | type(click.FLOAT))
]


def takes(path: str, option: click.Parameter, text: str) -> bool:
    try:
        option.type_cast_value(click.Context(COMMANDS[tuple(path.split())]), text)
    except click.BadParameter as error:
        return re.search(r"finite number|not in the range", error.format_message()) is None
    return True


def test_no_option_takes_a_number_that_is_none():
    """Every comparison with NaN is false, so a range of click's own lets it in."""
    taken = [
        f"{path} {option.name} {text}"
        for path, option in RANGES
        for text in ("nan", "inf")
        if takes(path, option, text)
    ]

    assert taken == []
    assert {"take hours", "agent clock_speed", "train report price"} <= {
        f"{path} {option.name}" for path, option in RANGES
    }


def test_version_of_a_checkout_is_that_of_its_tags_and_commits(tmp_path, monkeypatch):
    def git(*words: str) -> None:
        settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *settings, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(version, "CHECKOUT", tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    said = []
    git("init")
    git("add", ".")
    for words in (("commit", "-m", "a"), ("tag", "v0.2.0"), ("commit", "--allow-empty", "-m", "b")):
        git(*words)
        said.append(run("--version").output)

    assert re.match(r"gpu-fleet 0\.2\.0\.dev1\+g[0-9a-f]{7,}, Python 3\.", said[0])
    assert said[1].startswith("gpu-fleet 0.2.0, Python 3.")
    assert said[2].startswith("gpu-fleet 0.2.1.dev1+g")


def test_version_without_git_is_that_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(version, "CHECKOUT", tmp_path)

    shown = run("--version")

    assert shown.output.startswith(f"gpu-fleet {metadata.version('gpu-fleet')}, Python 3.")


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (("report", "--waste", "soon"), "'soon' must be a whole number in the range 1<=x<=366."),
        (("take", "dev", "--hours", "long"), "'long' must be a number in the range 0<x<=336."),
    ],
)
def test_a_text_where_a_number_belongs_is_told_the_range(words, allowed):
    assert allowed in run(*words).stderr


def test_version_on_an_instance_says_what_it_was_made_from(tmp_path, monkeypatch):
    monkeypatch.setattr(version, "CHECKOUT", tmp_path)
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError("gpu-fleet")))
    digest, manifest = tmp_path / version.PAYLOAD_DIGEST, tmp_path / version.MANIFEST
    unknown = version.text(tmp_path)
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"payload_sha256": "ba5e00000000aaaa"}')
    built = version.text(tmp_path)
    digest.parent.mkdir(parents=True)
    digest.write_text("0123456789abcdef\n")

    assert unknown.startswith("gpu-fleet of an unknown version, Python 3.")
    assert built.startswith("gpu-fleet payload ba5e00000000, Python 3.")
    assert version.text(tmp_path).startswith("gpu-fleet payload 0123456789ab, Python 3.")


def said(command: click.Command) -> str:
    """The lines below `Example:` of a help text, each whole."""
    return (command.epilog or "").partition("Example")[2].replace("\\\n", " ")


def examples(command: click.Command) -> list[list[str]]:
    return [shlex.split(line) for line in said(command).splitlines() if line.strip().startswith("gpu-fleet")]


def defined() -> set[tuple[str, str]]:
    """(module, name) of everything in the rooms that click's decorators or groups make."""
    found = set()
    for top, room in (
        (ROOT / "image", "gpu_fleet_image"),
        (ROOT / "stacks", "gpu_fleet_stacks"),
        (ROOT / "training", "gpu_fleet"),
        (ROOT / "training", "gpu_fleet_jobs"),
    ):
        for path in (top / room).rglob("*.py"):
            module = ".".join(path.relative_to(top).with_suffix("").parts)
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef) and any(map(_defines, node.decorator_list)):
                    found.add((module, node.name))
                if isinstance(node, ast.Assign) and _name(node.value).endswith(("Group", "Console")):
                    found.add((module, node.targets[0].id))
    return found


def _defines(decorator: ast.expr) -> bool:
    return DEFINES.search(_name(decorator)) is not None


def _name(node: ast.expr) -> str:
    call = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(call) if isinstance(call, ast.Attribute | ast.Name) else ""


def test_the_example_of_the_whole_is_a_command_that_is_here(monkeypatch):
    examples = [cli.example()]
    monkeypatch.setattr(cli, "A_STACK", Path("/nonesuch"))
    examples.append(cli.example())
    monkeypatch.setattr(lazy, "is_here", lambda target: not target.startswith("gpu_fleet_stacks."))
    examples.append(cli.example())

    assert examples == ["gpu-fleet check aws-dev", "gpu-fleet init infra", "gpu-fleet status"]


def test_every_command_of_the_rooms_is_reached():
    reached = {id(command) for command in COMMANDS.values()}

    lost = {
        f"{module}:{name}"
        for module, name in defined()
        if id(getattr(importlib.import_module(module), name)) not in reached
    }

    assert len(defined()) > 25
    assert lost == set()


def test_every_help_has_an_example_that_starts_with_the_command():
    without = []
    for path, command in COMMANDS.items():
        shown, lines = run(*path, "--help"), examples(command)
        begins = all(line[1 : 1 + len(path)] == list(path) for line in lines)
        if shown.exit_code or "Example" not in shown.output or not lines or not begins:
            without.append(f"{' '.join(path)}: {lines} {shown.output}")

    assert without == []


def test_no_help_names_a_page_by_its_path_in_the_checkout():
    """Who installed the wheel has no `docs/`."""
    named = []
    for path, command in COMMANDS.items():
        with click.Context(command) as context:
            named += [" ".join(path)] if "docs/" in command.get_help(context) else []

    assert named == []


def test_a_groups_list_cuts_no_sentence_and_leaves_out_what_units_call():
    lists = {
        path: run(*path, "--help").output for path, each in COMMANDS.items() if isinstance(each, click.Group)
    }

    assert [path for path, text in lists.items() if re.search(r"\w\.\.\.$", text, re.MULTILINE)] == []
    listed = {
        line.split()[0] for line in lists["train",].splitlines() if line.startswith("  ") and line.strip()
    }
    assert "start" in listed
    assert not {"pack", "queued", "train", "work"} & listed


def test_the_example_of_a_command_is_one_that_it_takes(monkeypatch):
    monkeypatch.chdir(ROOT)

    refused = [
        f"{shlex.join(line)}: {why}"
        for path, command in LEAVES.items()
        for line in examples(command)
        if (why := refusal(command, line[1 + len(path) :]))
    ]

    assert refused == []


def test_nonsense_is_answered_with_one_message(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    nonsense = (["--no-such-flag"], ["no such thing", "nor", "this", "or that"])

    odd = [
        f"{' '.join(path)} {shlex.join(words)}: {shown.exit_code} {shown.output}"
        for path in COMMANDS
        for words in nonsense
        if not is_one_message(shown := run(*path, *words))
    ]

    assert odd == []


def is_one_message(shown: Result) -> bool:
    # 1, 2 for usage; the trainer's commands say with more codes whether to try again
    fails = 0 < shown.exit_code < SIGNALLED
    says_why = re.search("^error: ", shown.output, re.MULTILINE) is not None
    return fails and says_why and not any(text in shown.output for text in DEFECTS)


def test_help_lists_the_commands_by_who_uses_them_and_an_unknown_one_is_answered_with_the_nearest():
    shown, unknown, hidden = run("--help").output, run("prevew"), run("start-rum").output

    titles = [f"{title}:" for title in SECTIONS]
    assert [line for line in shown.splitlines() if line in titles] == titles[:-1]
    assert "start-run" not in shown + hidden
    assert shown.index("Users of") < shown.index("  keep ") < shown.index("Platform") < shown.index("  up ")
    assert unknown.exit_code == 2
    assert "No such command 'prevew'. Did you mean 'preview'?" in unknown.output


def test_where_a_room_is_missing_its_commands_are_not_listed_and_say_why(monkeypatch):
    there = lazy.is_here
    monkeypatch.setattr(
        lazy, "is_here", lambda target: not target.startswith("gpu_fleet_stacks.") and there(target)
    )
    instance = groups.TableGroup("gpu-fleet", {"all": {**SECTIONS["Platform teams"]}}, "", "gpu-fleet x")

    assert "sweep" in instance.list_commands(click.Context(instance))
    assert not {"up", "catalog"} & set(instance.list_commands(click.Context(instance)))
    shown = CliRunner().invoke(instance, ["up"])
    assert (
        "'up' is no command on an instance: on your own computer pip install 'gpu-fleet[platform]'"
        in shown.output
    )
    assert "the commands here are: poc, sweep" in shown.output


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    there, missing = importlib.import_module, ModuleNotFoundError("No module named 'torch'", name="torch")

    def imported(name: str) -> object:
        if name == "gpu_fleet.cli":
            raise missing
        return there(name)

    monkeypatch.setitem(sys.modules, "boto3", None)
    monkeypatch.delitem(sys.modules, "gpu_fleet.cli", raising=False)
    monkeypatch.setattr(importlib, "import_module", imported)

    shown = run("train", "--help")

    assert shown.exit_code == 1
    assert shown.output == (
        "error: needs the Python package torch, which is not installed here; "
        "pip install 'gpu-fleet[train]' installs it\n"
    )


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("sklearn", ("train", "prepare", "digits", "data")),
        ("torch", ("train", "launch", DIGITS, "--alone")),
        ("torch", ("train", "launch", DIGITS, "--alone", "--nproc-per-node", "1")),
        ("torch", ("train", "start", DIGITS)),
        ("torch", ("rehearse", "local")),
    ],
)
def test_a_command_of_the_trainer_names_a_package_that_is_not_installed(
    monkeypatch, tmp_path, package, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "gpu_fleet.trainer.rank", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == package] or [package]:
        monkeypatch.setitem(sys.modules, name, None)

    shown = run(*words)

    needs = f"needs the Python package {package}, which is not installed here; "
    assert f"{needs}pip install 'gpu-fleet[train]' installs it" in " ".join(shown.output.split())
    assert isinstance(shown.exception, SystemExit)


def wrapped(cause: BaseException) -> RuntimeError:
    """Return an error as a library makes of what it meets while it is loaded."""
    error = RuntimeError("Error calling __set_name__")
    error.__cause__ = cause
    return error


def test_ctrl_c_while_the_command_line_loads_is_one_word(monkeypatch, capsys):
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> NoReturn:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "gpu_fleet_image.console.cli", Loading("cli"))

    with pytest.raises(SystemExit) as end:
        entry.main()

    assert end.value.code == INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
        (wrapped(KeyboardInterrupt()), INTERRUPTED, "interrupted\n"),
        (BrokenPipeError(32, "Broken pipe"), FAILED, ""),
        (PermissionError(13, "Permission denied", "/etc/shadow"), 1, "error: /etc/shadow: Permission denied"),
        (ConfigurationError("kept by \x1b[2J\x9b1m\u202e: no"), 1, r"kept by \x1b[2J\x9b1m\u202e: no"),
        (ValueError("odd"), 1, "error: a defect of gpu-fleet: ValueError: odd; GPU_FLEET_TRACEBACK=1"),
        (ProfileNotFound(profile="nope"), 1, "profile (nope) could not be found: see AWS_PROFILE"),
        (
            ConfigParseError(path="/etc/aws"),
            1,
            "error: Unable to parse config file: /etc/aws: see AWS_CONFIG_FILE",
        ),
        (ValueError("Invalid endpoint: x"), 1, "error: Invalid endpoint: x; allowed: a URL"),
    ],
    ids=[
        "ctrl-c",
        "wrapped",
        "closed-pipe",
        "file",
        "terminal",
        "defect",
        "profile",
        "aws-file",
        "endpoint",
    ],
)
def test_what_a_command_raises_is_a_message_and_an_exit_code(raised, code, message, monkeypatch):
    monkeypatch.setattr("gpu_fleet_stacks.settings.stack_files.settings_of", Mock(side_effect=raised))
    monkeypatch.setattr(os, "dup2", lambda descriptor, other: None)
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)

    shown = run("check", "local")

    assert shown.exit_code == code
    assert message in shown.output
    assert "Traceback" not in shown.output


def test_quiet_leaves_warnings_out_and_verbose_says_where_a_defect_is(monkeypatch):
    loud, quiet = run("check", "aws-dev"), run("-q", "check", "aws-dev")
    after = run("check", "aws-dev")
    monkeypatch.setattr("gpu_fleet_stacks.settings.stack_files.settings_of", lambda name: 1 // 0)

    assert "warning: " in loud.output
    assert (quiet.stderr, quiet.stdout) == ("", loud.stdout)
    assert after.output == loud.output
    assert isinstance(run("-v", "check", "aws-dev").exception, ZeroDivisionError)
    assert "a defect of gpu-fleet" in run("check", "aws-dev").output


def test_verbose_shows_no_traceback_of_an_expected_error():
    shown = run("-v", "check", "nonesuch")

    assert "error: no stack 'nonesuch'" in shown.output
    assert isinstance(shown.exception, SystemExit)


def test_a_defect_shows_its_traceback_when_asked(monkeypatch):
    monkeypatch.setenv("GPU_FLEET_TRACEBACK", "1")
    monkeypatch.setattr("gpu_fleet_stacks.settings.stack_files.settings_of", lambda name: 1 // 0)

    assert isinstance(run("check", "local").exception, ZeroDivisionError)


def process(*command: str | Path, **options):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/stacks:{ROOT}/image:{ROOT}/training"} | options.pop(
        "env", {}
    )
    return ran(command, env=environment, timeout=120, **options)


def test_the_console_loads_click_and_nothing_of_a_room():
    program = (
        "import sys, gpu_fleet_image.console.cli as cli\n"
        "from click.testing import CliRunner\n"
        "assert CliRunner().invoke(cli.main, ['--help']).exit_code == 0\n"
        "known = {*sys.stdlib_module_names, '__main__', 'click', 'gpu_fleet_image'}\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] not in known"
        " or name.startswith('gpu_fleet_image.') and not name.startswith('gpu_fleet_image.console')))\n"
    )

    done = process(sys.executable, "-S", "-c", program, env={"PYTHONPATH": f"{ROOT}/image:{_packages()}"})

    assert done.stdout == "[]\n", done.stdout + done.stderr


def _packages() -> Path:
    return Path(click.__file__).parents[1]


@pytest.mark.parametrize("folder", ["/", str(ROOT / "stacks")])
def test_the_installed_script_works_in_any_folder(folder):
    done = process(SCRIPT, "check", "local", cwd=folder)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("local: OK")


def test_the_installed_script_finds_its_checkout_by_itself():
    """Without PYTHONPATH: by the install alone."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    done = ran([SCRIPT, "--help"], cwd="/", env=environment)

    assert done.returncode == 0, done.stderr
    assert "Platform teams:" in done.stdout


def test_a_closed_pipe_ends_the_command_without_a_word():
    asked = f"{shlex.quote(str(SCRIPT))} catalog show p5.48xlarge | true; exit ${{PIPESTATUS[0]}}"

    done = process("bash", "-c", asked)

    assert done.returncode in (0, FAILED)
    assert done.stderr == ""


def test_output_that_is_closed_or_lacks_letters_ends_no_command():
    closed = f"{shlex.quote(str(SCRIPT))} cost local >&-"
    plain = f"PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 LC_ALL=C {shlex.quote(str(SCRIPT))} cost local"

    done = process("bash", "-c", f"{closed} && {plain}")

    assert (done.returncode, "error" in done.stderr) == (0, False), done.stderr


def test_ctrl_c_ends_the_command_with_130(tmp_path):
    waiting = tmp_path / "pulumi"
    executable(waiting, "#!/bin/sh\necho started\nexec sleep 60\n")
    program = subprocess.Popen(
        [SCRIPT, "up", "local", "--no-policy"],
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}/stacks:{ROOT}/image:{ROOT}/training",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    program.stdout.readline()

    os.killpg(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=120)

    assert program.returncode == INTERRUPTED
    assert "Traceback" not in errors


def test_a_row_that_leads_nowhere_is_not_listed():
    assert not lazy.is_here("gpu_fleet_stacks.nonesuch:command")
    assert not lazy.is_here("nonesuch.module:command")
    assert all(
        lazy.is_here(row.target)
        for rows in SECTIONS.values()
        for row in rows.values()
        if isinstance(row, Row)
    )

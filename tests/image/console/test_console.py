"""`gpu-fleet`: every command of the house, each with an example, and never a traceback."""

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
DEFINES = re.compile(r"^@.*\b(command|group)\b|(Group|Console)\(", re.MULTILINE)
ROOMS = {
    "image": ["gpu_fleet_image"],
    "stacks": ["gpu_fleet_stacks"],
    "training": ["gpu_fleet", "gpu_fleet_jobs"],
}
PYTHONPATH = ":".join(f"{ROOT}/{top}" for top in ROOMS)


def run(*arguments, **options):
    return CliRunner().invoke(main, [*arguments], **options)


def refusal(command: click.Command, arguments: list[str]) -> str | None:
    """Why a command does not take its arguments; a file of an example need not be here."""
    try:
        command.make_context("command", arguments)
    except click.UsageError as error:
        return None if "does not exist" in error.format_message() else error.format_message()
    return None


def takes(command: click.Command, option: click.Parameter, text: str) -> bool:
    try:
        option.type_cast_value(click.Context(command), text)
    except click.BadParameter as error:
        return re.search(r"finite number|not in the range", error.format_message()) is None
    return True


def test_no_option_takes_a_number_that_is_none():
    """Every comparison with NaN is false, so a range of click's own lets it in."""
    taken = {
        f"{' '.join(path)} {option.name}": [text for text in ("nan", "inf") if takes(command, option, text)]
        for path, command in LEAVES.items()
        for option in command.params
        if isinstance(option.type, click.FloatRange | type(click.FLOAT))
    }

    assert {name: texts for name, texts in taken.items() if texts} == {}
    assert {"take hours", "agent clock_speed", "train report price"} <= taken.keys()


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


def test_a_text_where_a_number_belongs_is_told_the_range():
    soon, long = run("report", "--waste", "soon"), run("take", "dev", "--hours", "long")

    assert "'soon' must be a whole number in the range 1<=x<=366." in soon.stderr
    assert "'long' must be a number in the range 0<x<=336." in long.stderr


def test_version_without_git_is_that_of_the_package_or_of_what_an_instance_was_made_from(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(version, "CHECKOUT", tmp_path)
    packaged, number = run("--version").output, metadata.version("gpu-fleet")
    monkeypatch.setattr(metadata, "version", Mock(side_effect=metadata.PackageNotFoundError("gpu-fleet")))
    digest, manifest = tmp_path / version.PAYLOAD_DIGEST, tmp_path / version.MANIFEST
    unknown = version.text(tmp_path)
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"payload_sha256": "ba5e00000000aaaa"}')
    built = version.text(tmp_path)
    digest.parent.mkdir(parents=True)
    digest.write_text("0123456789abcdef\n")

    assert packaged.startswith(f"gpu-fleet {number}, Python 3.")
    assert unknown.startswith("gpu-fleet of an unknown version, Python 3.")
    assert built.startswith("gpu-fleet payload ba5e00000000, Python 3.")
    assert version.text(tmp_path).startswith("gpu-fleet payload 0123456789ab, Python 3.")


def examples(command: click.Command) -> list[list[str]]:
    """The commands below `Example:` of a help text, each in words."""
    lines = (command.epilog or "").partition("Example")[2].replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.strip().startswith("gpu-fleet")]


def defined() -> dict[str, click.Command]:
    """Every command of the modules in the rooms that make commands, by module and name."""
    found = {}
    for path in (
        each for top, rooms in ROOMS.items() for room in rooms for each in (ROOT / top / room).rglob("*.py")
    ):
        if DEFINES.search(path.read_text()):
            module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts[1:]))
            found |= {f"{module.__name__}:{name}": value for name, value in vars(module).items()}
    return {name: value for name, value in found.items() if isinstance(value, click.Command)}


def test_the_example_of_the_whole_is_a_command_that_is_here(monkeypatch):
    examples = [cli.example()]
    monkeypatch.setattr(cli, "A_STACK", Path("/nonesuch"))
    examples.append(cli.example())
    monkeypatch.setattr(lazy, "is_here", lambda target: not target.startswith("gpu_fleet_stacks."))
    examples.append(cli.example())

    assert examples == ["gpu-fleet check aws-dev", "gpu-fleet init infra", "gpu-fleet status"]


def test_every_command_of_the_rooms_is_reached():
    made, reached = defined(), {id(command) for command in COMMANDS.values()}

    assert len(made) > 25
    assert [name for name, command in made.items() if id(command) not in reached] == []


def test_every_help_has_an_example_that_starts_with_the_command_and_names_no_page_of_the_checkout():
    """Who installed the wheel has no `docs/`."""
    wrong = []
    for path, command in COMMANDS.items():
        shown, lines = run(*path, "--help"), examples(command)
        begins = all(line[1 : 1 + len(path)] == list(path) for line in lines)
        if (
            shown.exit_code
            or "Example" not in shown.output
            or not lines
            or not begins
            or "docs/" in shown.output
        ):
            wrong.append(f"{' '.join(path)}: {lines} {shown.output}")

    assert wrong == []


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
        (ConfigParseError(path="/aws"), 1, "error: Unable to parse config file: /aws: see AWS_CONFIG_FILE"),
        (ValueError("Invalid endpoint: x"), 1, "error: Invalid endpoint: x; allowed: a URL"),
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


def test_quiet_leaves_warnings_out_of_one_call():
    loud, quiet, after = (run(*words, "check", "aws-dev") for words in ((), ("-q",), ()))

    assert "warning: " in loud.output
    assert (quiet.stderr, quiet.stdout) == ("", loud.stdout)
    assert after.output == loud.output


def test_a_defect_shows_its_traceback_when_asked_and_an_expected_error_does_not(monkeypatch):
    expected = run("-v", "check", "nonesuch")
    monkeypatch.setattr("gpu_fleet_stacks.settings.stack_files.settings_of", lambda name: 1 // 0)
    silent, verbose = run("check", "local"), run("-v", "check", "local")
    monkeypatch.setenv("GPU_FLEET_TRACEBACK", "1")
    errors = [type(each.exception) for each in (expected, silent, verbose, run("check", "local"))]

    assert errors == [SystemExit, SystemExit, ZeroDivisionError, ZeroDivisionError]
    assert "error: no stack 'nonesuch'" in expected.output
    assert "a defect of gpu-fleet" in silent.output


def process(*command: str | Path, **options):
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH} | options.pop("env", {})
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

    packages = Path(click.__file__).parents[1]

    done = process(sys.executable, "-S", "-c", program, env={"PYTHONPATH": f"{ROOT}/image:{packages}"})

    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize(("folder", "path"), [("/", ""), (str(ROOT / "stacks"), PYTHONPATH)])
def test_the_installed_script_works_in_any_folder_and_finds_its_checkout_by_itself(folder, path):
    done = process(SCRIPT, "check", "local", cwd=folder, env={"PYTHONPATH": path})

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("local: OK")


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
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": PYTHONPATH},
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
    rows = [row for section in SECTIONS.values() for row in section.values() if isinstance(row, Row)]

    assert not lazy.is_here("gpu_fleet_stacks.nonesuch:command")
    assert not lazy.is_here("nonesuch.module:command")
    assert [row.target for row in rows if not lazy.is_here(row.target)] == []

"""The root of ``gpu-fleet``: a command's expected errors become one message and an exit code."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO, TextIOWrapper
from typing import Any

import click

from gpu_fleet_image.console import INTERRUPTED, lazy, version
from gpu_fleet_image.console.errors import is_meant, misconfigured
from gpu_fleet_image.console.groups import TableGroup
from gpu_fleet_image.console.stack_files import StackFiles
from gpu_fleet_image.console.table import SECTIONS

NAME = "gpu-fleet"
CHECK = "gpu_fleet_stacks.cost.check:check"
A_STACK = version.CHECKOUT / "stacks/Pulumi.aws-dev.yaml"  # the wheel has no stack files
INERT = "gpu_fleet_image.core.shared_options:inert"
FAILED = 1
ROOMS = ("gpu_fleet_image", "gpu_fleet_stacks")  # whose log `--verbose` shows
CLICKS = re.compile("^Error: ", re.MULTILINE)  # click's own word for what is `error: ` everywhere else
TRACEBACK = "GPU_FLEET_TRACEBACK"
QUIET = "GPU_FLEET_QUIET"  # image/gpu_fleet_image/core/shared_options.py reads it
FOLDER = "GPU_FLEET_DIR"  # stacks/gpu_fleet_stacks/settings/projects.py reads it


class Console(TableGroup):
    """Root group, whose ``main`` alone handles exceptions."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and exit: with 2 on usage errors, with 1 on a command's expected errors."""
        if args is None:
            become_trainer(sys.argv[1:])
        if not standalone_mode:
            return super().main(args, prog_name or NAME, complete_var, standalone_mode=False, **extra)

        def run() -> Any:
            return super(Console, self).main(
                args, prog_name or NAME, complete_var, standalone_mode=False, **extra
            )

        shows_defects = os.environ.get(TRACEBACK, "")
        try:
            sys.exit(ended(run))
        finally:  # --verbose is for this command line alone; its context ends before the exception is here
            os.environ[TRACEBACK] = shows_defects


def become_trainer(arguments: Sequence[str]) -> None:
    """Replace this process by the trainer's own, if the command line is for it; else return.

    The trainer imports a user's modules by any name, also `image` and `stacks`, which this process uses
    itself. An isolated interpreter (-I) sees no module of a user, and stays.
    """
    if arguments[:1] == ["train"] and not sys.flags.isolated:
        os.execv(sys.executable, [sys.executable, "-m", "gpu_fleet", *arguments[1:]])  # noqa: S606 - no shell needed


def ended(run: Callable[[], Any]) -> int:
    """Run a command line, print its error, and return its exit code.

    Args:
        run: runs it, and returns an exit code if click ends it early, say after ``--help``.
    """
    _open_streams()
    try:
        code = run()
        sys.stdout.flush()
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        _say(CLICKS.sub("error: ", _with_range(error, shown.getvalue())))
        return error.exit_code
    except BrokenPipeError:
        # The reader is gone: nothing more can be written, also not when the interpreter flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if _comes_of_ctrl_c(error):
            click.echo("interrupted", err=True)
            return INTERRUPTED
        said = words(error)
        if said is None and os.environ.get(TRACEBACK):
            raise
        defect = f"a defect of gpu-fleet: {type(error).__name__}: {error}; {TRACEBACK}=1 shows where"
        _say(f"error: {said or defect}\n")
        return FAILED
    return code if isinstance(code, int) else 0


def _comes_of_ctrl_c(error: BaseException) -> bool:
    """Return whether Ctrl-C caused an error: some libraries wrap it while they are loaded."""
    causes: dict[int, BaseException] = {}  # by identity: NVML's errors cannot be compared with others
    cause: BaseException | None = error
    while cause is not None and id(cause) not in causes:  # `raise error from error` causes itself
        causes[id(cause)] = cause
        cause = cause.__cause__ or cause.__context__
    return any(isinstance(each, KeyboardInterrupt) for each in causes.values())


def _say(text: str) -> None:
    """Print an error, which may quote what other users wrote."""
    click.echo(lazy.load(INERT)(text), err=True, nl=False)


def _with_range(error: click.ClickException, text: str) -> str:
    """Return an error's text with the range of a number, which click leaves out."""
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param else None
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return text
    number = "a whole number" if isinstance(kind, click.IntRange) else "a number"
    allowed = f"must be {number} in the range {kind._describe_range()}"
    return text.replace(f"is not a valid {kind.name}", allowed)


def _open_streams() -> None:
    """Replace an output that the caller closed, and print ``?`` for characters that its encoding lacks."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, StringIO())
        if isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="replace")


def words(error: Exception) -> str | None:
    """Return the message for an exception, for a user; None for a defect."""
    if is_meant(error):
        return str(error)
    if (wrong := misconfigured(error)) is not None:
        return wrong
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return None


def _say_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Handle ``--version``: print one line, and run no command."""
    if wanted and not ctx.resilient_parsing:
        click.echo(version.text())
        ctx.exit()


def _say_more(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Handle ``--verbose``: log each call, and show where a defect is."""
    if not wanted or ctx.resilient_parsing:
        return
    import logging  # noqa: PLC0415 - every other command would pay for it

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    for room in map(logging.getLogger, ROOMS):
        room.addHandler(handler)
        room.setLevel(logging.DEBUG)
        ctx.call_on_close(partial(room.removeHandler, handler))
    os.environ[TRACEBACK] = "1"


def _say_less(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Handle ``--quiet``: warnings and remarks are left out."""
    if wanted and not ctx.resilient_parsing:
        _set_for_now(ctx, QUIET, "1")


def _set_for_now(ctx: click.Context, variable: str, value: str) -> None:
    """Set a variable for this command and its child processes."""
    before = os.environ.get(variable, "")
    os.environ[variable] = value
    ctx.call_on_close(lambda: os.environ.update({variable: before}))


def _choose_folder(ctx: click.Context, _: click.Parameter, folder: str | None) -> None:
    """Handle ``--dir``: set the variable that every command reads, also in child processes."""
    if folder and not ctx.resilient_parsing:
        _set_for_now(ctx, FOLDER, folder)


def example() -> str:
    """Return a first command to try: of a checkout's stacks, of an own project, or of this instance."""
    if not lazy.is_here(CHECK):
        return "gpu-fleet status"
    return "gpu-fleet check aws-dev" if A_STACK.is_file() else "gpu-fleet init infra"


main = Console(
    NAME,
    {title: dict(rows) for title, rows in SECTIONS.items()},
    "Shared GPU fleets on AWS and Alibaba Cloud. COMMAND --help shows an example of each command.",
    example(),
)
main.params += [
    click.Option(
        ["--dir"],
        metavar="DIR",
        expose_value=False,
        callback=_choose_folder,
        help=f"Folder of the stack files' project; by default {FOLDER}, else this folder or one above.",
    ),
    click.Option(
        ["-v", "--verbose"],
        is_flag=True,
        expose_value=False,
        callback=_say_more,
        help="Log each call to a cloud, and show where a defect is.",
    ),
    click.Option(
        ["-q", "--quiet"],
        is_flag=True,
        expose_value=False,
        callback=_say_less,
        help="Print results and errors alone, no warnings.",
    ),
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_say_version,
        help="Show the version, for a report.",
    ),
]
main.context_settings = {"help_option_names": ["-h", "--help"], "obj": StackFiles()}

"""The stack of a command: an argument or ``-s``, else ``GPU_FLEET_STACK``, else the only stack there is."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from gpu_fleet_image.core.shared_options import STACK_VARIABLE
from gpu_fleet_stacks.settings import projects, stack_files

NAMED = "gpu-fleet.stack"  # in the context's meta: the value of the flag
AFTER = "--"


def _choose(folder: Path, ctx: click.Context | None) -> None:
    """Look for stack files in a folder until the command has ended; child processes do so too."""
    before = os.environ.get(projects.VARIABLE)
    os.environ[projects.VARIABLE] = str(folder)
    if ctx is not None:
        ctx.call_on_close(lambda: _restore(before))


def _restore(before: str | None) -> None:
    os.environ.pop(projects.VARIABLE)
    if before is not None:
        os.environ[projects.VARIABLE] = before


class StackName(click.ParamType[str]):
    """A stack by name or by the path of its file; a shell completes names.

    A missing file is reported when it is read.
    """

    name = "stack"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of the stack; a path also selects the folder of all other files."""
        path = Path(value).expanduser()
        if len(path.parts) == 1 and not value.endswith(".yaml"):
            return value
        if not path.match(projects.PATTERN):
            self.fail(f"{value!r}: a stack file is named Pulumi.NAME.yaml", param, ctx)
        if not path.is_file():
            self.fail(f"{value!r}: there is no such file", param, ctx)
        _choose(path.absolute().parent, ctx)
        return stack_files.name_of(path)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - the same
        incomplete: str,
    ) -> list[CompletionItem]:
        """Return the stacks whose names begin with the text."""
        return [CompletionItem(name) for name in stack_files.names() if name.startswith(incomplete)]


def stack_argument(command: Callable[..., None], default: str = "") -> Callable[..., None]:
    """Give a command its stack, as the parameter ``name``.

    Args:
        default: the stack if several exist and none is named.
    """

    def chosen(ctx: click.Context, _: click.Parameter, positional: str | None) -> str | None:
        flag = ctx.meta.get(NAMED)
        if positional and flag and positional != flag:
            said = f"two stacks are named, {positional!r} and --stack {flag!r}; name one"
            raise click.UsageError(said, ctx)
        if ctx.resilient_parsing:
            return positional or flag
        return positional or flag or unnamed(ctx, default)

    argument = click.argument("name", metavar="[STACK]", type=StackName(), required=False, callback=chosen)
    return argument(stack_option(command))


def stack_option(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flag ``-s``; its value is in the context's meta under ``NAMED``."""
    return click.option(
        *("-s", "--stack", "named"),
        metavar="STACK",
        type=StackName(),
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, _, value: ctx.meta.update({NAMED: value}),
        help=f"STACK by a flag; by default {STACK_VARIABLE}, else the only stack here.",
    )(command)


def stack_and_word(words: Sequence[str]) -> tuple[str, str | None]:
    """Return the stack and the other word of a command line; the line may have both, either or none.

    Raises click.UsageError if there is a word too many, or no stack.
    """
    ctx = click.get_current_context()
    flag, others = ctx.meta.get(NAMED), list(words)
    if flag is None and others and (len(others) > 1 or others[0] in stack_files.names()):
        flag = others.pop(0)
    if len(others) > 1:
        raise click.UsageError(f"{others[1]!r} is one word too many", ctx)
    return flag or unnamed(ctx), others[0] if others else None


def unnamed(ctx: click.Context, default: str = "") -> str:
    """Return the stack of a command line that names none.

    Raises:
        click.UsageError: there is no single candidate; the message names the stacks that exist.
    """
    from_environment = os.environ.get(STACK_VARIABLE)
    named = StackName().convert(from_environment, None, ctx) if from_environment else ""
    known = stack_files.names()
    if named and known and named not in known:
        said = f"{STACK_VARIABLE} = {from_environment!r}: no such stack; there are {', '.join(known)}"
        raise click.UsageError(said, ctx)
    if named:
        return named
    if len(known) == 1:
        return known[0]
    if default in known:
        return default
    if not known:
        raise click.UsageError(stack_files.missing(), ctx)
    there = f"there are {', '.join(known)}; {STACK_VARIABLE} names one for every command"
    raise click.UsageError(f"STACK is missing: {there}", ctx)


class PassingOn(click.Command):
    """A command that passes the words after ``--`` to another program, as its parameter ``arguments``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before ``--`` and append those after it to ``arguments`` unparsed."""
        own, others = (args, []) if AFTER not in args else (args[: (at := args.index(AFTER))], args[at + 1 :])
        rest = super().parse_args(ctx, own)
        ctx.params["arguments"] = (*ctx.params["arguments"], *others)
        return rest

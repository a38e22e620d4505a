"""The argument STACK of every command: a shell completes it with the stacks there are."""

import click
from click.shell_completion import CompletionItem

from stacks import stack_files


class StackName(click.ParamType[str]):
    """The name of a stack; whether there is such a file, ``stack_files`` says when it is read."""

    name = "stack"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - the same
        incomplete: str,
    ) -> list[CompletionItem]:
        """The stacks whose names begin so."""
        return [CompletionItem(name) for name in stack_files.names() if name.startswith(incomplete)]

"""Stack files of a checkout, for commands that do not import their package; elsewhere there are none."""

from collections.abc import Mapping
from pathlib import Path

import click

from gpu_fleet_image.console import lazy
from gpu_fleet_image.console.errors import CommandNotHereError, is_meant

NAMES = "gpu_fleet_stacks.settings.stack_files:names"
PLACE = "gpu_fleet_stacks.settings.stack_files:place_of"
STACK_NAME = "gpu_fleet_stacks.settings.stack_argument:StackName"
POOLS = "gpu_fleet_stacks.settings.stack_files:pools_of"


class StackFiles:
    """Access to stack files, in click's ``obj``."""

    def names(self) -> list[str]:
        """Return every stack that has a file here; none where the packages that read them are missing."""
        if not lazy.is_here(NAMES):
            return []
        try:
            names = lazy.load(NAMES)
        except CommandNotHereError:  # the wheel without its extra
            return []
        stacks: list[str] = names()
        return stacks

    def name_of(self, text: str, param: click.Parameter | None, ctx: click.Context) -> str:
        """Return the stack that a name means, or the path of a file, whose folder then has the stack files.

        Raises click.BadParameter if the path is of no stack file.
        """
        if Path(text).name == text and not text.endswith(".yaml"):
            return text
        name: str = lazy.load(STACK_NAME)().convert(text, param, ctx)
        return name

    def place(self, name: str) -> Mapping[str, str]:
        """Return cloud, region, account_id and endpoint_url of a stack, from its file.

        Raises gpu_fleet_stacks.core.errors.StacksError if the file is wrong.
        """
        answer: Mapping[str, str] = lazy.load(PLACE)(name)
        return answer

    def pools(self, name: str) -> list[str]:
        """Return the names of a stack's pools, for completion; empty if its file is missing or wrong."""
        if name not in self.names():
            return []
        try:
            names: list[str] = lazy.load(POOLS)(name)
        except Exception as error:
            if is_meant(error):
                return []
            raise
        return names

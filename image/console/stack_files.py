"""The stack files of a checkout, for commands whose rooms know nothing of them; elsewhere there are none."""

from collections.abc import Mapping

from image.console import lazy

NAMES = "stacks.stack_files:names"
PLACE = "stacks.stack_files:place_of"


class StackFiles:
    """What a command finds as click's ``obj``."""

    def names(self) -> list[str]:
        """Every stack that has a file here."""
        found: list[str] = lazy.load(NAMES)() if lazy.is_here(NAMES) else []
        return found

    def place(self, name: str) -> Mapping[str, str]:
        """Cloud, region, account_id and endpoint_url of one of them, by its file.

        Raises:
            stacks.errors.StacksError: the file is wrong.
        """
        found: Mapping[str, str] = lazy.load(PLACE)(name)
        return found

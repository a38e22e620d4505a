"""The Pulumi CLI in a destroy: read the state, delete everything but the excluded resources."""

import subprocess
from collections.abc import Collection, Sequence

from gpu_fleet_stacks.plan_check import deploy, pulumi_command
from gpu_fleet_stacks.settings import projects
from gpu_fleet_stacks.teardown import state
from gpu_fleet_stacks.teardown.errors import TeardownError
from gpu_fleet_stacks.teardown.state import StateResource

# Flags of `pulumi destroy` that change what is deleted -> what to do instead.
REFUSED = {
    "--exclude": "--delete-data selects what is deleted",
    "--exclude-protected": "what is protected is kept anyway",
    "--exclude-dependents": "--delete-data selects what is deleted",
    "--target": "a stack is destroyed whole; edit its file to remove a pool",
    "--target-dependents": "a stack is destroyed whole; edit its file to remove a pool",
    "--ignore-protect": "lift `gpu-fleet:protected` in the stack file",
    "--remove": "what is kept stays in the stack's state; `pulumi stack rm` once it is empty",
    "--message": "the command writes it",
    "--preview-only": "--dry-run of this command shows more",
    "--run-program": "the state alone says what is deleted",
}
LETTERS = {"x": "--exclude", "t": "--target", "m": "--message"}


def refuse(arguments: Sequence[str]) -> None:
    """Refuse flags that would change what the plan decided. Raises StacksError."""
    pulumi_command.refuse(arguments)
    for argument in arguments:
        name = pulumi_command.flag_of(argument, LETTERS)
        if name in REFUSED:
            raise TeardownError(f"{argument!r} after --: not allowed, {REFUSED[name]}")


class Engine:
    """One stack in the backend that the operator is logged in to.

    Args:
        arguments: further flags of ``pulumi destroy``.
        message: the backend keeps it beside each update.

    Raises:
        StacksError: the CLI is missing.
    """

    def __init__(self, stack: str, arguments: Sequence[str], message: str) -> None:
        self._executable = pulumi_command.cli()
        self._stack, self._arguments, self._message = stack, tuple(arguments), message

    def resources(self) -> tuple[StateResource, ...]:
        """Return the resources in the state. Raises TeardownError."""
        asked = [self._executable, "stack", "export", "--stack", self._stack]
        done = subprocess.run(asked, cwd=projects.root(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise TeardownError(f"the state of {self._stack} cannot be read: {done.stderr.strip()}")
        return state.read(done.stdout)

    def command(self, exclude: Collection[str]) -> list[str]:
        """Return the ``pulumi destroy`` command that keeps some resources and what they depend on."""
        excluded = [part for urn in sorted(exclude) for part in ("--exclude", urn)]
        own = ["--stack", self._stack, "--yes", "--message", self._message]
        return [self._executable, "destroy", *own, *excluded, *self._arguments]

    def destroy(self, exclude: Collection[str]) -> None:
        """Delete everything but some resources and what they depend on.

        Raises:
            TeardownError: the command failed; the CLI has printed the reason.
        """
        code = deploy.to_its_end(self.command(exclude), projects.root())
        if code:
            raise TeardownError(
                f"`pulumi destroy` ended with exit code {code}, its reason is above; the remaining resources"
                f" are in the stack's state, and `gpu-fleet destroy {self._stack}` continues from there"
            )

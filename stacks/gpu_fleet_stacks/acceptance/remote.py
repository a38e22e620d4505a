"""Runs of scripts on an instance, to their end."""

from gpu_fleet_stacks.acceptance.account import CommandOutput
from gpu_fleet_stacks.acceptance.errors import NotReachableError, StepError
from gpu_fleet_stacks.acceptance.runner import AcceptanceRun

MISSING = 3  # exit code of a script of on_instance: what it prints does not exist yet
LOOK_EVERY_S = 5.0
KNOWN_AFTER_S = 1.0  # an invocation can be read a moment after its command


def ask(run: AcceptanceRun, instance: str, script: str, poll_s: float = LOOK_EVERY_S) -> CommandOutput:
    """Run a script on an instance to its end; wait while the instance's agent has not registered."""

    def sent() -> str | None:
        try:
            return run.account.run(instance, script)
        except NotReachableError:
            return None

    command = run.wait(f"{instance} to take commands", sent)
    run.clock.sleep(KNOWN_AFTER_S)
    return run.wait(f"the answer of {instance}", lambda: run.account.said(command, instance), poll_s)


def ordered(run: AcceptanceRun, instance: str, script: str, what: str) -> CommandOutput:
    """Run a script that must succeed, as ``ask`` does. Raises StepError if its exit code is not 0."""
    said = ask(run, instance, script)
    if said.code != 0:
        raise StepError(f"{what} on {instance}: exit code {said.code}: {(said.error or said.output)[-800:]}")
    return said


def there(run: AcceptanceRun, instance: str, script: str, what: str) -> str:
    """Run the script again until its output exists; return the output."""

    def look() -> str | None:
        said = ask(run, instance, script)
        if said.code == MISSING:
            return None
        if said.code != 0:
            raise StepError(
                f"{what} on {instance}: exit code {said.code}: {(said.error or said.output)[-800:]}"
            )
        return said.output

    return run.wait(f"{what} on {instance}", look)

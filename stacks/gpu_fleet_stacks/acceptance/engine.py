"""The Pulumi CLI in an acceptance run: up, outputs, destroy; no command asks a question."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from gpu_fleet_stacks.acceptance.errors import AcceptanceError, EngineError
from gpu_fleet_stacks.core.signals import interruption_after
from gpu_fleet_stacks.plan_check import policy_pack
from gpu_fleet_stacks.plan_check.pulumi_command import CLI_ADVICE

# The user's own commands. `up` runs every pass that the provider needs, each checked as for users.
# `destroy` drains instances, deletes data by name, and deletes the key last.
UP = (sys.executable, "-m", "gpu_fleet_image.console", "up")
DESTROY = (sys.executable, "-m", "gpu_fleet_image.console", "destroy")
# pulumi.com/docs/iac/cli/commands/pulumi_up
ASK_NOTHING = ("--", "--yes", "--skip-preview", "--non-interactive", "--color=never")
ALL_OF_IT = (
    *("--yes", "--delete-data", "all", "--terminate-stopped"),
    *("--ignore-holds", "the acceptance run is over"),
)
LAST_LINES = 25
# After SIGINT the CLI waits for the operations under way (pulumi.com/docs/iac/cli/commands/pulumi_cancel).
PATIENCE_S = 300


class StackEngine(Protocol):
    """Engine that deploys one stack and destroys it; every method raises ``EngineError``."""

    def version(self) -> str:
        """Return the engine's version."""

    def up(self, timeout_s: float) -> None:
        """Deploy the stack."""

    def outputs(self) -> dict[str, Any]:
        """Return the stack's exports, by name."""

    def destroy(self, timeout_s: float) -> None:
        """Delete everything that the stack made; do nothing if there is no such stack."""

    def forget(self) -> None:
        """Remove the empty stack from the backend."""


class PulumiCli:
    """The CLI, run in the project with the operator's backend and credentials.

    Each command leads a session of its own, so a terminal's Ctrl-C reaches only this process, which passes it
    on. The first Ctrl-C ends ``up``; ``gpu-fleet destroy`` ends at the second.

    Args:
        root: the project, which holds Pulumi.yaml.
        stack: the stack's name; its file is in the project.
    """

    def __init__(self, root: Path, stack: str, log: Path) -> None:
        self._root, self._stack, self._log = root, stack, log

    def version(self) -> str:
        """Return the CLI's version, ``v3.260.0``."""
        return self._captured("version").strip()

    def up(self, timeout_s: float) -> None:
        """Run ``gpu-fleet up``, with the policy pack where it is installed."""
        policy = [] if policy_pack.of_project(self._root).python.exists() else ["--no-policy"]
        self._logged([*UP, self._stack, *policy, *ASK_NOTHING], timeout_s)

    def outputs(self) -> dict[str, Any]:
        """Return ``pulumi stack output --json``."""
        outputs: dict[str, Any] = json.loads(
            self._captured("stack", "output", "--json", "--stack", self._stack)
        )
        return outputs

    def destroy(self, timeout_s: float) -> None:
        """Run ``gpu-fleet destroy`` after lifting the lock of an interrupted update."""
        if not self._known():
            return
        self._run(["cancel", "--yes", "--stack", self._stack], timeout_s, may_fail=True)
        self._logged([*DESTROY, self._stack, *ALL_OF_IT], timeout_s, patient=True)

    def forget(self) -> None:
        """Run ``pulumi stack rm``; Pulumi refuses it while resources are left."""
        if self._known():
            # https://www.pulumi.com/docs/iac/cli/commands/pulumi_stack_rm/
            self._run(["stack", "rm", "--yes", "--preserve-config", self._stack], PATIENCE_S)

    def _known(self) -> bool:
        listed = json.loads(self._captured("stack", "ls", "--json"))
        return any(stack["name"].rpartition("/")[2] == self._stack for stack in listed)

    def _captured(self, *arguments: str) -> str:
        command = [self._executable(), *arguments]
        done = subprocess.run(command, cwd=self._root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EngineError(
                f"pulumi {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout

    def _run(self, arguments: list[str], timeout_s: float, *, may_fail: bool = False) -> None:
        """Run one command of the CLI to its end."""
        command = [self._executable(), *arguments, "--non-interactive", "--color", "never"]
        self._logged(command, timeout_s, may_fail=may_fail)

    def _logged(
        self, command: Sequence[str], timeout_s: float, *, patient: bool = False, may_fail: bool = False
    ) -> None:
        """Run a command to its end, its time limit or Ctrl-C; a patient command ends at the second Ctrl-C."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            log.flush()
            process = self._started(command, log)
            code = _ended(process, timeout_s, patient=patient)
        if code and not may_fail:
            raise EngineError(f"{' '.join(command)}: {code}; the end of {self._log}:\n{self._tail()}")

    def _started(self, command: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start a command; a Ctrl-C meanwhile interrupts it before it is raised here."""
        process: subprocess.Popen[bytes] | None = None
        try:
            with interruption_after():
                process = subprocess.Popen(
                    command,
                    cwd=self._root,
                    env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except KeyboardInterrupt:
            if process is not None:
                _interrupt(process)
            raise
        return process

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LAST_LINES:])

    @staticmethod
    def _executable() -> str:
        program = shutil.which("pulumi")
        if program is None:
            raise AcceptanceError(CLI_ADVICE)
        return program


def _ended(process: "subprocess.Popen[bytes]", timeout_s: float, *, patient: bool) -> str:
    """Wait for the CLI; return an empty text when it succeeded, else the failure.

    Raises:
        KeyboardInterrupt: at the first Ctrl-C, or at the second for a patient command; the CLI has ended.
    """
    try:
        try:
            code = process.wait(timeout_s)
        except KeyboardInterrupt:
            if not patient:
                raise
            code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        _interrupt(process)
        return f"not done after {timeout_s:.0f} s"
    except KeyboardInterrupt:
        _interrupt(process)
        raise
    return f"exit code {code}" if code else ""


def _interrupt(process: "subprocess.Popen[bytes]") -> None:
    """Ask the CLI to stop as Ctrl-C does; it finishes its operations, so that its state stays correct."""
    os.killpg(process.pid, signal.SIGINT)  # to the whole group, as a terminal does
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

"""Run ``pulumi preview`` and ``pulumi up`` so that no data is lost and every pass is made."""

import json
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import click

from stacks.alicloud import first_pass
from stacks.calls import oss
from stacks.calls.alicloud import Alicloud
from stacks.guard import first_values
from stacks.guard.errors import PlanError
from stacks.guard.losses import hold
from stacks.guard.plan import REPLACES, PlanStep, errors, parse
from stacks.settings import Cloud, Stack

# Flags of `pulumi up` that `pulumi preview --json` knows not, or that would bend its output.
NOT_OF_A_PLAN = {
    "--yes",
    "--skip-preview",
    "--continue-on-error",
    "--json",
    "--diff",
    "--save-plan",
    "--plan",
}
LETTERS_NOT_OF_A_PLAN = "yfj"
TAKE_A_VALUE = "mptv"  # --message, --parallel, --target, --verbose: the rest of the word, or the next one
OBJECT = "alicloud:oss/bucketObject:BucketObject"
UPLOADS = REPLACES | {"create", "update"}
# It would print events instead of the one digest.
STREAMING = "PULUMI_ENABLE_STREAMING_JSON_PREVIEW"


@dataclass(frozen=True)
class Deployment:
    """One stack at the CLI.

    Attributes:
        stack: its checked settings.
        environ: of every run of the CLI.
        arguments: flags that a user hands to the CLI.
    """

    executable: str
    stack: Stack
    root: Path
    environ: Mapping[str, str]
    arguments: Sequence[str] = ()

    def plan(self) -> tuple[PlanStep, ...]:
        """What an ``up`` would do now.

        Raises:
            PlanError: Pulumi made no plan; its own words.
        """
        wanted = plan_arguments(self.arguments)
        asked = [self.executable, "preview", "--stack", self.stack.name, "--json", *wanted]
        environ = {key: value for key, value in self.environ.items() if key != STREAMING}
        done = subprocess.run(
            asked, cwd=self.root, env=environ, stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            said = "\n".join(errors(done.stdout)) or done.stdout.strip()[-2000:] or "it gives no reason"
            raise PlanError(f"`pulumi preview` failed, and nothing was touched:\n{said}")
        return parse(done.stdout)

    def run(self, command: str, *more: str, stages: Mapping[str, str] | None = None) -> int:
        """Run ``preview`` or ``up`` for a user to see; returns its exit code."""
        environ = dict(self.environ)
        if stages:
            environ[first_pass.VARIABLE] = json.dumps(stages)
        asked = [self.executable, command, "--stack", self.stack.name, *more, *self.arguments]
        return to_its_end(asked, self.root, environ)

    def output(self, name: str) -> Any:
        """One output of the deployed stack.

        Raises:
            PlanError: there is none.
        """
        asked = [self.executable, "stack", "output", name, "--json", "--stack", self.stack.name]
        done = subprocess.run(
            asked, cwd=self.root, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PlanError(f"the stack has no output {name}: {done.stderr.strip()}")
        return json.loads(done.stdout)


def to_its_end(command: Sequence[str], root: Path, environ: Mapping[str, str] | None = None) -> int:
    """Run the CLI until it ends by itself, in this environment or another; gives its exit code.

    A Ctrl-C reaches it too: it finishes what is under way, and writes its state. ``subprocess.run`` would
    kill it a quarter of a second later, and leave operations that nobody knows the end of. It is heard by a
    handler and not as KeyboardInterrupt, which could come while the CLI is being started, and leave it alone.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as in the background of a script, where the CLI ignores it too
        signal.signal(signal.SIGINT, _wait_on)
    try:
        return subprocess.Popen(command, cwd=root, env=environ).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_on(_number: int, _frame: FrameType | None) -> None:
    click.echo("waiting for Pulumi to finish what is under way; Ctrl-C again stops it at once", err=True)


def uploads(step: PlanStep) -> bool:
    """Whether a step of the plan sends an object to OSS: the payload, a recipe, a baked disk."""
    return step.type == OBJECT and step.op in UPLOADS


def plan_arguments(arguments: Sequence[str]) -> list[str]:
    """The flags of an ``up`` that its plan takes too; of letters in one word, those that are left."""
    kept: list[str] = []
    for word in arguments:
        if word.startswith("--") or not word.startswith("-"):
            if word.partition("=")[0] not in NOT_OF_A_PLAN:
                kept.append(word)
            continue
        letters = word[1:]
        flags = letters[
            : next((at for at, letter in enumerate(letters) if letter in TAKE_A_VALUE), len(letters))
        ]
        rest = letters[len(flags) :]
        left = "".join(flag for flag in flags if flag not in LETTERS_NOT_OF_A_PLAN) + rest
        if left:
            kept.append(f"-{left}")
    return kept


def preview(deployment: Deployment, *more: str, replace: Collection[str] = ()) -> int:
    """Show what ``up`` would change; returns the CLI's exit code.

    Raises:
        ReplacementError: it would lose data; after the whole change was shown.
        PlanError: there is no plan.
    """
    code = deployment.run("preview", *more)
    if code == 0:
        hold(deployment.plan(), replace)
    return code


def up(
    deployment: Deployment,
    *more: str,
    replace: Collection[str] = (),
    connect: Callable[[str, Mapping[str, str]], first_values.AlicloudCalls] = Alicloud,
    hold_upload: Callable[[str, Mapping[str, str]], None] = oss.hold_upload,
) -> int:
    """Create or update the stack, in as many passes as its resources take; returns the CLI's exit code.

    Each pass is a ``pulumi up`` of its own, so whatever stops one, the next run goes on where it stopped.

    Args:
        more: flags for every ``pulumi up``.
        replace: logical names of what may be lost.
        connect: from region and environment to what asks Alibaba Cloud.
        hold_upload: refuses what OSS would refuse in its midst.

    Raises:
        ReplacementError: it would lose data; nothing was touched.
        PlanError: there is no plan.
        StacksError: it uploads to an endpoint of OSS that is shut; nothing was touched.
        CannotCheckError: a first value could not be reported.
    """
    steps = deployment.plan()
    hold(steps, replace)
    if deployment.stack.cloud is Cloud.ALICLOUD and any(uploads(step) for step in steps):
        hold_upload(deployment.stack.region, deployment.environ)
    before = first_pass.passes(steps) if deployment.stack.cloud is Cloud.ALICLOUD else ()
    values = first_pass.first_values(steps) if before else ()
    for number, stages in enumerate(before, start=1):
        click.echo(f"pass {number} of {len(before) + 1}: {', '.join(sorted(stages))}", err=True)
        code = deployment.run("up", *more, stages=stages)
        if code:
            return code
        if values and number == 1:
            cloud = connect(deployment.stack.region, deployment.environ)
            group = str(deployment.output("monitor_group_id"))
            first_values.report(cloud, group, deployment.stack.account_id, values)
    if before:
        click.echo(f"pass {len(before) + 1} of {len(before) + 1}: all of it", err=True)
    return deployment.run("up", *more)

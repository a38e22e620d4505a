"""Run ``pulumi preview`` and ``pulumi up`` so that no data is lost and every pass is run."""

import json
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from gpu_fleet_image.core.shared_options import note
from gpu_fleet_stacks.alicloud import first_pass
from gpu_fleet_stacks.clients import oss
from gpu_fleet_stacks.clients.alicloud import Alicloud
from gpu_fleet_stacks.plan_check import first_values
from gpu_fleet_stacks.plan_check.errors import PlanError
from gpu_fleet_stacks.plan_check.losses import hold
from gpu_fleet_stacks.plan_check.plan import REPLACES, PlanStep, errors, parse
from gpu_fleet_stacks.settings import Cloud, Stack

# Flags of `pulumi up` that `pulumi preview --json` does not have, or that would change its output.
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
# With this variable the preview would print events instead of one digest.
STREAMING = "PULUMI_ENABLE_STREAMING_JSON_PREVIEW"


@dataclass(frozen=True)
class Deployment:
    """One stack for the CLI."""

    executable: str
    stack: Stack
    root: Path
    environ: Mapping[str, str]
    arguments: Sequence[str] = ()

    def plan(self) -> tuple[PlanStep, ...]:
        """Return what an ``up`` would do now.

        Raises:
            PlanError: Pulumi made no plan; the message is Pulumi's own.
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
        """Run ``preview`` or ``up`` with its output shown to the user; return its exit code."""
        environ = dict(self.environ)
        if stages:
            environ[first_pass.VARIABLE] = json.dumps(stages)
        asked = [self.executable, command, "--stack", self.stack.name, *more, *self.arguments]
        return to_its_end(asked, self.root, environ)

    def output(self, name: str) -> Any:
        """Return one output of the deployed stack. Raises PlanError if there is none."""
        asked = [self.executable, "stack", "output", name, "--json", "--stack", self.stack.name]
        done = subprocess.run(
            asked, cwd=self.root, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PlanError(f"the stack has no output {name}: {done.stderr.strip()}")
        return json.loads(done.stdout)


def to_its_end(command: Sequence[str], root: Path, environ: Mapping[str, str] | None = None) -> int:
    """Run the CLI until it ends by itself, in this environment or another; return its exit code.

    A Ctrl-C reaches the CLI too: it finishes its operations and writes its state. ``subprocess.run`` would
    kill it a quarter of a second later and leave operations in an unknown state. A signal handler receives
    the Ctrl-C here, since a KeyboardInterrupt could be raised while the CLI starts, and leave it without a
    parent.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # a script's background job ignores the signal, and so does the CLI
        signal.signal(signal.SIGINT, _wait_on)
    try:
        return subprocess.Popen(command, cwd=root, env=environ).wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _wait_on(_number: int, _frame: FrameType | None) -> None:
    note("waiting for Pulumi to finish its running operations; Ctrl-C again stops it at once")


def uploads(step: PlanStep) -> bool:
    """Return whether a step of the plan sends an object to OSS: the payload, a recipe, a baked disk."""
    return step.type == OBJECT and step.op in UPLOADS


def plan_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the flags of an ``up`` that its plan accepts; combined short flags keep allowed letters."""
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
    """Show what ``up`` would change; return the CLI's exit code.

    Raises:
        ReplacementError: it would lose data; raised after the whole change was shown.
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
    """Create or update the stack in as many passes as its resources need; return the CLI's exit code.

    Each pass is its own ``pulumi up``, so the next run continues where a stopped one ended.

    Args:
        more: flags for every ``pulumi up``.
        replace: logical names of resources that may be lost.
        connect: (region, environment) -> client of Alibaba Cloud.
        hold_upload: refuses an upload that OSS would refuse later.

    Raises:
        ReplacementError: it would lose data; nothing was touched.
        PlanError: there is no plan.
        StacksError: it uploads to an endpoint of OSS that is forbidden; nothing was touched.
        CannotCheckError: a first value could not be reported.
    """
    steps = deployment.plan()
    hold(steps, replace)
    if deployment.stack.cloud is Cloud.ALICLOUD and any(uploads(step) for step in steps):
        hold_upload(deployment.stack.region, deployment.environ)
    before = first_pass.passes(steps) if deployment.stack.cloud is Cloud.ALICLOUD else ()
    values = first_pass.first_values(steps) if before else ()
    for number, stages in enumerate(before, start=1):
        note(f"pass {number} of {len(before) + 1}: {', '.join(sorted(stages))}")
        code = deployment.run("up", *more, stages=stages)
        if code:
            return code
        if values and number == 1:
            cloud = connect(deployment.stack.region, deployment.environ)
            group = str(deployment.output("monitor_group_id"))
            first_values.report(cloud, group, deployment.stack.account_id, values)
    if before:
        note(f"pass {len(before) + 1} of {len(before) + 1}: the whole stack")
    return deployment.run("up", *more)

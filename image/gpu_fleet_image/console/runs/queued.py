"""``gpu-fleet submit`` on a stack with a queue: the run becomes a job of Slurm's.

It is said on an instance of the stack, in a folder of the shared homes: every instance of the run finds its
files there, under the same path.
"""

import grp
import os
import pwd
import re
import string
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath

import click

from gpu_fleet_image.console.runs.batch import JobScript, script
from gpu_fleet_image.console.runs.refusals import QueueRecords, never_runs, records
from gpu_fleet_image.core import queue_file
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, nearest
from gpu_fleet_image.core.runs import run_name

HOMES = Path("/home")
CONFIG = ".toml"
PYTHON, SHELLS = re.compile(r"python[\d.]*"), ("bash", "dash", "sh", "zsh")
TIMEOUT_S = 60
# the group of everybody in access.people (image/gpu_fleet_image/instance/accounts/changes.py)
USERS_GROUP = "gpu-fleet-users"
SILENT = "the queue's controller does not answer: it comes back within minutes, with all jobs; try again then"
HELP = {
    "Unable to contact slurm controller": SILENT,
    "connect failure": SILENT,
}
PLAIN = frozenset(
    string.ascii_letters + string.digits + "/._+-"
)  # what no shell and no line of sbatch's reads


@dataclass(frozen=True)
class QueuedRun:
    """What a user submits.

    Attributes:
        words: a configuration with its overrides, or a command.
        flags: of the trainer.
        checkpoints: the folder that a command keeps, or empty.
        qos: ``low`` for a run that gives way to others; empty for none.
    """

    words: Sequence[str]
    pool: str
    nodes: int
    flags: Sequence[str]
    checkpoints: str
    qos: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of ``python -m gpu_fleet`` on each instance."""
        if self.words[0].endswith(CONFIG):
            return ("launch", *self.words, *self.flags)
        kept = ("--checkpoints", self.checkpoints) if self.checkpoints else ()
        return ("run", *kept, "--", *self.words)


def submit_to_queue(policy: Policy, run: QueuedRun, refused: Sequence[str], *, dry_run: bool) -> None:
    """Hand the run to Slurm, as the account that calls.

    Args:
        refused: flags that were given and mean nothing here.
        dry_run: show the script alone.

    Raises:
        ConfigurationError: what is wrong with it, or what Slurm says.
    """
    folder = Path.cwd()
    batch = described(policy, run, refused, folder, datetime.now(UTC))
    text = script(batch)
    if dry_run:
        click.echo(text, nl=False)
        return
    if not queue_file.path().is_file():
        where = f"--stack {policy.stack}"
        raise ConfigurationError(
            f"stack {policy.stack!r} has a queue: submit on one of its instances, in a folder of your home, "
            f"which they share: gpu-fleet connect INSTANCE {where} (gpu-fleet status {where} lists them). "
            f"Where none runs gpu-fleet take {run.pool} --hours 1 {where} brings one. From here you see and "
            "end runs: gpu-fleet runs, logs, cancel"
        )
    if set(str(folder)) - PLAIN:
        raise ConfigurationError(
            f"{folder}: allowed in a folder of the queue: letters, digits and any of / . _ + -"
        )
    if not folder.is_relative_to(HOMES):
        raise ConfigurationError(
            f"{folder}: not below {HOMES}, which every instance of the run shares; move it there"
        )
    if (
        problem := unreadable(run.words[0], folder)
        or missing(run.words, folder)
        or without_account(own_account())
    ):
        raise ConfigurationError(problem)
    if problem := never_runs(batch, own_account(), heard(), datetime.now(UTC)):
        raise ConfigurationError(problem)
    said = handed_over(text)
    click.echo(
        f"{said}: gpu-fleet runs shows it, its output goes to {batch.log.replace('%j', said.split()[-1])}"
    )


def heard() -> QueueRecords:
    """What the stack says of teams and money; nothing of it keeps a job from a queue that would run it."""
    try:
        return records()
    except (CloudError, InstanceError) as error:
        click.echo(f"neither the budget nor the team's limit was looked at: {error}", err=True)
        return QueueRecords(None, None)


def described(
    policy: Policy, run: QueuedRun, refused: Sequence[str], folder: Path, now: datetime
) -> JobScript:
    """The job. Pure.

    Raises:
        ConfigurationError: no such pool, more instances than it may have, or flags that mean nothing here.
    """
    if refused:
        raise ConfigurationError(
            f"{', '.join(refused)}: not on a stack with a queue, which chooses the instances"
        )
    pool = policy.pools.get(run.pool)
    capacity = pool.capacity if pool else None
    if capacity is None or capacity.queue_gpus is None:
        raise ConfigurationError(
            f"--pool {run.pool!r}: no pool of the queue; there are {', '.join(policy.pools)}"
            f"{nearest(run.pool, policy.pools)}"
        )
    if run.nodes > capacity.max_size:
        raise ConfigurationError(f"--nodes {run.nodes}: size.max of pool {run.pool!r} is {capacity.max_size}")
    name = run_name(run.words[0].removesuffix(CONFIG), now)
    return JobScript(
        name,
        run.pool,
        run.nodes,
        capacity.queue_gpus,
        str(folder),
        str(folder / f"{name}-%j.log"),
        run.arguments,
        run.qos,
    )


def own_account() -> str:
    """Of this process, as Slurm sees it: variables of the environment may name another."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def unreadable(word: str, folder: Path) -> str:
    """Why the instances of a run could not read its configuration; empty where they can, or there is none."""
    if not word.endswith(CONFIG):
        return ""
    file = (folder / word).resolve()
    if not file.is_file():
        return f"CONFIG {word}: no such file in {folder}"
    if not file.is_relative_to(HOMES):
        return f"CONFIG {word}: {file} is not below {HOMES}, which the run's instances share; move it there"
    if not os.access(file, os.R_OK):
        return f"CONFIG {word}: {file} may not be read by account {own_account()}"
    return ""


def missing(words: Sequence[str], folder: Path) -> str:
    """Why no instance could start a command: its own program is not there; empty where it may be."""
    starts = PurePath(words[0]).name
    is_behind = PYTHON.fullmatch(starts) is not None or starts in SHELLS
    program = words[0] if "/" in words[0] else words[1] if is_behind and len(words) > 1 else ""
    if not program or program.startswith("-") or (folder / program).exists():
        return ""
    return f"{program!r} of COMMAND: no such file in {folder}; allowed: one that the run's instances share"


def without_account(account: str) -> str:
    """Why a job of this account could run on no other instance; empty where it can."""
    try:
        members = grp.getgrnam(USERS_GROUP).gr_mem
    except KeyError:
        members = []
    if account in members:
        return ""
    return (
        f"account {account}: none of access.people, so other instances do not know it: submit as your own "
        "(gpu-fleet connect), or ask who keeps the stack's file for one"
    )


def refused(words: str) -> str:
    """What sbatch said, and what to do about it where that is known."""
    said = words.strip().removeprefix("sbatch: error: ")
    helps = next((text for part, text in HELP.items() if part in said), "")
    return f"sbatch: {said}" + (f"; {helps}" if helps else "")


def handed_over(text: str) -> str:
    """What sbatch answers, ``Submitted batch job 7``.

    Raises:
        ConfigurationError: what it says is wrong.
    """
    try:
        done = subprocess.run(
            ["sbatch"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            env=os.environ,
        )
    except FileNotFoundError as error:
        raise ConfigurationError(
            "sbatch: not on this instance: Slurm comes with the queue's first boot steps "
            "(systemctl status gpu-queue-node says how far they are)"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"sbatch: {error}") from error
    if done.returncode != 0:
        raise ConfigurationError(refused(done.stderr))
    return done.stdout.strip()

"""``gpu-fleet submit`` on a stack with a queue: the run becomes a Slurm job.

It runs on an instance of the stack, in a folder of the shared homes: every instance of the run finds its
files there, under the same path.
"""

import grp
import os
import pwd
import re
import string
import subprocess
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path, PurePath

import click

from gpu_fleet_image.console.runs.batch import JobScript, script
from gpu_fleet_image.console.runs.refusals import QueueRecords, never_runs, records
from gpu_fleet_image.core import queue_file
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, nearest
from gpu_fleet_image.core.runs import run_name
from gpu_fleet_image.core.shared_options import note

HOMES = Path("/home")
CONFIG = ".toml"
# As in training/gpu_fleet_jobs/submitted/command_line.py: options whose value is a file to read.
CONFIG_OPTION = re.compile(r"--(?:deepspeed[-_])?config(?:[-_]file)?")
CONFIG_FILE = re.compile(r"[\w.-][\w./-]*\.(?:json|toml|ya?ml)")
PYTHON, SHELLS = re.compile(r"python[0-9.]*"), ("bash", "dash", "sh", "zsh")
TIMEOUT_S = 60
# the group of all users in access.people (image/gpu_fleet_image/instance/accounts/changes.py)
USERS_GROUP = "gpu-fleet-users"
SILENT = "the queue's controller does not answer: it returns within minutes, with all jobs; try again then"
HELP = {
    "Unable to contact slurm controller": SILENT,
    "connect failure": SILENT,
}
PLAIN = frozenset(
    string.ascii_letters + string.digits + "/._+-"
)  # characters without a meaning in a shell or in a line of sbatch


@dataclass(frozen=True)
class QueuedRun:
    """A user's submission.

    Attributes:
        checkpoints: a command's checkpoint folder, or empty.
        qos: ``low`` for a run that others preempt; empty for none.
    """

    words: Sequence[str]
    pool: str
    nodes: int
    flags: Sequence[str]
    checkpoints: str
    qos: str = ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of ``python -m gpu_fleet`` on each instance."""
        if self.words[0].endswith(CONFIG):
            return ("launch", *self.words, *self.flags)
        kept = ("--checkpoints", self.checkpoints) if self.checkpoints else ()
        return ("run", *kept, "--", *self.words)


def submit_to_queue(policy: Policy, run: QueuedRun, refused: Sequence[str], *, dry_run: bool) -> None:
    """Submit the run to Slurm, as the calling account.

    Args:
        refused: given flags that have no meaning here.
        dry_run: only show the script.

    Raises:
        ConfigurationError: the run is wrong, or Slurm refuses it.
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
            f"If none runs: gpu-fleet take {run.pool} --hours 1 {where}. From here you can see and "
            "cancel runs: gpu-fleet runs, logs, cancel"
        )
    if set(str(folder)) - PLAIN:
        raise ConfigurationError(
            f"{folder}: allowed in the name of a folder: letters, digits and any of / . _ + -"
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
    """Return the stack's records of teams and budget.

    An error here never blocks a job that the queue would run.
    """
    try:
        return records()
    except (CloudError, InstanceError) as error:
        note(f"neither the budget nor the team's limit was checked: {error}")
        return QueueRecords(None, None)


def described(
    policy: Policy, run: QueuedRun, refused: Sequence[str], folder: Path, now: datetime
) -> JobScript:
    """Return the job. Pure.

    Raises ConfigurationError if there is no such pool, it may not grow so far, or a flag has no meaning here.
    """
    if refused:
        raise ConfigurationError(
            f"{', '.join(refused)}: not allowed on a stack with a queue, which chooses the instances"
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
    """Return this process's account as Slurm sees it; environment variables may name another."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def unreadable(word: str, folder: Path) -> str:
    """Return why the instances of a run could not read its configuration, which is there.

    Empty if they can, or without one.
    """
    if not word.endswith(CONFIG):
        return ""
    file = (folder / word).resolve()
    if not file.is_relative_to(HOMES):
        return f"CONFIG {word}: {file} is not below {HOMES}, which the run's instances share; move it there"
    if not os.access(file, os.R_OK):
        return f"CONFIG {word}: {file} may not be read by account {own_account()}"
    return ""


def missing(words: Sequence[str], folder: Path) -> str:
    """Return why no instance could run a command: a file is missing, its code is wrong; else empty."""
    starts = PurePath(words[0]).name
    is_python = PYTHON.fullmatch(starts) is not None
    is_behind = is_python or starts in SHELLS
    program = words[0] if "/" in words[0] else words[1] if is_behind and len(words) > 1 else ""
    if is_python and program == "-c" and words[2:]:
        return _not_python(words[2])
    needed = [program] if program and not program.startswith("-") else []
    # a program may know the folder of its configurations
    needed += [name for name in _configs(words) if not any(folder.glob(f"*/{name}"))]
    lacking = [name for name in needed if not (folder / name).exists()]
    if not lacking:
        return ""
    return f"{lacking[0]!r} of COMMAND: no such file in {folder}; allowed: one that the run's instances share"


def _configs(words: Sequence[str]) -> list[str]:
    """Return the values of options for configuration files; none of a shell, which may make them."""
    if PurePath(words[0]).name in SHELLS:
        return []
    pairs = [*pairwise(words), *((name, value) for name, _, value in (word.partition("=") for word in words))]
    return [value for name, value in pairs if CONFIG_OPTION.fullmatch(name) and CONFIG_FILE.fullmatch(value)]


def _not_python(code: str) -> str:
    """Return the syntax error of Python code, which is not run; empty for none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "-c", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"-c {code!r} of COMMAND: no Python can read it: {error}"
    except (MemoryError, RecursionError, ValueError):
        return ""  # too deep for this computer's
    return ""


def without_account(account: str) -> str:
    """Return why a job of this account could run on no other instance; empty if it can."""
    try:
        members = grp.getgrnam(USERS_GROUP).gr_mem
    except KeyError:
        members = []
    if account in members:
        return ""
    return (
        f"account {account} is not in access.people, so other instances do not have it: submit as your own "
        "(gpu-fleet connect), or ask the owner of the stack file to add it"
    )


def refused(words: str) -> str:
    """Return sbatch's error, with the remedy if it is known."""
    said = words.strip().removeprefix("sbatch: error: ")
    helps = next((text for part, text in HELP.items() if part in said), "")
    return f"sbatch: {said}" + (f"; {helps}" if helps else "")


def handed_over(text: str) -> str:
    """Submit a script to sbatch; return its reply, ``Submitted batch job 7``.

    Raises:
        ConfigurationError: sbatch's error.
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
            "sbatch is not on this instance: the queue's first boot steps install Slurm "
            "(systemctl status gpu-queue-node shows their progress)"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigurationError(f"sbatch: {error}") from error
    if done.returncode != 0:
        raise ConfigurationError(refused(done.stderr))
    return done.stdout.strip()

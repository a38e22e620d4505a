"""``gpu-fleet submit``: start a run on the user's instances; on a stack with a queue, a job of it."""

import hashlib
import importlib
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from gpu_fleet_image.console.runs.bucket import RunBucket, run_bucket
from gpu_fleet_image.console.runs.choice import LONGEST_START, Criteria, account_name, choose
from gpu_fleet_image.console.runs.queued import QueuedRun, submit_to_queue
from gpu_fleet_image.console.users.take import Desk, acquire, caller_of, open_desk, refusal
from gpu_fleet_image.core.capacity import LONGEST_HOURS
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.options import POOL_NAME, stack_options
from gpu_fleet_image.core.place import Asked, subject
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.runs import OVER, Job, Member, Phase, overall, parameters, run_name
from gpu_fleet_image.core.shared_options import FiniteRange, inert
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.slurm.configuration import LOW, NORMAL

LOOK_EVERY_S = 3.0
MOST_NAMED = 10  # files in one line
MOST_NODES = 50  # instances of one command (Systems Manager, API SendCommand)
EXIT_FAILED = 1


def module(cloud: str) -> ModuleType:
    """Return the module that starts runs on a cloud: ``send``, ``request`` and ``addresses``."""
    return importlib.import_module(f"gpu_fleet_image.console.runs.{cloud}")


@dataclass(frozen=True)
class Packed:
    """Result of ``gpu_fleet pack`` for a configuration or a command.

    Attributes:
        arguments: of ``python -m gpu_fleet`` on the instances.
        left_out: files of an included folder that are not uploaded.
        secrets: uploaded files that look like secrets.
        elsewhere: uploaded modules from outside of the run's folder.
    """

    archive: bytes
    arguments: tuple[str, ...]
    directory: str
    title: str
    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


def _not_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """Return an option's value; refuse an empty one, as from `--branch "$NAME"` of an unset NAME."""
    if value == "":
        raise click.BadParameter("is empty", ctx, param)
    return value or ""


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExamples:\n  gpu-fleet submit digits.toml --pool dev --stack aws-dev "
    "--include data/digits\n  gpu-fleet submit --pool dev --stack aws-dev -- python train.py --lr 0.1",
)
@click.argument("words", metavar="CONFIG|COMMAND", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--pool", type=POOL_NAME, metavar="NAME", required=True, help="Pool of the instances.")
@click.option(
    "--nodes", type=click.IntRange(1, MOST_NODES), default=1, show_default=True, help="Number of instances."
)
@click.option(
    "--instance", "named", multiple=True, metavar="ID", help="An instance that you took; may be repeated."
)
@click.option(
    "--hours",
    type=FiniteRange(0, LONGEST_HOURS, min_open=True),
    help="Keep newly taken instances for so long; by default only the idle rules apply.",
)
@click.option("--include", multiple=True, metavar="PATH", help="A file or folder to upload as well.")
@click.option(
    "--as",
    "account",
    metavar="ACCOUNT",
    help="Your account on the instances; by default your name in the cloud.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="KEY",
    help="Resume although this key has changed, as `train start` does.",
)
@click.option(
    "--branch",
    callback=_not_empty,
    metavar="NAME",
    help="Begin a new run from the newest weights, as `train start` does.",
)
@click.option(
    "--checkpoints",
    callback=_not_empty,
    metavar="FOLDER",
    help="Checkpoint folder of COMMAND: saved to the bucket, and restored.",
)
@click.option(
    "--qos",
    type=click.Choice([NORMAL, LOW]),
    help="With a queue: low is preempted by other jobs, saves, and resumes later.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be sent; take and start nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@stack_options
def submit(
    *,
    words: tuple[str, ...],
    pool: str,
    nodes: int,
    named: tuple[str, ...],
    hours: float | None,
    include: tuple[str, ...],
    account: str | None,
    allow: tuple[str, ...],
    branch: str,
    checkpoints: str,
    qos: str | None,
    dry_run: bool,
    yes: bool,
    asked: Asked,
) -> None:
    """Start a run on instances of a pool that you took; take missing ones first.

    Uploads CONFIG (a .toml, with --section.key value as in `train start`), your modules that it imports and
    what --include names; or, of a COMMAND (after --, any program), the program's files. The run works as your
    account. An interrupted run resumes from its checkpoint when you submit it again. Exit code 1 if it does
    not start.
    """
    asked.refuse_pool("--pool", pool)
    _refuse_missing(words[0], include)
    if checkpoints and nodes > 1:
        raise ConfigurationError(
            f"--checkpoints {checkpoints}: saves one folder; with --nodes {nodes} your program must save "
            "to s3://, oss:// or the shared homes"
        )
    if (policy := subject(asked).policy).has_queue:
        given = {"--instance": named, "--hours": hours, "--include": include, "--as": account}
        run = QueuedRun(words, pool, nodes, _trainer_flags(allow, branch), checkpoints, qos or "")
        submit_to_queue(policy, run, [flag for flag, value in given.items() if value], dry_run=dry_run)
        return
    if qos:
        raise ConfigurationError(f"--qos {qos}: needs a queue, and stack {policy.stack!r} has none")
    desk = open_desk(asked)
    if problem := refusal(desk.policy, pool, nodes):
        raise ConfigurationError(problem.replace("--count", "--nodes").replace("POOL ", "--pool "))
    caller = caller_of(desk.place)
    criteria = Criteria(pool, nodes, named, account_name(account, caller), caller)
    flags = _trainer_flags(allow, branch)
    kept = ["--checkpoints", checkpoints] if checkpoints else []
    packed = pack(words, [*flags, *kept], include)
    bucket = run_bucket(replace(desk.place, account_id=asked.account_id or ""))
    click.echo(travels(packed, bucket.name))
    ids = choose(desk, bucket, criteria)
    if len(ids) < nodes and not dry_run:
        ids = (*ids, *acquire(desk, pool, nodes - len(ids), hours, yes=yes))
        if len(ids) < nodes:
            sys.exit(EXIT_FAILED)
    job = described_job(desk, packed, criteria, ids)
    if dry_run:
        click.echo(inert(preview(job, packed, nodes - len(ids), desk.policy.cloud)))
        return
    bucket.submit(job, packed.archive)
    command = sent(desk, bucket, job)
    click.echo(f"{job.run} is sent to {', '.join(ids)} ({command})")
    if not followed(desk.now, desk.wait, bucket, job):
        sys.exit(EXIT_FAILED)
    where = f"--stack {desk.policy.stack}"
    click.echo(f"gpu-fleet logs -f {job.run} {where}; gpu-fleet cancel {job.run} {where}")


def _refuse_missing(word: str, include: Sequence[str]) -> None:
    """Refuse files that are not here, before a cloud is asked. Raises ConfigurationError."""
    if word.endswith(".toml") and not Path(word).is_file():
        raise ConfigurationError(f"CONFIG {word!r}: there is no such file")
    for path in include:
        if not Path(path).exists():
            raise ConfigurationError(f"--include {path!r}: there is no such file or folder")


def _trainer_flags(allow: Sequence[str], branch: str) -> list[str]:
    """Return ``--allow`` and ``--branch`` in the trainer's form."""
    return [word for key in allow for word in ("--allow", key)] + (["--branch", branch] if branch else [])


def pack(words: Sequence[str], flags: Sequence[str], include: Sequence[str]) -> Packed:
    """Pack a run and its files in the trainer's own process, which imports users' modules by any name.

    Raises:
        ConfigurationError: the trainer's message about what is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-") as folder:
        out = Path(folder) / "files.zip"
        own = [word for path in include for word in ("--include", path)]
        command = [sys.executable, "-m", "gpu_fleet", "pack", "--out", str(out), *own, *flags, "--", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            problem = done.stderr.strip().removeprefix("error: ")
            raise ConfigurationError(problem or "the trainer gave no reason")
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        names = ("files", "left_out", "secrets", "elsewhere")
        arguments, lists = tuple(said["arguments"]), (tuple(said[name]) for name in names)
        return Packed(out.read_bytes(), arguments, said["directory"], said["title"], *lists)


def travels(packed: Packed, bucket: str) -> str:
    """Return the files that are uploaded, and those that are not, for a user. Pure."""
    size = f"{len(packed.archive):,} bytes"
    files = counted(len(packed.files), "file")
    said = [f"uploaded to {bucket}: {files}, {size}, where no other user can read them"]
    if packed.elsewhere:
        said.append(f"from outside of this folder: {_some(packed.elsewhere)}")
    if packed.secrets:
        said.append(f"looks like a secret, and is uploaded because it was named: {_some(packed.secrets)}")
    if packed.left_out:
        said.append(f"left out: {_some(packed.left_out)} (--include NAME uploads it nevertheless)")
    return "; ".join(said)


def _some(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(inert(name, kept="") for name in names[:MOST_NAMED]) + more


def described_job(desk: Desk, packed: Packed, criteria: Criteria, ids: Sequence[str]) -> Job:
    """Return the job for these instances, whose first one is the rendezvous. Raises CloudError."""
    now = desk.now()
    place = desk.place
    known = module(place.cloud).addresses(place.region, desk.cloud.calls, ids) if ids else {}
    if missing := [instance_id for instance_id in ids if instance_id not in known]:
        raise ConfigurationError(f"{missing[0]} has no private address: is it being terminated?")
    # torchrun assigns ranks by addresses as text: so the log of node 0 is that of rank 0
    by_rank = sorted(ids, key=lambda instance_id: known[instance_id])
    return Job(
        run=run_name(packed.title, now),
        account=criteria.account,
        stack=desk.policy.stack,
        pool=criteria.pool,
        instances=tuple(Member(instance_id, known[instance_id]) for instance_id in by_rank),
        arguments=packed.arguments,
        directory=packed.directory,
        archive_sha256=hashlib.sha256(packed.archive).hexdigest(),
        by=criteria.caller,
        at=format_time(now),
    )


def preview(job: Job, packed: Packed, missing: int, cloud: str) -> str:
    """Return what would be sent, for a user."""
    lines = [
        f"run        {job.run} of account {job.account}",
        f"command    gpu_fleet {shlex.join(job.arguments)}",
        f"files      {', '.join(packed.files)} ({len(packed.archive):,} bytes)",
        f"instances  {', '.join(member.id for member in job.instances) or 'none yet'}",
    ]
    if missing:
        return "\n".join([*lines, f"the mover would be asked for {missing} of {job.pool} first"])
    sent = json.dumps(module(cloud).request(job), indent=1)
    return "\n".join([*lines, f"parameters {json.dumps(parameters(job))}", f"sent       {sent}"])


def sent(desk: Desk, bucket: RunBucket, job: Job) -> str:
    """Start a run on its instances; if the cloud refuses, the run keeps none of them busy.

    Returns:
        The cloud's id of the command.

    Raises:
        ConfigurationError: the cloud refuses it; the message names the remedy.
        CloudError: anything else; the message says if the job could not be marked as refused.
    """
    try:
        return str(module(desk.place.cloud).send(desk.place.region, desk.cloud.calls, job))
    except (CloudError, ConfigurationError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        try:
            bucket.refuse(job, f"not sent: {why}", desk.now())
        except (CloudError, ConfigurationError) as second:
            busy = ", ".join(member.id for member in job.instances)
            minutes = LONGEST_START // timedelta(minutes=1)
            raise CloudError(
                f"{why}\n{job.run} is not marked as refused either ({second}): for {minutes} minutes {busy} "
                "count as busy; --instance names another one that you took",
                getattr(error, "code", ""),
            ) from error
        raise


def followed(now: Callable[[], datetime], wait: Callable[[float], None], bucket: RunBucket, job: Job) -> bool:
    """Show the instances' states until all work on the run; return whether they do. Raises CloudError."""
    shown: dict[str, str] = {}
    until = now() + LONGEST_START
    while now() < until:
        states = bucket.states(job)
        for member, state in zip(job.instances, states, strict=True):
            text = f"{member.id} {state.phase}{f': {state.detail}' if state.detail else ''}"
            if state.phase is not Phase.SENT and shown.get(member.id) != text:
                shown[member.id] = text
                click.echo(inert(text))
        phase = overall(states)
        if phase in (Phase.REFUSED, Phase.FAILED):
            if phase is Phase.REFUSED and any(state.phase not in OVER for state in states):
                bucket.cancel(job.account, job.run, job.by, now())
                click.echo("the other instances would wait for it, and are asked to stop")
            return False
        if phase not in (Phase.SENT, Phase.STARTING, Phase.RETRYING):
            return True
        wait(LOOK_EVERY_S)
    silent = [member.id for member in job.instances if member.id not in shown]
    click.echo(
        f"no report from {', '.join(silent) or job.run} in 10 minutes; gpu-fleet runs shows later ones"
    )
    return False

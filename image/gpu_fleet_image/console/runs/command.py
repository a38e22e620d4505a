"""``gpu-fleet submit``: a run on instances that its user took; on a stack with a queue, a job of it."""

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
from gpu_fleet_image.core.options import POOL_NAME, stack_options
from gpu_fleet_image.core.place import Asked, subject
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.runs import OVER, Job, Member, Phase, overall, parameters, run_name
from gpu_fleet_image.core.shared_options import FiniteRange
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.queue.configuration import LOW, NORMAL

LOOK_EVERY_S = 3.0
MOST_NAMED = 10  # files, of one line
MOST_NODES = 50  # instances of one command (Systems Manager, API SendCommand)
EXIT_FAILED = 1


def module(cloud: str) -> ModuleType:
    """How runs are started on a cloud: ``send``, ``request`` and ``addresses``."""
    return importlib.import_module(f"gpu_fleet_image.console.runs.{cloud}")


@dataclass(frozen=True)
class Packed:
    """What ``gpu_fleet pack`` made of a configuration or a command.

    Attributes:
        arguments: of ``python -m gpu_fleet`` on the instances.
        directory: where the run leaves its result.
        title: begins the run's name.
        files: names of what travels along.
        left_out: what was found in an included folder and stays here.
        secrets: those of the files that look like one.
        elsewhere: modules of those files that lie outside of the folder of the run.
    """

    archive: bytes
    arguments: tuple[str, ...]
    directory: str
    title: str
    files: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


def not_empty(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """An option's value; `--branch "$NAME"` of an unset NAME is refused, not left out."""
    if value == "":
        raise click.BadParameter("is empty", ctx, param)
    return value or ""


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExamples:\n  gpu-fleet submit training/examples/digits.toml --pool dev --stack aws-dev "
    "--include data/digits\n  gpu-fleet submit --pool dev --stack aws-dev -- python train.py --lr 0.1",
)
@click.argument("words", metavar="CONFIG|COMMAND", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--pool", type=POOL_NAME, metavar="NAME", required=True, help="On instances of this pool.")
@click.option(
    "--nodes", type=click.IntRange(1, MOST_NODES), default=1, show_default=True, help="How many of them."
)
@click.option(
    "--instance", "named", multiple=True, metavar="ID", help="One that you took; may be given again."
)
@click.option(
    "--hours",
    type=FiniteRange(0, LONGEST_HOURS, min_open=True),
    help="Keep instances that are taken for it so long; by default the idle rules alone apply.",
)
@click.option("--include", multiple=True, metavar="PATH", help="A file or folder that travels along.")
@click.option(
    "--as", "account", metavar="ACCOUNT", help="Your account there; by default your name in the cloud."
)
@click.option(
    "--allow", multiple=True, metavar="KEY", help="As of `train`: resume although this key has changed."
)
@click.option(
    "--branch",
    callback=not_empty,
    metavar="NAME",
    help="As of `train`: a new run from the newest weights.",
)
@click.option(
    "--checkpoints",
    callback=not_empty,
    metavar="FOLDER",
    help="Of COMMAND: kept in the bucket, and brought back.",
)
@click.option(
    "--qos",
    type=click.Choice([NORMAL, LOW]),
    help="Of a stack with a queue: low gives way to others, saves, and goes on later.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be sent; takes and starts nothing.")
@click.option("--yes", is_flag=True, help="Ask no question.")
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
    """Start a run on instances of a pool that you took; missing ones are asked for first.

    CONFIG (a .toml, with --section.key value as of `train`), your own code that it imports and what --include
    names travel along; of COMMAND (after --, any program) what it starts and names. The run is your account's
    own. An interrupted one goes on from its checkpoint when it is submitted again. Exit code 1 where it does
    not start.
    """
    asked.refuse_pool("--pool", pool)
    if checkpoints and nodes > 1:
        raise ConfigurationError(
            f"--checkpoints {checkpoints}: keeps one folder alone; with --nodes {nodes} your program saves "
            "to s3://, oss:// or the shared homes itself"
        )
    if (policy := subject(asked).policy).has_queue:
        given = {"--instance": named, "--hours": hours, "--include": include, "--as": account}
        run = QueuedRun(words, pool, nodes, trainer_flags(allow, branch), checkpoints, qos or "")
        submit_to_queue(policy, run, [flag for flag, value in given.items() if value], dry_run=dry_run)
        return
    if qos:
        raise ConfigurationError(f"--qos {qos}: is of a queue, and stack {policy.stack!r} has none")
    desk = open_desk(asked)
    if problem := refusal(desk.policy, pool, nodes):
        raise ConfigurationError(problem.replace("--count", "--nodes").replace("POOL ", "--pool "))
    caller = caller_of(desk.place)
    criteria = Criteria(pool, nodes, named, account_name(account, caller), caller)
    flags = trainer_flags(allow, branch)
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
        click.echo(preview(job, packed, nodes - len(ids), desk.policy.cloud))
        return
    bucket.submit(job, packed.archive)
    command = sent(desk, bucket, job)
    click.echo(f"{job.run} is sent to {', '.join(ids)} ({command})")
    if not followed(desk.now, desk.wait, bucket, job):
        sys.exit(EXIT_FAILED)
    where = f"--stack {desk.policy.stack}"
    click.echo(f"gpu-fleet logs -f {job.run} {where}; gpu-fleet cancel {job.run} {where}")


def trainer_flags(allow: Sequence[str], branch: str) -> list[str]:
    """``--allow`` and ``--branch`` as the trainer takes them."""
    return [word for key in allow for word in ("--allow", key)] + (["--branch", branch] if branch else [])


def pack(words: Sequence[str], flags: Sequence[str], include: Sequence[str]) -> Packed:
    """A run and its files, by the trainer's own process: it imports modules of users by any name.

    Raises:
        ConfigurationError: what the trainer says is wrong.
    """
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-") as folder:
        out = Path(folder) / "files.zip"
        own = [word for path in include for word in ("--include", path)]
        command = [sys.executable, "-m", "gpu_fleet", "pack", "--out", str(out), *own, *flags, "--", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            problem = done.stderr.strip().removeprefix("error: ")
            raise ConfigurationError(problem or "the trainer said nothing")
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        names = ("files", "left_out", "secrets", "elsewhere")
        arguments, lists = tuple(said["arguments"]), (tuple(said[name]) for name in names)
        return Packed(out.read_bytes(), arguments, said["directory"], said["title"], *lists)


def travels(packed: Packed, bucket: str) -> str:
    """What leaves this computer, and what does not, for a user. Pure."""
    size = f"{len(packed.archive):,} bytes"
    said = [f"{len(packed.files)} files, {size}, travel into {bucket}, where no other user reads them"]
    if packed.elsewhere:
        said.append(f"from outside of this folder: {_some(packed.elsewhere)}")
    if packed.secrets:
        said.append(f"looks like a secret, and travels since it was named: {_some(packed.secrets)}")
    if packed.left_out:
        said.append(f"left out: {_some(packed.left_out)} (--include NAME sends one all the same)")
    return "; ".join(said)


def _some(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def described_job(desk: Desk, packed: Packed, criteria: Criteria, ids: Sequence[str]) -> Job:
    """The job for these instances, the first of which is where all meet. Raises CloudError."""
    now = desk.now()
    place = desk.place
    known = module(place.cloud).addresses(place.region, desk.cloud.calls, ids) if ids else {}
    if missing := [instance_id for instance_id in ids if instance_id not in known]:
        raise ConfigurationError(f"{missing[0]} has no private address: is it being terminated?")
    # torchrun gives out ranks by addresses as text: so the log of node 0 is that of rank 0
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
    """What would be sent, for a user."""
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
    """Start a run on its instances; one that the cloud refuses to start keeps none of them busy.

    Returns:
        The cloud's id of the command.

    Raises:
        ConfigurationError: the cloud refuses it, and what to do.
        CloudError: anything else; where the job could not be marked as refused the message says so.
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
    """Show what the instances say until all work on the run; whether they do. Raises CloudError."""
    shown: dict[str, str] = {}
    until = now() + LONGEST_START
    while now() < until:
        states = bucket.states(job)
        for member, state in zip(job.instances, states, strict=True):
            text = f"{member.id} {state.phase}{f': {state.detail}' if state.detail else ''}"
            if state.phase is not Phase.SENT and shown.get(member.id) != text:
                shown[member.id] = text
                click.echo(text)
        phase = overall(states)
        if phase in (Phase.REFUSED, Phase.FAILED):
            if phase is Phase.REFUSED and any(state.phase not in OVER for state in states):
                bucket.cancel(job.account, job.run, job.by, now())
                click.echo("the others, which would wait for it, are asked to end")
            return False
        if phase not in (Phase.SENT, Phase.STARTING, Phase.RETRYING):
            return True
        wait(LOOK_EVERY_S)
    silent = [member.id for member in job.instances if member.id not in shown]
    click.echo(
        f"nothing heard of {', '.join(silent) or job.run} in 10 minutes; gpu-fleet runs says when there is"
    )
    return False

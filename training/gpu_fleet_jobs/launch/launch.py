"""`launch`: starts torchrun on this instance, together with the other instances of its pool."""

import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

import click

from gpu_fleet.core import config, exit_codes, outcome
from gpu_fleet.core.errors import LaunchError, MissingPackageError
from gpu_fleet.core.instance_file import run_directory
from gpu_fleet.core.lazy_groups import configured, identity_flags, identity_options
from gpu_fleet.core.metadata import MetadataClient, ThisInstance
from gpu_fleet.core.outcome import COLLECTIVES
from gpu_fleet.preemption.interrupt import nothing_to_save
from gpu_fleet_jobs.launch.alicloud_peers import alicloud_peers
from gpu_fleet_jobs.launch.aws_peers import aws_peers
from gpu_fleet_jobs.launch.identity import Expected, PoolIdentity, read_identity
from gpu_fleet_jobs.launch.members import in_order
from gpu_fleet_jobs.launch.network import control_environment, environment
from gpu_fleet_jobs.launch.rendezvous import Assignment, Rendezvous, assignment, join

LOOK_EVERY_S = 0.5  # interval of checks whether the run has failed for good
# Longest wait for torchrun after a run has saved and stopped. torchrun itself waits five minutes for a peer
# that has ended, and ignores signals meanwhile.
LEAVE_S = 5.0
FAILED_TIMEOUT_S = 90  # longest wait for the other ranks after one has failed for good
# Otherwise torch 2.13 keeps one store over restarts, and a new rank may read the address of a rank that is
# gone.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
# The flight recorder keeps the last collectives of each rank; the watchdog writes them to the same place:
# https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html, with the names of torch 2.13
RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
RECORDED_TO = "TORCH_FR_DUMP_TEMP_FILE"
FIND_PEERS = {"aws": aws_peers, "alicloud": alicloud_peers}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaunchPlan:
    """Plan of one torchrun, which every instance of the job starts."""

    rendezvous: Rendezvous | None  # None: this instance alone
    processes: int  # per instance
    rendezvous_id: str
    max_restarts: int
    save_s: int  # time for the last save before torchrun kills the ranks
    arguments: tuple[str, ...]  # for `python -m gpu_fleet start`
    variables: Mapping[str, str]  # added to the environment

    @property
    def command(self) -> list[str]:
        """Argument list of torchrun."""
        words = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={self.processes}"]
        words += [f"--max-restarts={self.max_restarts}", f"--shutdown-timeout={self.save_s}"]
        if self.rendezvous is None:
            words += ["--standalone"]
        else:
            words += [*self.rendezvous.options, f"--rdzv-id={self.rendezvous_id}"]
        return [*words, "-m", "gpu_fleet", "start", *self.arguments]

    def __str__(self) -> str:
        """Return a shell line that does the same."""
        return shlex.join([*(f"{name}={value}" for name, value in self.variables.items()), *self.command])


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="\b\nExample:\n  gpu-fleet train launch digits.toml --dry-run",
)
@click.argument("config_file", metavar="CONFIG", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
@click.option("--dry-run", is_flag=True, help="Print the command instead of running it.")
@click.option(
    "--nproc-per-node", type=click.IntRange(min=1), help="Processes per instance; default: its GPUs."
)
@click.option("--peers", default="", help="ADDRESS,ADDRESS,... of the instances, instead of the whole pool.")
@click.option("--alone", is_flag=True, help="This instance only; skips peer discovery.")
@click.option("--max-restarts", type=click.IntRange(min=0), default=3, show_default=True)
@identity_options
def launch(
    *,
    config_file: Path,
    overrides: tuple[str, ...],
    dry_run: bool,
    nproc_per_node: int | None,
    peers: str,
    alone: bool,
    max_restarts: int,
    allow: tuple[str, ...],
    branch: str,
) -> None:
    """Train CONFIG on all instances of this instance's pool; run it on each of them.

    In a pod or a submitted run, the PET_ variables name the other instances; see `render` and `submit`.

    Exits with 0 when the run is complete, 85 when it was stopped and has saved (run it again), 65 when a
    retry cannot help. `train start` takes the same overrides: --section.key value.
    """
    with nothing_to_save():
        _refuse_where_terminated()
        settings = configured(config_file, overrides, allow, branch)
        scheduled = None if alone else assignment(os.environ)
        identity = None if alone else read_identity()
        instance = this_instance(identity)
        meeting = _scheduled(scheduled, dry_run=dry_run) if scheduled else _meeting(identity, instance, peers)
        plan = LaunchPlan(
            rendezvous=meeting,
            processes=nproc_per_node
            or (scheduled and scheduled.processes)
            or processes_of(identity, instance),
            rendezvous_id=_rendezvous_id(identity, settings),
            max_restarts=max_restarts,
            save_s=settings.interrupt.save_s,
            arguments=(str(config_file), *overrides, *identity_flags(allow, branch)),
            variables=variables_of(identity, instance, meeting),
        )
    if dry_run:
        click.echo(str(plan))
        return
    if find_spec("torch") is None:
        raise MissingPackageError.of("torch")
    log.info("event=launch command=%r", str(plan))
    sys.exit(run(plan.command, plan.variables, Path(settings.run.directory)))


def _refuse_where_terminated() -> None:
    """Raise LaunchError on an instance whose agent allows no more work.

    See image/gpu_fleet_image/instance/agent/listening.py.
    """
    try:
        raise LaunchError((run_directory() / "closed").read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return


def this_instance(identity: PoolIdentity | None) -> ThisInstance | None:
    """Return this instance, by its metadata; None outside a fleet."""
    return None if identity is None else MetadataClient(identity.cloud).instance()


def _scheduled(mine: Assignment, *, dry_run: bool) -> Rendezvous | None:
    """Wait for the rendezvous that a scheduler has set. Return it; a dry run does not wait."""
    if dry_run and mine.nodes > 1:
        return Rendezvous(mine.nodes, mine.host, "OWN-ADDRESS", mine.rank == 0, mine.port)
    return join(mine)


def _meeting(identity: PoolIdentity | None, instance: ThisInstance | None, peers: str) -> Rendezvous | None:
    """Return the rendezvous of the pool's instances, at the lowest address; None for this instance alone."""
    addresses = _addresses(identity, instance, peers)
    if instance is None or len(addresses) <= 1:
        return None
    host = addresses[0]
    return Rendezvous(len(addresses), host, instance.address, is_host=instance.address == host)


def _addresses(identity: PoolIdentity | None, instance: ThisInstance | None, peers: str) -> Sequence[str]:
    """Return the addresses of the job, lowest first; empty, or one, for this instance alone."""
    if identity is None or instance is None:
        if peers:
            raise LaunchError("--peers: needs an instance of a fleet, which has an instance.toml")
        return []
    if not peers:
        return FIND_PEERS[identity.cloud](identity, instance)
    addresses = in_order(peers.split(","))
    if instance.address not in addresses:
        raise LaunchError(f"--peers = {peers!r}: this instance, {instance.address}, is not among them")
    return addresses


def processes_of(identity: PoolIdentity | None, instance: ThisInstance | None) -> int:
    """Return the number of GPUs, at least 1; raises LaunchError if the pool promises more GPUs."""
    import torch  # noqa: PLC0415 - two seconds, not needed with --nproc-per-node

    present = torch.cuda.device_count()
    expected = _expected(identity, instance).gpus
    if present < expected:
        raise LaunchError(
            f"{present} GPUs on this instance, the pool expects {expected}; check nvidia-smi, "
            "or pass --nproc-per-node"
        )
    return max(1, present)


def _expected(identity: PoolIdentity | None, instance: ThisInstance | None) -> Expected:
    if identity is None or instance is None:
        return Expected()
    return identity.expected.get(instance.instance_type, Expected())


def variables_of(
    identity: PoolIdentity | None, instance: ThisInstance | None, meeting: Rendezvous | None
) -> dict[str, str]:
    """Return the variables by which the ranks of this instance use its network."""
    if instance is not None:
        network = environment(instance.instance_type, _expected(identity, instance), os.environ)
        return {**network, **control_environment(instance.address, os.environ)}
    return control_environment(meeting.own_address, os.environ) if meeting else {}


def _rendezvous_id(identity: PoolIdentity | None, settings: config.Config) -> str:
    """Return an id that is the same on every instance, and differs by run; torchrun uses it in file names."""
    run_name = Path(settings.run.directory).name
    parts = [identity.stack, identity.pool, run_name] if identity else [run_name]
    return re.sub(r"[^A-Za-z0-9._-]", "_", ".".join(parts))


def run(command: Sequence[str], variables: Mapping[str, str], directory: Path) -> int:
    """Run torchrun, forward SIGTERM and SIGINT to it, and return a status of gpu_fleet.core.exit_codes.

    torchrun itself returns 1 for every failure, and retries hopeless runs. So the files that the trainer
    leaves in `directory` decide.
    """
    launched = _token(command)
    word = outcome.NewWord(directory, launched)
    # Its own session: a key press reaches torchrun only through this process, not also from the terminal.
    recorder = {**RECORDER, RECORDED_TO: str(directory.resolve() / COLLECTIVES)}
    given = {**recorder, **os.environ, **FRESH_STORE, **variables, outcome.LAUNCHED: launched}
    forwarded = Forwarded()
    with tempfile.TemporaryDirectory(prefix="gpu-fleet-launch-") as own:
        refusal = Path(own) / "refused.json"
        given[outcome.REFUSED] = str(refusal)
        process = subprocess.Popen(command, env=given, start_new_session=True)
        forwarded.to(process)
        status = _awaited(
            process,
            hopeless=lambda: word.failed or refusal.exists(),
            stopped=lambda: word.ended == "stopped",
        )
        return _status(status, word, directory, refusal, notified=forwarded.any)


def _token(command: Sequence[str]) -> str:
    """Return the token that the ranks of this launch write into their files.

    Several instances share one token, made of the rendezvous and its id: any of their ranks may fail for all,
    in a directory that they may share. An instance alone gets a unique token.
    """
    meeting = [word for word in command if word.startswith(("--rdzv-id=", "--rdzv-endpoint="))]
    return " ".join(meeting) or uuid.uuid4().hex


def _status(torchrun: int, word: outcome.NewWord, directory: Path, refusal: Path, *, notified: bool) -> int:
    """Return a status of gpu_fleet.core.exit_codes, from that of torchrun and the files of the ranks.

    The file `refusal` says that another process has the run: only a later try may help.
    """
    if word.failed:
        log.error("event=failed-for-good torchrun_status=%d", torchrun)
        return exit_codes.FAILED_FOR_GOOD
    if word.ended == "stopped":
        log.info("event=stopped torchrun_status=%d", torchrun)
        return exit_codes.STOPPED
    if outcome.stopped_waiting(refusal) or (torchrun and notified and not word.begun):
        log.info("event=stopped-before-its-first-step torchrun_status=%d", torchrun)  # nothing to save
        return exit_codes.STOPPED
    if refusal.exists():
        log.error("event=refused torchrun_status=%d", torchrun)
        return exit_codes.FAILED_PERHAPS
    if torchrun == 0 and word.ended != "finished":  # a rank, or a library in it, called os._exit(0)
        log.error("event=ended-without-a-result directory=%r", str(directory))
        return exit_codes.FAILED_PERHAPS
    return exit_codes.of_process(torchrun)


def _awaited(
    process: "subprocess.Popen[bytes]", hopeless: Callable[[], bool], stopped: Callable[[], bool]
) -> int:
    """Wait for torchrun, and stop it once its ranks have stopped or cannot succeed. Return its status."""
    stopped_at_s: float | None = None
    while True:
        try:
            return process.wait(LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            if stopped_at_s is None and stopped():
                stopped_at_s = time.monotonic()
            if stopped_at_s is not None and time.monotonic() - stopped_at_s >= LEAVE_S:
                return _ended(process, LEAVE_S)
            if hopeless():
                return _ended(process, FAILED_TIMEOUT_S)


def _ended(process: "subprocess.Popen[bytes]", patience_s: float) -> int:
    """Send torchrun SIGTERM, and after `patience_s` kill it with all its processes. Return its status."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its own session, see run
        return process.wait()


class Forwarded:
    """Forwarding of SIGTERM and SIGINT to a process; earlier signals wait until there is one.

    Otherwise a signal during the start would end this process, and leave the new one alone. A second SIGTERM
    is not forwarded: torchrun would leave its ranks in the middle of their last save.
    """

    def __init__(self) -> None:
        self.any = False
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._terminated = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._forward)

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self.any = True
        if number == signal.SIGTERM:
            if self._terminated:
                return
            self._terminated = True
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)

    def to(self, process: "subprocess.Popen[bytes]") -> None:
        """Set the process that gets the earlier and the later signals."""
        self._process = process
        for number in self._early:
            process.send_signal(number)

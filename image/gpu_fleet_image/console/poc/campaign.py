"""Stages of a POC: instances are taken, measured by a submitted run, and given back whatever happens."""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from types import FrameType

from gpu_fleet_image.console.poc.errors import CapReachedError, StageError
from gpu_fleet_image.console.poc.measured import MeasuredLog, parse_log
from gpu_fleet_image.console.poc.spending import FIRST_STAGE, NEXT_STAGE, CostMeter
from gpu_fleet_image.console.runs.bucket import RunBucket
from gpu_fleet_image.console.runs.choice import Criteria, is_silent
from gpu_fleet_image.console.runs.command import LOOK_EVERY_S, Packed, described_job, followed, sent
from gpu_fleet_image.console.users.take import Desk, follow, give_back_instance, outlook
from gpu_fleet_image.core.capacity import TAG_TAKEN, Fate, owner_of
from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.model import Instance
from gpu_fleet_image.core.runs import OVER, Job, Phase, node_prefix, overall

# After a withdrawal the mover answers within a minute; instances may start until then.
WITHDRAWN = timedelta(minutes=2)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, a closed terminal
COMPLETE, MEASURED = "complete", "measured"


@dataclass(frozen=True)
class Ending:
    """End of a POC.

    Attributes:
        outcome: ``complete``, ``partial``, ``stopped-at-cap``, ``interrupted`` or ``failed``.
        cost: USD, at most, until the instances are gone.
    """

    outcome: str
    reason: str
    cost: Decimal


@dataclass
class Stage:
    """One number of instances.

    Attributes:
        run: name of the submitted run; empty if it was not submitted.
        outcome: ``measured``, or why not.
    """

    nodes: int
    run: str = ""
    instances: tuple[str, ...] = ()
    outcome: str = "not begun"


@dataclass
class Campaign:
    """A POC under way.

    Attributes:
        pack: number of instances, and whether it is the first stage -> what is submitted.
        given_back: instance -> the sweep's next step.
        problems: what could not be given back, and why.
    """

    desk: Desk
    bucket: RunBucket
    criteria: Criteria
    meter: CostMeter
    pack: Callable[[bool], Packed]
    say: Callable[[str], None]
    stages: list[Stage] = field(default_factory=list)
    logs: list[MeasuredLog] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    given_back: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _jobs: list[Job] = field(default_factory=list)

    def run_to_an_end(self, counts: Sequence[int]) -> Ending:
        """Measure each number of instances in turn, and give them back, whatever happens."""
        with ended_like_ctrl_c():
            try:
                outcome, reason = self._outcome(counts)
                cost = self.meter.cost()
            finally:  # also after a second Ctrl-C
                self.tear_down()
        return Ending(outcome, reason, cost)

    def _outcome(self, counts: Sequence[int]) -> tuple[str, str]:
        """Measure each number of instances in turn; return how that ended, and why."""
        try:
            self._run(counts)
        except CapReachedError as error:
            return "stopped-at-cap", str(error)
        except StageError as error:
            return "partial", str(error)
        except KeyboardInterrupt:
            return "interrupted", "interrupted by its user"
        except Exception as error:  # noqa: BLE001 - a defect leaves no instances either
            return "failed", str(error) or repr(error)
        return COMPLETE, ""

    def _run(self, counts: Sequence[int]) -> None:
        """Measure each number of instances in turn; what it measured so far stays after an error.

        Raises:
            CapReachedError: the cap is reached.
            StageError: a stage did not measure to its end.
            CloudError, ConfigurationError: the cloud does not answer, or refuses.
        """
        self.stages = [Stage(nodes) for nodes in counts]
        failed = []
        held: tuple[str, ...] = ()
        for number, stage in enumerate(self.stages):
            first = number == 0
            self.meter.check_room(stage.nodes - len(held), FIRST_STAGE if first else NEXT_STAGE)
            stage.outcome = "no instances"
            held = (*held, *self._taken(stage.nodes - len(held)))
            stage.instances = held
            stage.outcome = "stopped"
            stage.outcome = self._measured(stage, first=first)
            if stage.outcome != MEASURED:
                failed.append(f"{counted(stage.nodes, 'instance')}: {stage.outcome}")
        if failed:
            raise StageError("; ".join(failed))

    @property
    def _guarded(self) -> Desk:
        """The desk, whose waits end at the cap."""

        def wait(seconds: float) -> None:
            self.meter.check()
            self.desk.wait(seconds)

        return replace(self.desk, wait=wait)

    def _taken(self, count: int) -> tuple[str, ...]:
        """Take instances more, and wait until they are ready; return their ids."""
        if not count:
            return ()
        desk, pool = self._guarded, self.criteria.pool
        with deferred():
            key = desk.ask(pool, count, None, self.criteria.caller)
            self.taken.append(key)
            self.meter.begin(key, count)
        self.say(f"requested {count} of {pool} as {owner_of(key)}; the mover answers within a minute")
        if not follow(desk, key):
            request = desk.fate(key)
            raise StageError(f"{count} more of {pool}: {(request and request.reason) or 'not ready in time'}")
        request = desk.fate(key)
        return request.instances if request else ()

    def _measured(self, stage: Stage, *, first: bool) -> str:
        """Submit the measurement, wait for its end, and keep its figures. Return the outcome."""
        desk, packed = self._guarded, self.pack(first)
        job = described_job(desk, packed, replace(self.criteria, nodes=stage.nodes), stage.instances)
        stage.run = job.run
        self._jobs.append(job)
        self.bucket.submit(job, packed.archive)
        self.say(f"{job.run} is sent to {', '.join(stage.instances)} ({sent(desk, self.bucket, job)})")
        try:
            if followed(desk.now, desk.wait, self.bucket, job):
                self._await(desk, job)
        finally:
            self.logs.append(parse_log(self._log(job)))
        states = self.bucket.states(job)
        phase = overall(states)
        if phase is Phase.FINISHED:
            return MEASURED
        said = next((f": {state.detail}" for state in states if state.phase is phase and state.detail), "")
        silent = "" if phase in OVER else ", and reports nothing more"
        return f"the run {job.run} is {phase}{said}{silent}"

    def _await(self, desk: Desk, job: Job) -> None:
        """Wait until a run is over, or one of its instances reports nothing more."""
        while True:
            states = self.bucket.states(job)
            if all(state.phase in OVER or is_silent(job, state, desk.now()) for state in states):
                return
            if overall(states) in (Phase.FAILED, Phase.REFUSED):
                return
            desk.wait(LOOK_EVERY_S)

    def _log(self, job: Job) -> str:
        """Return the log of rank 0."""
        place = node_prefix(job, job.instances[0].id)
        keys = self.bucket.log_keys(place, job.account)
        return b"".join(self.bucket.part(key, job.account) for key in keys).decode(errors="replace")

    def tear_down(self) -> None:
        """Cancel what runs, withdraw open requests, and give every instance back; failures are kept."""
        with shielded(self.say):
            for job in self._jobs:
                self._tried(f"cancel {job.run}", lambda job=job: self._cancel(job))  # type: ignore[misc]  # bound
            for key in self.taken:
                self._tried(f"withdraw {key}", lambda key=key: self._withdraw(key))  # type: ignore[misc]  # bound
            self._tried("give back the instances", self._give_back)

    def _tried(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a defect keeps no other instance
            self.problems.append(f"could not {what}: {str(error) or repr(error)}")

    def _cancel(self, job: Job) -> None:
        if overall(self.bucket.states(job)) not in OVER:
            self.bucket.cancel(job.account, job.run, self.criteria.caller, self.desk.now())

    def _withdraw(self, key: str) -> None:
        """Withdraw an open request, and wait until the mover starts nothing more for it."""
        request = self.desk.fate(key)
        if request is not None and request.fate is not Fate.OPEN:
            return
        self.desk.withdraw(key, self.criteria.caller)
        until = self.desk.now() + WITHDRAWN
        while (request is None or request.fate is Fate.OPEN) and self.desk.now() < until:
            self.desk.wait(LOOK_EVERY_S)
            request = self.desk.fate(key)

    def _give_back(self) -> None:
        requests = filter(None, map(self.desk.fate, self.taken))
        ids = {instance_id for request in requests for instance_id in request.instances}
        for instance in self.desk.cloud.instances.fleet().instances:
            is_own = instance.tags.get(TAG_TAKEN) in self.taken or instance.id in ids
            if is_own and not instance.ended:
                self._tried(f"give back {instance.id}", lambda own=instance: self._return(own))  # type: ignore[misc]  # bound

    def _return(self, instance: Instance) -> None:
        returned = give_back_instance(self.desk, instance, owner_of(self.taken[0]))
        fleet = self.desk.cloud.instances.fleet()
        self.given_back[instance.id] = outlook(self.desk, fleet, returned)
        self.say(f"{instance.id} is {self.given_back[instance.id]}")


@contextmanager
def shielded(say: Callable[[str], None]) -> Iterator[None]:
    """Let no Ctrl-C end the block: instances that are not given back cost money."""

    def refuse(_number: int, _frame: FrameType | None) -> None:
        say("the instances are being given back: wait")

    with _handled(ENDING, refuse):
        yield


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Have SIGTERM and a closed terminal end the block as Ctrl-C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled((signal.SIGTERM, signal.SIGHUP), interrupt):
        yield


@contextmanager
def deferred() -> Iterator[None]:
    """Have a signal end the program after the block: a request whose key is not kept is never withdrawn."""
    came: list[int] = []
    try:
        with _handled(ENDING, lambda got, _: came.append(got)):
            yield
    finally:
        if came:
            raise KeyboardInterrupt


@contextmanager
def _handled(
    numbers: Iterable[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals in another way while the block runs."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)

"""Runner of an acceptance run: it runs the steps, limits time and cost, and always tears down."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from gpu_fleet_image.core.model import Instance
from gpu_fleet_stacks.acceptance import plan
from gpu_fleet_stacks.acceptance.account import Account
from gpu_fleet_stacks.acceptance.clock import RunClock
from gpu_fleet_stacks.acceptance.engine import StackEngine
from gpu_fleet_stacks.acceptance.errors import AcceptanceError, StepError, StopError
from gpu_fleet_stacks.acceptance.evidence import Evidence, Remainder, Status, StepRecord
from gpu_fleet_stacks.acceptance.metering import Metering
from gpu_fleet_stacks.acceptance.plan import AcceptanceStep
from gpu_fleet_stacks.catalog.money import Money
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.settings import Stack

LOG = logging.getLogger(__name__)
Seen = TypeVar("Seen")
POLL_S = 15.0
# The least time between two DescribeInstances for the meter; steps may poll more often.
METER_EVERY = timedelta(seconds=60)
TEARDOWN = "tear-down"
DESTROY_TRIES = 3
REFUSALS_IN_A_ROW = 5


@dataclass(frozen=True)
class StepResult:
    """Result of a step that passed: what it expected, and what it observed."""

    expected: str
    observed: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class AcceptanceRun:
    """One acceptance run, which the steps share.

    Attributes:
        account, engine, clock: the cloud, Pulumi, and time.
        epochs: of the training runs; so many that an interruption comes in their midst.
        stop_file_only: never ask the cloud for a spot interruption.
        memory: values that one step leaves for another.
        ends_at: when the steps must be done; None before the first.
    """

    variant: Stack
    account: Account
    engine: StackEngine
    clock: RunClock
    metering: Metering
    evidence: Evidence
    epochs: float
    stop_file_only: bool = False
    memory: dict[str, Any] = field(default_factory=dict)
    ends_at: datetime | None = None
    deadline: datetime | None = None
    metered_at: datetime | None = None

    @property
    def outputs(self) -> dict[str, Any]:
        """The stack's outputs, once it is up."""
        return cast("dict[str, Any]", self.memory["outputs"])

    def instances(self) -> list[Instance]:
        """Return the stack's instances, and count their time for the cost."""
        instances = list(self.account.instances())
        self.metering.observe(instances, self.clock.now())
        self.metered_at = self.clock.now()
        return instances

    def hold(self) -> None:
        """Check the time, and the cost with instances read at most once a minute.

        Raises:
            StopError: the cost cap or the time of the whole run is reached.
        """
        now = self.clock.now()
        if self.ends_at is not None and now >= self.ends_at:
            raise StopError("the run's time is used up; the rest is reserved for the tear-down")
        if self.metering.began is None:
            return
        if self.metered_at is None or now - self.metered_at >= METER_EVERY:
            self.instances()
        self.metering.hold(now, self.reserve())

    def reserve(self) -> Money:
        """Return what the tear-down may cost, with everything running for its whole time."""
        hours = -(-plan.TEARDOWN_S // 3600)
        return plan.price(self.variant, self.metering.unpriced_per_hour.amount).per_hour * hours

    def wait(self, what: str, look: Callable[[], Seen | None], poll_s: float = POLL_S) -> Seen:
        """Poll until ``look`` returns something; a ``StepError`` of ``look`` ends the step.

        A refused call is tried again, since a cloud may accept it a minute later.

        Raises:
            StepError: the step's deadline is reached, or the cloud refused several times in a row.
            StopError: the cost cap or the time of the whole run is reached.
        """
        refused: list[str] = []
        while True:
            self.hold()
            try:
                seen = look()
                refused = []
            except CannotCheckError as error:
                seen = None
                refused.append(str(error))
                if len(refused) >= REFUSALS_IN_A_ROW:
                    raise StepError(f"{what}: refused {len(refused)} times: {refused[-1]}") from error
            if seen is not None:
                return seen
            if self.deadline is not None and self.clock.now() >= self.deadline:
                last = f"; last: {refused[-1]}" if refused else ""
                raise StepError(f"{what}: not seen within the step's time{last}")
            self.clock.sleep(poll_s)


Action = Callable[[AcceptanceRun], StepResult]
Listener = Callable[[str, AcceptanceStep | None, StepRecord | None], None]


def _silent(event: str, step: AcceptanceStep | None, done: StepRecord | None) -> None:
    """Do nothing, as the listener of a run without an observer."""


def execute(
    run: AcceptanceRun,
    actions: Mapping[str, Action],
    listener: Listener = _silent,
    steps: Sequence[AcceptanceStep] = plan.STEPS,
) -> None:
    """Run every step that can be tried, then always tear down; the evidence records all of it.

    Args:
        actions: step -> its action.
        listener: called at ``begin`` and ``end`` of each step.
    """
    try:
        run.ends_at = run.clock.now() + timedelta(seconds=plan.longest_s(steps) - plan.TEARDOWN_S)
        for step in steps:
            _step(run, step, actions[step.name], listener)
    except StopError as error:
        run.evidence.stopped = str(error)
    except KeyboardInterrupt:
        run.evidence.stopped = "interrupted by the operator"
    finally:
        tear_down(run, listener)


def _step(run: AcceptanceRun, step: AcceptanceStep, action: Action, listener: Listener) -> None:
    """Run one step; its failure is recorded, and only an error that ends the whole run is raised."""
    passed = {step.name for step in run.evidence.steps if step.status is Status.OK}
    started, calls = run.clock.now(), len(run.account.calls)
    lacking = [name for name in step.needs if name not in passed]
    listener("begin", step, None)
    ended: BaseException | None = None
    if lacking:
        status, outcome = Status.SKIPPED, StepResult(step.proves, f"not tried: {lacking[0]} did not pass")
    else:
        run.deadline = started + timedelta(seconds=step.deadline_s)
        try:
            status, outcome, ended = _tried(run, step, action)
        finally:
            run.deadline = None
    done = _done(run, step, status, outcome, started=started, calls_before=calls)
    run.evidence.steps.append(done)
    LOG.info("event=step name=%r status=%s seconds=%.0f observed=%r", *_logged(done))
    listener("end", step, done)
    if ended is not None:
        raise ended


def _tried(
    run: AcceptanceRun, step: AcceptanceStep, action: Action
) -> tuple[Status, StepResult, BaseException | None]:
    """Run the action; return its status, its result, and the error that ends the whole run, if any."""
    ends: BaseException | None = None
    try:
        return Status.OK, action(run), None
    except StopError as error:
        said, ends = str(error), error
    except StacksError as error:
        said = str(error)
    except KeyboardInterrupt as error:
        said, ends = "interrupted by the operator", error
    except Exception as error:  # every failure of a step is evidence, and the tear-down must run
        LOG.exception("event=step-broke name=%r", step.name)
        said = f"unexpected: {error!r}"
    return Status.FAILED, StepResult(step.proves, said), ends


def _logged(done: StepRecord) -> tuple[object, ...]:
    return done.name, done.status, done.seconds, done.observed


def _done(
    run: AcceptanceRun,
    step: AcceptanceStep,
    status: Status,
    outcome: StepResult,
    *,
    started: datetime,
    calls_before: int,
) -> StepRecord:
    now = run.clock.now()
    try:
        accrued = run.metering.accrued(now).amount
    except StopError:  # a type without a price: keep the last known amount; the run ends for that reason
        accrued = run.evidence.accrued
    return StepRecord(
        name=step.name,
        proves=step.proves,
        status=status,
        started=started,
        ended=now,
        expected=outcome.expected,
        observed=outcome.observed,
        facts=dict(outcome.facts),
        accrued=accrued,
        calls=tuple(run.account.calls[calls_before:]),
    )


def tear_down(run: AcceptanceRun, listener: Listener = _silent) -> None:
    """Tear everything down and list what is left; may be called again after one that failed."""
    step = AcceptanceStep(TEARDOWN, "nothing of the run is left that costs money", plan.TEARDOWN_S)
    started, calls = run.clock.now(), len(run.account.calls)
    listener("begin", step, None)
    problems = []
    for part in (_forget_interruption, _destroy, _list):
        try:
            part(run)
        except StacksError as error:
            problems.append(str(error))
        except KeyboardInterrupt:
            problems.append("interrupted by the operator; run it again with --clean-up")
            break
        except Exception as error:  # the remains must be listed, whatever fails before
            LOG.exception("event=tear-down-broke part=%s", part.__name__)
            problems.append(f"unexpected: {error!r}")
    status = Status.FAILED if problems or not run.evidence.clean else Status.OK
    observed = "; ".join(problems) or _summary(run.evidence.remaining)
    done = _done(run, step, status, StepResult(step.proves, observed), started=started, calls_before=calls)
    run.evidence.steps.append(done)
    run.evidence.ended = run.clock.now()
    LOG.info("event=step name=%r status=%s seconds=%.0f observed=%r", *_logged(done))
    listener("end", step, done)


def _forget_interruption(run: AcceptanceRun) -> None:
    if run.account.interruption is not None:
        run.account.interruption.forget_interruption()


def _destroy(run: AcceptanceRun) -> None:
    """Destroy the stack; if that fails, remove what blocks it and try again.

    Buckets with objects and instances that outlived their groups block it; both belong to this stack alone.

    Raises:
        AcceptanceError: the last try failed too.
    """
    for left in reversed(range(DESTROY_TRIES)):
        try:
            run.engine.destroy(plan.TEARDOWN_S)
            break
        except AcceptanceError as error:
            if left == 0:
                raise
            LOG.warning("event=destroy-failed tries_left=%d reason=%r", left, str(error))
        ended, emptied = run.account.cleanup.end_stragglers(), run.account.cleanup.empty_buckets()
        LOG.info("event=cleared instances=%r objects=%d", list(ended), emptied)
        run.clock.sleep(POLL_S)
    # Everything that the key encrypts belongs to this run and is deleted.
    LOG.info("event=keys-let-go keys=%r", list(run.account.cleanup.let_keys_go()))
    run.engine.forget()


def _list(run: AcceptanceRun) -> None:
    """Record everything that still carries the stack's tag, with its cost per hour."""
    run.evidence.remaining = [
        Remainder(
            orphan.kind,
            orphan.id,
            orphan.state,
            _hourly(run, orphan.priced_as, orphan.units),
            orphan.note,
        )
        for orphan in run.account.cleanup.orphans()
    ]


def _hourly(run: AcceptanceRun, priced_as: str, units: Any) -> str:
    if not priced_as:
        return "0"
    price = plan.orphan_hour(run.variant, priced_as, units)
    return "unknown" if price is None else f"{price.amount:.4f}"


def _summary(remaining: Sequence[Remainder] | None) -> str:
    if not remaining:
        return "nothing carries the stack's tag any more"
    paid = [orphan for orphan in remaining if orphan.per_hour != "0"]
    if paid:
        return "still there and paid for: " + ", ".join(f"{orphan.kind} {orphan.id}" for orphan in paid)
    return f"{len(remaining)} things still carry the tag, none of them paid by the hour"

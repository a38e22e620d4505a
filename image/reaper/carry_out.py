"""Doing what a plan says: unmark, end, mark; each step so that a failure in it harms no work."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from image.reaper import ledger
from image.reaper.aws import DETACH_BATCH, END_BATCH, Machines
from image.reaper.calls import Failure, batches, bisect
from image.reaper.errors import CloudError, DeadlineError
from image.reaper.marks import Mark
from image.reaper.model import ENDS, TAG_IDLE_SINCE, TAG_REAP_AFTER, Decision, Fleet, Plan, Verdict
from image.reaper.notify import Notifier
from image.reaper.policy import Policy
from image.reaper.results import Done, Ended
from image.reaper.store import Store

TAG_BATCH = 500  # resources of one CreateTags or DeleteTags
STEPS: dict[Verdict, str] = {Verdict.STOP: "stop", Verdict.TERMINATE: "terminate"}


@dataclass(frozen=True)
class Tools:
    """What it takes to change something.

    Attributes:
        machines: of the stack.
        notifier: tells people.
        store: holds the ledger.
        policy: of the stack.
        clock: the time now.
    """

    machines: Machines
    notifier: Notifier
    store: Store
    policy: Policy
    clock: Callable[[], datetime]


def unmark(tools: Tools, plan: Plan, done: Done) -> None:
    """Take the mark off machines that are in use again."""
    ids = [decision.instance.id for decision in plan.with_verdict(Verdict.UNMARK)]
    for batch in batches(ids, TAG_BATCH):
        failed = bisect(
            batch, "unmark", lambda some: tools.machines.untag(some, (TAG_IDLE_SINCE, TAG_REAP_AFTER))
        )
        done.failures += failed
        done.unmarked += _without(batch, failed)


def mark(tools: Tools, plan: Plan, planned_at: datetime, done: Done) -> None:
    """Tell the owners, then write the mark on their machines: a mark means that somebody was told.

    The grace time counts from now, not from when the plan was made.
    """
    late = max(timedelta(0), tools.clock() - planned_at)
    timely = [
        replace(one, reap_after=one.reap_after + late)
        for one in plan.with_verdict(Verdict.MARK)
        if one.reap_after is not None
    ]
    told, problems = tools.notifier.announce(tools.policy.stack, timely)
    done.failures += [Failure("*", "notify", problem) for problem in problems]
    alike: dict[Mark, list[Decision]] = defaultdict(list)
    for decision in told:
        if decision.idle_since is not None and decision.reap_after is not None:
            alike[Mark(decision.idle_since, decision.reap_after)].append(decision)
    for found, decisions in alike.items():
        for start in range(0, len(decisions), TAG_BATCH):
            _mark_batch(tools, found, decisions[start : start + TAG_BATCH], done)


def _mark_batch(tools: Tools, found: Mark, decisions: Sequence[Decision], done: Done) -> None:
    ids = [decision.instance.id for decision in decisions]
    failed = bisect(ids, "mark", lambda some: tools.machines.tag(some, found.tags()))
    done.failures += failed
    marked = set(_without(ids, failed))
    done.marked += [decision for decision in decisions if decision.instance.id in marked]


def end(tools: Tools, decisions: Sequence[Decision], fleet: Fleet, done: Done) -> None:
    """Stop or terminate machines that were checked a moment ago.

    Args:
        tools: what it takes.
        decisions: verdicts STOP and TERMINATE only.
        fleet: as it was read for the check.
        done: filled in.
    """
    grouped: dict[tuple[str | None, Verdict], list[Decision]] = defaultdict(list)
    for decision in decisions:
        if decision.verdict not in ENDS:
            raise ValueError(f"{decision.instance.id}: {decision.verdict} ends nothing")
        group = fleet.group_of(decision.instance.id)
        grouped[group.name if group else None, decision.verdict].append(decision)
    for (group_name, verdict), members in grouped.items():
        size = END_BATCH if group_name is None else DETACH_BATCH
        for start in range(0, len(members), size):
            _end_batch(tools, members[start : start + size], group_name, verdict, done)


def _end_batch(
    tools: Tools, decisions: Sequence[Decision], group: str | None, verdict: Verdict, done: Done
) -> None:
    """Record, detach, end; whatever fails at one step goes no further."""
    recorded = _record(tools, decisions, group, done)
    ids = [decision.instance.id for decision in recorded]
    failures: list[Failure] = []
    if group is not None:
        failures += bisect(ids, "detach", lambda some: tools.machines.detach(group, some))
    detached = _without(ids, failures)
    act = tools.machines.stop if verdict is Verdict.STOP else tools.machines.terminate
    refused = bisect(detached, STEPS[verdict], act)
    if group is not None and refused:
        # A machine that will not go belongs back into its group, which would otherwise shrink for nothing.
        back = [failure.instance_id for failure in refused]
        failures += bisect(back, "attach", lambda some: tools.machines.attach(group, some))
    failures += refused
    done.failures += failures
    gone = set(_without(detached, refused))
    done.ended += [
        Ended(decision, group, ledger.key_of(decision))
        for decision in recorded
        if decision.instance.id in gone
    ]
    _record_failures(tools, recorded, failures, done)


def _record(tools: Tools, decisions: Sequence[Decision], group: str | None, done: Done) -> list[Decision]:
    """Those whose end is on record now."""
    recorded = []
    for decision in decisions:
        record = ledger.record_of(decision, tools.policy, group, tools.clock())
        try:
            ledger.write(tools.store, ledger.key_of(decision), record)
        except (CloudError, DeadlineError) as error:
            done.failures.append(Failure(decision.instance.id, "record", str(error)))
        else:
            recorded.append(decision)
    return recorded


def _record_failures(
    tools: Tools, recorded: Sequence[Decision], failures: Sequence[Failure], done: Done
) -> None:
    errors = {failure.instance_id: failure.error for failure in failures}
    for decision in recorded:
        if (error := errors.get(decision.instance.id)) is not None:
            try:
                ledger.write_failure(tools.store, ledger.key_of(decision), error, tools.clock())
            except (CloudError, DeadlineError) as problem:
                done.failures.append(Failure(decision.instance.id, "record", str(problem)))


def _without(ids: Sequence[str], failures: Sequence[Failure]) -> list[str]:
    failed = {failure.instance_id for failure in failures}
    return [one for one in ids if one not in failed]

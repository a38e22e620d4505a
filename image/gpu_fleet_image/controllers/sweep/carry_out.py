"""Execution of a plan: unmark, end, mark. A failure in any step harms no running work."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count

from gpu_fleet_image.controllers.sweep import ledger
from gpu_fleet_image.controllers.sweep.results import Done, Ended
from gpu_fleet_image.controllers.sweep.situation import is_asked, is_closed
from gpu_fleet_image.core.calls import Failure, batches, bisect
from gpu_fleet_image.core.cloud import Instances
from gpu_fleet_image.core.handshake import (
    Exchange,
    MarkQuestion,
    Replies,
    Reply,
    Winner,
    read_replies,
    replies_of,
)
from gpu_fleet_image.core.marks import Mark, given_back_at, hold_of
from gpu_fleet_image.core.model import (
    ENDS,
    TAG_IDLE_SINCE,
    TAG_REAP_AFTER,
    Decision,
    Instance,
    Inventory,
    Plan,
    Verdict,
)
from gpu_fleet_image.core.notify.notifier import NOTIFY_AGAIN_AFTER, Notifier
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, DeadlineError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_span

# What was checked longer ago may be at work again; the next sweep checks anew.
CHECK_LASTS = timedelta(minutes=2)
# The last look before an end. An answer that was so long on its way is about a moment that is over.
LAST_LOOK_TAKES = timedelta(seconds=10)
STOPS = frozenset({"stopping", "stopped"})
CHANGED = "changed at the last moment: started, kept, protected, or its mark removed or replaced"
# An agent looks every five seconds. Copying what is kept once more may take longer: the next sweep goes on.
_LOOKS_AT_CLOSING = 9
LOOK_EVERY_S = 5.0
_CLOUDS_TAGS = ("aws:", "acs:")  # names that only the clouds themselves write
TAG_BATCH = 500  # resources of one CreateTags or DeleteTags


@dataclass(frozen=True)
class Tools:
    """Everything that changes of the fleet need.

    Attributes:
        wait: waits some seconds.
    """

    instances: Instances
    notifier: Notifier
    store: Store
    policy: Policy
    clock: Callable[[], datetime]
    wait: Callable[[float], None] = time.sleep


def unmark(tools: Tools, plan: Plan, done: Done) -> None:
    """Take the mark off instances that are in use again."""
    _unmark(tools, [decision.instance.id for decision in plan.with_verdict(Verdict.UNMARK)], done)


def _unmark(tools: Tools, ids: Sequence[str], done: Done) -> None:
    for batch in batches(ids, TAG_BATCH):
        failed = bisect(
            batch, "unmark", lambda some: tools.instances.untag(some, (TAG_IDLE_SINCE, TAG_REAP_AFTER))
        )
        done.failures += failed
        done.unmarked += _without(batch, failed)


def mark(
    tools: Tools, plan: Plan, planned_at: datetime, notified_at: dict[str, datetime], done: Done
) -> None:
    """Notify, then write the mark on the instances: a mark means that a user was notified.

    The grace time counts from now, not from when the plan was made.

    Args:
        planned_at: when it was made.
        notified_at: instance, and user of it -> when they last were; kept up to date, so that nobody is
            notified twice of the same idle time within a day: where the mark could not be written, or was
            withdrawn.
    """
    late = max(timedelta(0), tools.clock() - planned_at)
    timely = [
        replace(decision, reap_after=decision.reap_after + late)
        for decision in plan.with_verdict(Verdict.MARK)
        if decision.reap_after is not None
    ]
    known = [decision for decision in timely if _all_know(tools, notified_at, decision)]
    announced = tools.notifier.announce(
        tools.policy.stack, [decision for decision in timely if decision not in known]
    )
    done.unreached |= announced.unreached
    done.failures += [Failure("*", "notify", problem) for problem in announced.problems]
    for decision in announced.notified:
        names = ("", *announced.users.get(decision.instance.id, ()))
        notified_at |= {_notice_of(decision, name): tools.clock() for name in names}
    alike: dict[Mark, list[Decision]] = defaultdict(list)
    for decision in [*known, *announced.notified]:
        if decision.idle_since is not None and decision.reap_after is not None:
            alike[Mark(decision.idle_since, decision.reap_after)].append(decision)
    for mark, decisions in alike.items():
        for start in range(0, len(decisions), TAG_BATCH):
            _mark_batch(tools, mark, decisions[start : start + TAG_BATCH], done)


def _as_checked(instance: Instance | None) -> Instance | None:
    """Return an instance without the tags of the cloud itself: detaching removes its scaling group's tag."""
    if instance is None:
        return None
    own = {name: value for name, value in instance.tags.items() if not name.startswith(_CLOUDS_TAGS)}
    return replace(instance, tags=own)


def _notice_of(decision: Decision, user: str = "") -> str:
    return f"{decision.instance.id} notified {user}".strip()  # no alert has this name (notify.due_alerts)


def _all_know(tools: Tools, notified_at: Mapping[str, datetime], decision: Decision) -> bool:
    """Return whether every user seen on the instance was notified; users who came later were not."""
    now = tools.clock()
    if not _knows(notified_at.get(_notice_of(decision)), decision, now):
        return False
    try:
        names = tools.notifier.seen_on(decision.instance)
    except (CloudError, DeadlineError):
        return False
    return all(_knows(notified_at.get(_notice_of(decision, name)), decision, now) for name in names)


def _knows(at: datetime | None, decision: Decision, now: datetime) -> bool:
    """Return whether the earlier notice was for this idle time, and recent enough.

    A later hold promised another time. A later give-back removes the hold, so users are notified anew.
    """
    since, given = decision.idle_since, given_back_at(decision.instance)
    if at is None or since is None or hold_of(decision.instance, at) is not None:
        return False
    if given is not None and given > at:
        return False
    return since <= at and now - at < NOTIFY_AGAIN_AFTER


def _mark_batch(tools: Tools, mark: Mark, decisions: Sequence[Decision], done: Done) -> None:
    ids = [decision.instance.id for decision in decisions]
    failed = bisect(ids, "mark", lambda some: tools.instances.tag(some, mark.tags()))
    done.failures += failed
    marked = set(_without(ids, failed))
    done.marked += [decision for decision in decisions if decision.instance.id in marked]


def close(tools: Tools, decisions: Sequence[Decision], replies: Replies, done: Done) -> None:
    """Decide to end instances, unless they were quicker, and give them time to shut their doors.

    Args:
        decisions: verdicts on instances that said for their marks that nothing runs there.

    Raises:
        CloudError, DeadlineError: what they say meanwhile cannot be read; nothing is harmed.
    """
    asked = [decision for decision in decisions if _is_ours(tools, decision, replies, done)]
    for _ in range(_LOOKS_AT_CLOSING):  # counted: a sweep's clock may stand still
        if not asked:
            return
        tools.wait(LOOK_EVERY_S)
        now_said = _heard(tools, asked, replies, done)
        asked = [
            decision for decision in asked if _reply(now_said, decision) not in (Reply.CLOSED, Reply.REFUSED)
        ]


def _heard(tools: Tools, decisions: Sequence[Decision], before: Replies, done: Done) -> Replies:
    """Read the replies of these instances now. Raises CloudError, DeadlineError.

    Args:
        before: what they said, and under which names.
    """
    answers = read_replies(
        tools.store,
        [
            MarkQuestion(
                decision.instance.id,
                decision.reap_after,
                replies_of(before, decision.instance.id, decision.reap_after).caller,
            )
            for decision in decisions
            if decision.reap_after is not None
        ],
    )
    done.flooding |= answers.flooding
    return answers.replies


def _is_ours(tools: Tools, decision: Decision, replies: Replies, done: Done) -> bool:
    """Return whether the end is decided; the instance or its owner may have withdrawn the mark first."""
    if decision.reap_after is None:
        raise ValueError(f"{decision.instance.id} was never marked")
    caller = replies_of(replies, decision.instance.id, decision.reap_after).caller
    return _winner(tools, decision, caller, done) is Winner.END


def _winner(tools: Tools, decision: Decision, caller: str, done: Done) -> Winner | None:
    """Return the decision on a mark: the end, unless a user was quicker; None where it is unknown."""
    if decision.reap_after is None:
        raise ValueError(f"{decision.instance.id} was never marked")
    exchange = Exchange(tools.store, caller, decision.reap_after)
    try:
        return exchange.claim(Winner.END, decision.reason, tools.clock())
    except (CloudError, DeadlineError) as error:
        done.failures.append(Failure(decision.instance.id, "decide", str(error)))
        return None


def _reply(replies: Replies, decision: Decision) -> Reply | None:
    return (
        replies_of(replies, decision.instance.id, decision.reap_after).reply if decision.reap_after else None
    )


@dataclass(frozen=True)
class Checked:
    """Result of the last check.

    Attributes:
        at: when; what is not done soon after it is left to the next sweep.
        replies: what the instances said.
    """

    at: datetime
    fleet: Inventory
    replies: Replies


def end(tools: Tools, decisions: Sequence[Decision], checked: Checked, done: Done) -> None:
    """Stop or terminate instances that were checked a moment ago.

    Args:
        decisions: verdicts STOP and TERMINATE only.
    """
    grouped: dict[tuple[str | None, Verdict, bool, bool], list[Decision]] = defaultdict(list)
    for decision in decisions:
        if decision.verdict not in ENDS:
            raise ValueError(f"{decision.instance.id}: {decision.verdict} neither stops nor terminates")
        group = checked.fleet.group_of(decision.instance.id)
        is_stopped = decision.instance.state == "stopped"
        grouped[group.name if group else None, decision.verdict, decision.replaced, is_stopped].append(
            decision
        )
    for (group_name, verdict, replaced, stopped), members in grouped.items():
        size = tools.instances.end_batch if group_name is None else tools.instances.detach_batch
        for start in range(0, len(members), size):
            until = checked.at + CHECK_LASTS
            batch = _Batch(tools, group_name, verdict, until, checked.replies, replaced, stopped)
            batch.end(members[start : start + size], done)


@dataclass(frozen=True)
class _Batch:
    """Instances of one group, or of none, that end the same way.

    Attributes:
        verdict: STOP or TERMINATE.
        until: nothing is begun after it.
        replies: what they said when they were checked.
        replaced: their group starts others in their place.
        stopped: they do not run, so that no agent of theirs answers.
    """

    tools: Tools
    group: str | None
    verdict: Verdict
    until: datetime
    replies: Replies
    replaced: bool = False
    stopped: bool = False

    def end(self, decisions: Sequence[Decision], done: Done) -> None:
        """Record, detach, end; whatever fails at one step goes no further."""
        decided = self._not_kept(decisions, done) if self.stopped else decisions
        recorded = _record(self.tools, decided, self.group, done)
        ids = [decision.instance.id for decision in recorded]
        failures = bisect(ids, "detach", self._detach) if self.group is not None else []
        detached = _without(ids, failures)
        leaving = [decision for decision in recorded if decision.instance.id in set(detached)]
        opened = self._in_use_again(leaving, done)
        detached = _without(detached, opened)
        closed = [decision for decision in leaving if decision.instance.id in set(detached)]
        refused = opened + self._without_ended(self._act_on(closed, done))
        if self.group is not None and not self.replaced:
            # An instance that will not go belongs back into its group, which would shrink for nothing. An
            # unfit one does not: another starts in its place, and the next sweep finds it without a group.
            failures += bisect([failure.instance_id for failure in refused], "attach", self._attach)
        failures += refused
        done.failures += failures
        gone = set(_without(detached, refused))
        done.ended += [
            Ended(decision, self.group, ledger.key_of(decision))
            for decision in recorded
            if decision.instance.id in gone
        ]
        _record_outcomes(self.tools, recorded, failures, gone, done)

    def _act_on(self, decisions: Sequence[Decision], done: Done) -> list[Failure]:
        """Stop or terminate; what was read before a call that the cloud refused is too old for the next."""
        by_id = {decision.instance.id: decision for decision in decisions}
        calls = count()

        def act(ids: Sequence[str]) -> None:
            changed = self._in_use_again([by_id[key] for key in ids], done) if next(calls) else []
            if changed:
                raise CloudError(changed[0].error)
            self._act(ids)

        return bisect(list(by_id), self.verdict.lower(), act)

    def _in_use_again(self, decisions: Sequence[Decision], done: Done) -> list[Failure]:
        """Check the instances, then their replies, for the last time before the call."""
        began = self.tools.clock()
        changed = self._changed(decisions)
        same = set(_without([decision.instance.id for decision in decisions], changed))
        opened = self._opened([decision for decision in decisions if decision.instance.id in same], done)
        took = self.tools.clock() - began
        if took <= LAST_LOOK_TAKES:
            return changed + opened
        late = f"the last look took {format_span(took)}; left to the next sweep"
        return [Failure(decision.instance.id, "look again", late) for decision in decisions]

    def _opened(self, decisions: Sequence[Decision], done: Done) -> list[Failure]:
        """Return the instances that no longer reply that they are closed."""
        closing = [decision for decision in decisions if is_asked(self.tools.policy, decision.instance)]
        if not closing:
            return []
        try:
            replies = _heard(self.tools, closing, self.replies, done)
        except (CloudError, DeadlineError) as error:
            return [Failure(decision.instance.id, "hear", str(error)) for decision in closing]
        return [
            Failure(decision.instance.id, "hear", "in use again at the last moment")
            for decision in closing
            if not is_closed(replies, decision)
        ]

    def _not_kept(self, decisions: Sequence[Decision], done: Done) -> list[Decision]:
        """Return stopped instances that nobody keeps; `keep` and the sweep race for a key of each mark.

        A mark that lost is over, whatever becomes of the hold: a later one has its own notice and grace.
        """
        winners = {
            decision.instance.id: _winner(self.tools, decision, decision.instance.id, done)
            for decision in decisions
        }
        kept = [key for key, winner in winners.items() if winner is Winner.WITHDRAWN]
        _unmark(self.tools, kept, done)
        return [decision for decision in decisions if winners[decision.instance.id] is Winner.END]

    def _changed(self, decisions: Sequence[Decision]) -> list[Failure]:
        """Return instances that changed since the check: started, kept, protected, or without their mark.

        Read right before there is no way back; a start after this only a cloud that looks itself can refuse.
        """
        try:
            fresh = self.tools.instances.again([decision.instance.id for decision in decisions], ())
        except (CloudError, DeadlineError) as error:
            return [Failure(decision.instance.id, "look again", str(error)) for decision in decisions]
        now = {instance.id: instance for instance in fresh.instances}
        return [
            Failure(decision.instance.id, "look again", CHANGED)
            for decision in decisions
            if _as_checked(now.get(decision.instance.id)) != _as_checked(decision.instance)
        ]

    def _without_ended(self, refused: list[Failure]) -> list[Failure]:
        """Return failures of instances that still run: a cloud may report an error after success."""
        if not refused:
            return []
        try:
            fresh = self.tools.instances.again([failure.instance_id for failure in refused], ())
        except (CloudError, DeadlineError):
            return refused  # nobody knows; the next sweep sees what is left
        ended = {instance.id for instance in fresh.gone}
        if self.verdict is Verdict.STOP:
            ended |= {instance.id for instance in fresh.instances if instance.state in STOPS}
        return [failure for failure in refused if failure.instance_id not in ended]

    def _detach(self, ids: Sequence[str]) -> None:
        self._refuse_late()
        self.tools.instances.detach(self.group or "", ids, replaced=self.replaced)

    def _attach(self, ids: Sequence[str]) -> None:
        self.tools.instances.attach(self.group or "", ids)

    def _act(self, ids: Sequence[str]) -> None:
        self._refuse_late()
        instances = self.tools.instances
        if self.verdict is Verdict.STOP:
            instances.stop(ids)
        else:
            instances.terminate(ids, stopped=self.stopped)

    def _refuse_late(self) -> None:
        if self.tools.clock() > self.until:
            raise DeadlineError("checked too long ago; left to the next sweep")


def _record(tools: Tools, decisions: Sequence[Decision], group: str | None, done: Done) -> list[Decision]:
    """Record the intended ends; return those that are recorded."""
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


def _record_outcomes(
    tools: Tools, recorded: Sequence[Decision], failures: Sequence[Failure], gone: Set[str], done: Done
) -> None:
    """Note beside each record whether its instance ended or the call failed."""
    errors = {failure.instance_id: failure.error for failure in failures}
    for decision in recorded:
        key = ledger.key_of(decision)
        try:
            if decision.instance.id in gone:
                ledger.confirm(tools.store, key, tools.clock())
            elif decision.instance.id in errors:
                ledger.write_failure(tools.store, key, errors[decision.instance.id], tools.clock())
        except (CloudError, DeadlineError) as problem:
            done.failures.append(Failure(decision.instance.id, "record", str(problem)))


def _without(ids: Sequence[str], failures: Sequence[Failure]) -> list[str]:
    failed = {failure.instance_id for failure in failures}
    return [instance_id for instance_id in ids if instance_id not in failed]

"""One sweep over the managed instances of a stack: observe, decide, check again, act, report."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpu_fleet_image.controllers.sweep import carry_out, ledger, tidy
from gpu_fleet_image.controllers.sweep import watch as watching
from gpu_fleet_image.controllers.sweep.evidence import observe, observe_closely
from gpu_fleet_image.controllers.sweep.fleet_limits import BREAKER_LASTS, idle_within_a_day
from gpu_fleet_image.controllers.sweep.fleet_reader import FleetReader
from gpu_fleet_image.controllers.sweep.lease import Lease, SweepMemory, remembered
from gpu_fleet_image.controllers.sweep.orphaned_resources import OrphanFinding
from gpu_fleet_image.controllers.sweep.results import Done, Result
from gpu_fleet_image.controllers.sweep.situation import Situation, is_asked, is_closed
from gpu_fleet_image.controllers.sweep.verdict import decide
from gpu_fleet_image.core.calls import Failure, batches, bisect
from gpu_fleet_image.core.cloud import SweepCloud
from gpu_fleet_image.core.marks import is_given_back, is_marked
from gpu_fleet_image.core.model import (
    ENDS,
    TAG_IDLE_SINCE,
    TAG_REAP_AFTER,
    Decision,
    Inventory,
    Plan,
    Verdict,
)
from gpu_fleet_image.core.notify.notifier import Notifier, alert_text, due_alerts, flooding_text
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, DeadlineError, LeaseError

# A sweep whose clock is off by more would mistake the age of every mark and heartbeat.
_CLOCK_SKEW_S = 60


@dataclass(frozen=True)
class SweepOptions:
    """Options of a sweep.

    Attributes:
        clock: the time now, aware; it may stand still.
        holder: a name for this sweep that no other has.
        check_clock: refuse to act when this instance's clock and the cloud's differ.
        override_breaker: a user looked, and the many idle instances are idle.
        orphans: a dry run looks for orphans too; a sweep that acts does so every few hours.
        wait: waits some seconds.
    """

    clock: Callable[[], datetime]
    holder: str
    dry_run: bool = False
    check_clock: bool = True
    override_breaker: bool = False
    orphans: bool = True
    wait: Callable[[float], None] = time.sleep


def sweep(cloud: SweepCloud, policy: Policy, options: SweepOptions) -> Result:
    """Sweep once.

    Raises:
        LeaseError: another sweep is at work.
        CloudError: the fleet could not be listed or the lease not be read; nothing was changed.
        ConfigurationError: a live sweep without ledger or topic, or this instance's clock is wrong.
    """
    if options.dry_run:
        return _Sweep(cloud, policy, options).dry_run()
    if cloud.store is None or cloud.notifier is None:
        raise ConfigurationError("a sweep that acts needs GPU_FLEET_LEDGER_URI and GPU_FLEET_TOPIC_ARN")
    lease = Lease(cloud.store, options.holder, options.clock)
    lease.acquire()
    tools = carry_out.Tools(cloud.instances, cloud.notifier, cloud.store, policy, options.clock, options.wait)
    running = _Sweep(cloud, policy, options)
    try:
        watch = watching.load(cloud.store, options.clock()) if policy.watch_days else None
        if watch is not None and options.clock() < watch.until(policy):
            running = _Sweep(cloud, policy, options, watch)
            return running.watch_only(tools, lease, watch)
        if watch is not None and not watch.summed_up:
            running.sum_up(tools, watch)
        return running.act(tools, lease)
    finally:
        _release(lease, running.done)


def _release(lease: Lease, done: Done) -> None:
    try:
        lease.release()
    except (CloudError, DeadlineError) as error:
        done.failures.append(Failure("*", "release the lease", str(error)))


def _still(situation: Situation, chosen: Sequence[Decision]) -> list[Decision]:
    """Return the chosen decisions whose verdict is unchanged."""
    before = {decision.instance.id: decision.verdict for decision in chosen}
    return [
        decision
        for decision in decide(situation).with_verdict(*ENDS)
        if before.get(decision.instance.id) is decision.verdict
    ]


def _remembering(situation: Situation, memory: SweepMemory) -> Situation:
    """Return the situation with the memory of earlier sweeps."""
    instances = situation.fleet.instances
    memory.note_holds(instances, situation.now)
    memory.agents.note(situation.policy.agents, instances, situation.now)
    replaced, usual = memory.replaced_lately(situation.now), memory.usual(situation.now)
    withdrawn, far = dict(memory.withdrawn), dict(memory.far_holds)
    unseen = memory.agents.unseen(instances)
    return replace(
        situation, replaced=replaced, usual=usual, withdrawn=withdrawn, far_holds=far, unseen=unseen
    )


def _was_held_for_a_day(decision: Decision, now: datetime) -> bool:
    return decision.reap_after is not None and now >= decision.reap_after + BREAKER_LASTS


def _must_yet_close(situation: Situation, decision: Decision) -> bool:
    return is_asked(situation.policy, decision.instance) and not is_closed(situation.replies, decision)


class _Sweep:
    """One sweep."""

    def __init__(
        self, cloud: SweepCloud, policy: Policy, options: SweepOptions, watch: watching.Watch | None = None
    ) -> None:
        self._watch = watch
        self._cloud = cloud
        self._policy = policy
        self._options = options
        self.done = Done()
        is_watching = watch is not None
        self._reader = FleetReader(cloud, policy, options.clock, self.done, is_watching=is_watching)
        self._findings = list[OrphanFinding]()

    def dry_run(self) -> Result:
        """Plan, and change nothing."""
        situation = self._observe()
        situation = _remembering(situation, self._remembered())
        if self._options.orphans:
            self._find_orphans(situation)
        return self._result(situation, decide(situation))

    def act(self, tools: carry_out.Tools, lease: Lease) -> Result:
        """Plan, and carry the plan out."""
        situation = self._observe()
        situation = _remembering(situation, lease.memory)
        self._check_clock()
        plan = decide(situation)
        steps: dict[str, Callable[[], None]] = {
            "started": lambda: self._note_starts(tools, lease, situation),
            "unmark": lambda: carry_out.unmark(tools, plan, self.done),
            "end": lambda: self._end(tools, lease, situation, plan),
            "mark": lambda: carry_out.mark(tools, plan, situation.now, lease.memory.notified_at, self.done),
            "alert": lambda: self._alert(tools.notifier, lease, plan, situation.now),
            "leftovers": lambda: self._tidy(tools, lease, situation),
        }
        self._take(steps)
        self._learn(lease.memory, situation, plan)
        return self._result(situation, plan)

    def _learn(self, memory: SweepMemory, situation: Situation, plan: Plan) -> None:
        """Learn the usual number of idle instances of each pool from confirmed ends, or from an operator.

        An instance that was marked and is used again teaches nothing: one whose sensors were blind and see
        again looks the same. Nor does one that was given back, which no sensor found. And whose marks their
        agents withdrew.
        """
        for decision in (ended.decision for ended in self.done.ended):
            confirmed = is_asked(self._policy, decision.instance) and not is_given_back(decision.instance)
            if confirmed and _was_held_for_a_day(decision, situation.now):
                memory.note_idle(decision.instance.pool, situation.now, [decision.instance.id])
        for decision in plan.with_verdict(Verdict.UNMARK):
            # once for each mark: one that could not be removed is found again
            if decision.withdrawn and decision.instance.id in self.done.unmarked:
                memory.note_withdrawn(decision, situation.now)
        for pool in self._policy.pools if self._options.override_breaker else ():
            memory.note_idle(pool, situation.now, idle_within_a_day(situation.usual, plan, pool))
        if self._options.override_breaker:
            memory.agents.confirm()
        memory.forget(situation.now)

    def watch_only(self, tools: carry_out.Tools, lease: Lease, watch: watching.Watch) -> Result:
        """Plan as a sweep that acts, and report what would be terminated; terminate what was given back."""
        situation = replace(self._observe(), watching=True)
        situation = _remembering(situation, lease.memory)
        self._check_clock()
        acting = decide(situation)
        watched = decide(replace(situation, policy=watching.watching_policy(self._policy), watching=False))
        new = watch.note(watched, situation.now)
        pairs = zip(acting.decisions, watched.decisions, strict=True)
        decisions = tuple(acted if is_given_back(acted.instance) else other for acted, other in pairs)
        plan = replace(watched, decisions=decisions)
        steps: dict[str, Callable[[], None]] = {
            "started": lambda: self._note_starts(tools, lease, situation),
            "unmark": lambda: carry_out.unmark(tools, acting, self.done),
            "end": lambda: self._end(tools, lease, situation, acting),
            "mark": lambda: carry_out.mark(tools, acting, situation.now, lease.memory.notified_at, self.done),
            # sent before it is kept: what could not be sent is sent by the next sweep
            "notify": lambda: self._notify_watched(tools, watch, new),
            "watch": lambda: watching.save(tools.store, watch),
            "alert": lambda: self._alert(tools.notifier, lease, plan, situation.now),
        }
        self._take(steps)
        return replace(self._result(situation, plan), watch=watch, watched_until=watch.until(self._policy))

    def _notify_watched(
        self, tools: carry_out.Tools, watch: watching.Watch, new: list[dict[str, Any]]
    ) -> None:
        if not new:
            return
        until = watch.until(self._policy)
        subject = f"{self._policy.stack}: {len(new)} idle instance(s) would be terminated or stopped now"
        try:
            tools.notifier.send(subject, watching.text_of(new, until, self._policy.currency))
        except (CloudError, DeadlineError):
            watch.would_end = [entry for entry in watch.would_end if entry not in new]
            raise

    def sum_up(self, tools: carry_out.Tools, watch: watching.Watch) -> None:
        """Report what the days of watching showed, once; what fails is tried again by the next sweep."""
        try:
            tools.notifier.send(*watching.summary(watch, self._policy))
            watch.summed_up = True
            watching.save(tools.store, watch)
        except (CloudError, DeadlineError) as error:
            self.done.failures.append(Failure("*", "sum the watch up", str(error)))

    def _take(self, steps: Mapping[str, Callable[[], None]]) -> None:
        for name, step in steps.items():
            # What one step ran into must not keep the report of the others from users.
            try:
                step()
            except (CloudError, DeadlineError) as error:
                self.done.failures.append(Failure("*", name, str(error)))

    def _note_starts(self, tools: carry_out.Tools, lease: Lease, situation: Situation) -> None:
        """Note in the ledger that a stopped instance was started again: its saving ends."""
        for key, (record, at) in lease.memory.started_again(situation.fleet.instances).items():
            ledger.note_start(tools.store, record, at)
            del lease.memory.stopped[key]

    def _tidy(self, tools: carry_out.Tools, lease: Lease, situation: Situation) -> None:
        if not tidy.is_due(lease.memory.leftovers_at, situation.now):
            return
        self._find_orphans(situation)
        where = self._cloud.orphans
        self.done.failures += tidy.carry_out(tools, where, self._findings, situation.now)
        lease.memory.leftovers_at = situation.now

    def _observe(self) -> Situation:
        """Read everything; while the stack is watched, with the marks of the watch."""
        fleet = self._cloud.instances.fleet()
        if self._watch is not None:
            self._unmark_really(fleet)
            fleet = self._watch.overlaid(fleet)
        scale_in = self._reader.scale_in()
        now = self._options.clock()
        activity, failures = observe(self._cloud.heartbeats, fleet.instances, self._policy, now, scale_in)
        self.done.failures += failures
        locked = [self._reader.with_lock(each, activity.get(each.id)) for each in fleet.instances]
        fleet = replace(fleet, instances=tuple(locked))
        replies = self._reader.replies(fleet, now, {})
        return Situation(
            now, fleet, activity, self._policy, scale_in, self._options.override_breaker, replies
        )

    def _observe_again(self, situation: Situation, chosen: Sequence[Decision]) -> Situation:
        """Read everything about the chosen instances again.

        Replies are read before tags: `keep` sets its tag before it decides, so that the later of the two sees
        what the other did.
        """
        replies = self._reader.replies(situation.fleet, situation.now, situation.replies)
        ids = [decision.instance.id for decision in chosen]
        groups = {group.name for key in ids if (group := situation.fleet.group_of(key))}
        fresh = self._cloud.instances.again(ids, sorted(groups))
        now = self._options.clock()
        running = [instance for instance in fresh.instances if instance.state == "running"]
        activity, failures = observe_closely(
            self._cloud.heartbeats, running, situation.activity, self._policy, now
        )
        self.done.failures += failures
        others = tuple(instance for instance in situation.fleet.instances if instance.id not in ids)
        old_groups = tuple(group for group in situation.fleet.groups if group.name not in groups)
        fleet = Inventory(others + fresh.instances, old_groups + fresh.groups)
        activity = {**situation.activity, **activity}
        return replace(situation, now=now, fleet=fleet, activity=activity, replies=replies)

    def _unmark_really(self, fleet: Inventory) -> None:
        """Remove marks from before the watch: no instance shall expect an end that does not come."""
        marked = [
            instance.id for instance in fleet.instances if is_marked(instance) and not is_given_back(instance)
        ]
        untag = self._cloud.instances.untag
        for batch in batches(marked, carry_out.TAG_BATCH):
            failed = bisect(batch, "unmark", lambda some: untag(some, (TAG_IDLE_SINCE, TAG_REAP_AFTER)))
            self.done.failures += failed

    def _remembered(self) -> SweepMemory:
        """Read the memory of earlier sweeps; empty where it cannot be read."""
        if self._cloud.store is None:
            return SweepMemory()
        try:
            return remembered(self._cloud.store)
        except CloudError as error:
            self.done.failures.append(Failure("*", "read the lease", str(error)))
            return SweepMemory()

    def _find_orphans(self, situation: Situation) -> None:
        instances = situation.fleet.instances
        try:
            self._findings = tidy.find_orphans(self._cloud.orphans, instances, self._policy, situation.now)
        except (CloudError, DeadlineError) as error:
            self.done.failures.append(Failure("*", "look for leftovers", str(error)))

    def _check_clock(self) -> None:
        skew_s = self._cloud.calls.skew_s
        if self._options.check_clock and skew_s is not None and abs(skew_s) > _CLOCK_SKEW_S:
            raise ConfigurationError(
                f"this computer's clock differs from the cloud's by {skew_s:.0f} s; "
                f"allowed: {_CLOCK_SKEW_S} s"
            )

    def _end(self, tools: carry_out.Tools, lease: Lease, situation: Situation, plan: Plan) -> None:
        """Check the chosen again, have them refuse new work, check once more, end the idle ones."""
        chosen = plan.with_verdict(*ENDS)
        if not chosen:
            return
        try:
            again = self._observe_again(situation, chosen)
            still = _still(again, chosen)
            open_ones = [instance for instance in still if _must_yet_close(again, instance)]
            if open_ones:
                carry_out.close(tools, open_ones, again.replies, self.done)
                again = self._observe_again(again, still)
                still = _still(again, still)
            still = [instance for instance in still if not _must_yet_close(again, instance)]
            # written before they are terminated: a sweep that is cut off has counted too many, never too few
            lease.memory.note_ending(still, again.now)
            lease.renew()
        except (CloudError, DeadlineError, LeaseError) as error:
            self.done.failures += [
                Failure(decision.instance.id, "check again", str(error)) for decision in chosen
            ]
            return
        checked = carry_out.Checked(again.now, again.fleet, again.replies)
        carry_out.end(tools, still, checked, self.done)

    def _alert(self, notifier: Notifier, lease: Lease, plan: Plan, now: datetime) -> None:
        """Notify the operators once a day of each instance that needs attention."""
        due, remembered = due_alerts(plan.decisions, lease.memory.notified_at, now)
        floods = {f"{caller} floods": caller for caller in self.done.flooding}
        unreported = [caller for key, caller in floods.items() if key not in remembered]
        remembered |= {key: remembered.get(key, now) for key in floods}
        if not due and not unreported:
            lease.memory.notified_at = remembered
            return
        what = "mass-idle breaker tripped" if plan.breaker else "instances to look at"
        lines = [flooding_text(caller, self.done.flooding[caller]) for caller in unreported]
        try:
            notifier.send(
                f"{self._policy.stack}: {what}", "\n".join([*filter(None, [alert_text(due)]), *lines])
            )
        except (CloudError, DeadlineError) as error:
            self.done.failures.append(Failure("*", "notify", str(error)))
        else:
            lease.memory.notified_at = remembered

    def _result(self, situation: Situation, plan: Plan) -> Result:
        calls = self._cloud.calls
        return Result(
            now=situation.now,
            dry_run=self._options.dry_run,
            currency=self._policy.currency,
            plan=plan,
            done=self.done,
            read_calls=calls.reads,
            write_calls=calls.writes,
            fleet=situation.fleet,
            orphans=[finding.to_json() for finding in self._findings],
        )

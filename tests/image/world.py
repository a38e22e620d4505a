"""A world with instances, users and a clock; ``world_clients`` shows it as boto3 would.

It knows the truth that no sweep knows: the true history of each instance. ``oracle`` checks every end
against it.
"""

import bisect
import email.utils
import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from gpu_fleet_image.core.metrics import CODE_HUNG
from gpu_fleet_image.core.model import (
    KEEP_AT_MOST,
    TAG_GIVE_BACK,
    TAG_KEEP_UNTIL,
    TAG_MANAGED,
    TAG_OWNER,
    TAG_POOL,
    TAG_PROTECTED,
    TAG_REAP_AFTER,
    TAG_STACK,
    TAG_TAKEN_AT,
    TAG_WITHDRAWN,
)
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.providers.aws.instances import TAG_GROUP
from tests.image.oracle import NEVER, SHORTEST_USE, Rules, Span, Timeline, wrongs_of

STACK = "test"  # every other one is somebody else's
EPOCH = datetime(2026, 3, 2, 8, tzinfo=UTC)
# Calls of a sweep that are followed by its last look at what it ends.
BEFORE_THE_LAST_LOOK = frozenset(
    {"PutObject", "DetachInstances", "GetMetricData", "DescribeMetricLast", "DescribeMetricList"}
)
# What was given back has no grace; its next mark takes a sweep, and a heartbeat of after that.
SOONEST_MARK = timedelta(seconds=30)
AT_WORK = frozenset({"alive", "blind", "deluded"})  # agents that answer
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def refusal(code: str, operation: str = "Operation") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": f"the world says {code}"}}, operation)


def operation_of(work: Callable[..., Any]) -> str:
    """Return a method's call as the clouds name it."""
    return "".join(part.capitalize() for part in work.__name__.split("_"))


def dated(now: datetime, content: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as boto3 does, with the cloud's time."""
    date = email.utils.format_datetime(now.replace(microsecond=0), usegmt=True)
    return content | {"ResponseMetadata": {"HTTPHeaders": {"date": date}, "RetryAttempts": 0}}


def minima(
    times: Sequence[datetime], values: Sequence[float], of: range, period_s: int
) -> list[tuple[datetime, float]]:
    """Return the smallest value of each period, the newest first, as CloudWatch does."""
    found: dict[int, float] = {}
    for index in of:
        slot = int(times[index].timestamp() // period_s)
        found[slot] = min(values[index], found.get(slot, values[index]))
    return [
        (datetime.fromtimestamp(slot * period_s, UTC), found[slot]) for slot in sorted(found, reverse=True)
    ]


class SimulatedInstance:
    """One instance: its state by the cloud, by its agent, and in truth.

    Args:
        clock: the true time.
        busy: whether a user works on it at once.
        unfit: its boot check failed; its agent says so while nothing works.

    Attributes:
        line: true history; the oracle's evidence.
        seen_active_at: last activity by its agent: its start, or the last use that it saw.
        door: door that refuses log-ins and jobs.
        stubborn: the cloud refuses to end it, for an unknown reason.
        clock_ahead: by how much its agent dates its heartbeats into the future.
        loop: a pane where a user left one running, as (seconds from one run to the next, seconds of a run).
        is_new_each_time: each run of it is another command.
        is_a_run: a job looks like one more run of that loop.
        habits: what its agent learned of it.
        agent: ``alive``, ``dead`` (says nothing), ``frozen`` (repeats itself), ``blind`` (a sensor fails),
            ``sightless`` (its sensors answer, and see nothing; it answers to no mark), ``deluded`` (the same,
            and it answers to marks by what it sees) or ``doubtful`` (a GPU looks hung).
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        id: str,  # noqa: A002 - as the cloud calls it
        tags: dict[str, str],
        *,
        busy: bool = True,
        unfit: bool = False,
        spot: bool = False,
        state: str = "running",
    ) -> None:
        self._clock = clock
        self.id, self.tags, self.unfit, self.spot = id, tags, unfit, spot
        self.launched_at = self.seen_active_at = clock()
        self.state, self.agent = state, "alive"
        self.stopped_at: datetime | None = None
        self.beats_at: list[datetime] = []
        self.beats: list[float] = []
        self.door = Door()
        self.stubborn = self.is_new_each_time = self.is_a_run = False
        self.loop: tuple[float, float] | None = None
        self.habits: Any = None
        self.clock_ahead = timedelta(0)
        self.line = Timeline(boots=[clock()])
        self._unseen_use = False
        if unfit:
            self.line.asked_for.open(clock())
        self.busy = busy

    @property
    def busy(self) -> bool:
        """True if it is really in use now; setting it begins a job, or ends every use."""
        return self.line.jobs.holds_at(self._clock()) or self.line.typing.holds_at(self._clock())

    @busy.setter
    def busy(self, busy: bool) -> None:
        if not busy:
            self.leave()
        elif not self.door.is_shut:
            self.line.jobs.open(self._clock())

    def type(self) -> None:
        if not self.door.is_shut:
            self.line.typing.open(self._clock())

    def begin_behind_the_door(self) -> None:
        """Begin a job in a terminal that was open before."""
        self.line.jobs.open(self._clock())

    def leave(self) -> None:
        for spans in (self.line.jobs, self.line.typing):
            if spans.holds_at(self._clock()):
                spans.close(self._clock())
                self.write()
                self._unseen_use = self._unseen_use or not spans[-1].is_over_within(SHORTEST_USE)

    def write(self) -> None:
        self.line.written.append(self._clock())

    def was_used(self) -> bool:
        """Return whether it was used since the last call, as an agent sees that polls every five seconds."""
        used, self._unseen_use = self._unseen_use or self.busy, False
        return used

    def shown(self, after: timedelta) -> int:
        """Return the number of its heartbeats that the cloud shows by now, with this delay."""
        return bisect.bisect_right(self.beats_at, self._clock() - after + self.clock_ahead)

    def keep(self, until: datetime | str) -> None:
        """Keep it, as its owner asks, perhaps in an unreadable form."""
        self.release()
        self.line.given_back.close(self._clock())
        self.tags.pop(TAG_GIVE_BACK, None)
        until_at = min(until, self._clock() + KEEP_AT_MOST) if isinstance(until, datetime) else NEVER
        self.line.holds.append(Span(self._clock(), until_at))
        self.tags[TAG_KEEP_UNTIL] = until.isoformat() if isinstance(until, datetime) else until

    def unmark(self, promised: timedelta, until: datetime | None = None) -> None:
        """Delete its mark, or write another time there, as an administrator may.

        Args:
            promised: grace of a new mark.
            until: that other time.
        """
        if self.tags.pop(TAG_REAP_AFTER, None) is None:
            return
        if until is not None:
            self.tags[TAG_REAP_AFTER] = format_time(until)
        given_back = self.line.given_back.holds_at(self._clock())
        grace = SOONEST_MARK if given_back else promised
        self.line.spared.append(Span(self._clock(), until or self._clock() + grace))

    def take(self) -> None:
        self.line.taken.append(self._clock())
        self.line.given_back.close(self._clock())
        self.tags[TAG_TAKEN_AT] = format_time(self._clock())

    def give_back(self) -> None:
        """Give it back, as its owner does, and end its hold."""
        self.release()
        self.line.given_back.open(self._clock())
        self.tags[TAG_GIVE_BACK] = f"{format_time(self._clock())} {self.tags[TAG_OWNER]}"

    def release(self) -> None:
        self.line.holds.close(self._clock())
        self.tags.pop(TAG_KEEP_UNTIL, None)

    @property
    def is_locked(self) -> bool:
        return self.line.locked.holds_at(self._clock())

    def lock(self, *, on: bool = True) -> None:
        (self.line.locked.open if on else self.line.locked.close)(self._clock())


class Door:
    """The door of one instance: while it is closed, no new use begins.

    Attributes:
        saved: number of saves of users' files behind it.
        while_saving: action during a save.
    """

    def __init__(self) -> None:
        self.is_shut, self.saved = False, 0
        self.while_saving: Callable[[], object] = lambda: None

    def shut_at(self, now: datetime) -> datetime | None:
        return now if self.is_shut else None

    def shut(self, message: str) -> None:
        """Change the state as the agent's own door does."""
        assert message, "who is refused is to know why"
        self.is_shut = True

    def open(self) -> None:
        self.is_shut = False


@dataclass
class Faults:
    """Faults, each with a probability for one call."""

    throttled: float = 0.0
    denied: float = 0.0
    after_commit: float = 0.0
    partial: float = 0.0
    kept: slice = field(default_factory=lambda: slice(None, None, 2))  # of a partial answer, newest first
    rest: float = 0.5  # of the partial answers: those that say where the rest is
    duplicated: float = 0.0
    deaf: float = 0.0
    back_to_work: float = 0.0
    unmarked: float = 0.0  # an administrator removes an instance's mark while a sweep is at work
    seconds_per_call: float = 0.05


class AgentDiedError(BaseException):
    """End of the agent's process."""


class HeldUpLook:
    """One poll of an agent, in its own thread: while a reply is delayed it waits, and the world advances.

    One of both runs at a time, so that a run is the same each time.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self.until, self.is_over, self._is_given_up = NEVER, False, False  # it continues at ``until``
        self._error: BaseException | None = None
        self._look, self._turn, self._back = look, threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def go_on(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.look = self  # type: ignore[attr-defined] # for ``wait``
            self._thread.start()
        else:
            self._turn.release()
        self._back.acquire()
        if self._error is not None:
            raise self._error

    def give_up(self) -> None:
        """End it, since its agent died."""
        self._is_given_up = True
        if self._thread is not None and not self.is_over:
            self.go_on()

    @staticmethod
    def is_held_up() -> bool:
        """Return whether this thread is a poll with delays."""
        return hasattr(threading.current_thread(), "look")

    @staticmethod
    def wait(until: datetime) -> None:
        """Let the world advance, in such a thread."""
        self = threading.current_thread().look  # type: ignore[attr-defined] # as ``go_on`` made it
        self.until = until
        self._back.release()
        self._turn.acquire()
        if self._is_given_up:
            raise AgentDiedError

    def _run(self) -> None:
        try:
            self._look()
        except AgentDiedError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised where the look goes on
            self._error = error
        self.is_over = True
        self._back.release()


@dataclass(frozen=True)
class Patience:
    """Retries of a client for the write of one object."""

    attempts: int = 1
    given_up_after: timedelta = timedelta(seconds=5)  # without an answer


class World:
    """Everything there is.

    Attributes:
        skew: time by which the sweep's own clock is ahead.
        ends: (time, instance, how) of every end by the API.
        rules: pool -> promises to its users; ``sweep_world`` reads them from the policy.
        wrongs: every promise that an end broke, as text.
        shown_after: delay until the cloud shows a heartbeat.
        modified: key of an object -> time of its write, by the bucket.
        daily: (instance, metric) -> value of a whole day, by the cloud.
        spot_prices: instance type -> zone -> price of an hour.
        answering: creates the agent of an instance, if its policy asks for replies.
        unfit_at_start: instances that start from now on fail their boot check.
        patience: of the agents' clients.
        way: of one attempt of theirs, by its key: how long it is on its way; None where it is lost.
        way_back: for how many seconds the answer of one of the sweep's lists is on its way.
    """

    def __init__(self, seed: int = 0) -> None:
        self.now = EPOCH
        self.skew = timedelta(0)
        self.instances: dict[str, SimulatedInstance] = {}
        self.groups: dict[str, dict[str, Any]] = {}
        self.lifecycle: dict[str, str] = {}
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.versions_made = itertools.count(1)
        self.modified: dict[str, datetime] = {}
        self.messages: list[tuple[datetime, str]] = []
        self.alarms: set[str] = set()
        self.ends: list[tuple[datetime, SimulatedInstance, str]] = []
        self.rules: dict[str, Rules] = {}
        self.wrongs: list[str] = []
        self.published: dict[str, float] = defaultdict(float)
        self.daily: dict[tuple[str, str], float] = {}
        self.spot_prices: dict[str, dict[str, str]] = {}
        self.unfit_at_start = False
        self.faults = Faults()
        self.answering: Callable[[SimulatedInstance], Any] | None = None
        self.agents: dict[str, Any] = {}
        self.page = 1000
        self.shown_after = timedelta(0)
        self.calls: list[str] = []
        self._surprises: dict[str, tuple[int, Callable[[], object]]] = {}
        self._agents_act = False
        self._held_up: dict[str, HeldUpLook] = {}
        self.patience: Callable[[], Patience] = Patience
        self.way: Callable[[str], timedelta | None] | None = None
        self.way_back: Callable[[], float] | None = None
        self._random = random.Random(seed)
        self._numbers = itertools.count(1)

    # users and time

    def clock(self) -> datetime:
        return self.now + self.skew

    def start(self, tags: dict[str, str], group: str | None = None, **more: Any) -> SimulatedInstance:
        key = f"i-{next(self._numbers):017x}"
        more = {"unfit": self.unfit_at_start} | more
        instance = SimulatedInstance(lambda: self.now, key, dict(tags), **more)
        self.instances[key] = instance
        if tags.get(TAG_MANAGED) != "true" or tags.get(TAG_STACK) != STACK or TAG_PROTECTED in tags:
            instance.line.foreign.open(self.now)
        if group is not None:
            self.attach(group, [key])
        return instance

    def group(self, name: str, min_size: int, max_size: int = 10, **tags: str) -> None:
        made = {"min": min_size, "max": max_size, "desired": 0, "members": [], "suspended": set()}
        self.groups[name] = made | {"tags": tags}

    def standing(self, ids: Sequence[str]) -> list[SimulatedInstance]:
        known = [self.instances[key] for key in ids if key in self.instances]
        return [instance for instance in known if instance.state != "terminated"]

    def tagged_groups(self) -> list[str]:
        return [name for name, group in self.groups.items() if not group.get("untagged")]

    def join(self, group: str, tags: dict[str, str], **more: Any) -> SimulatedInstance:
        self.groups[group]["desired"] += 1
        return self.start(tags, group, **more)

    def attach(self, group: str, ids: list[str]) -> None:
        for key in ids:
            self.groups[group]["members"].append(key)
            self.instances[key].tags[TAG_GROUP] = group
            self.instances[key].line.member.open(self.now)

    def detach(self, group: str, ids: list[str], *, decrement: bool) -> None:
        """Take members out of their group, which then wants fewer, or starts others at once."""
        made = self.groups[group]
        made["members"] = [key for key in made["members"] if key not in ids]
        for key in ids:
            self.instances[key].tags.pop(TAG_GROUP, None)
            self.instances[key].line.member.close(self.now)
        if decrement:
            made["desired"] -= len(ids)
        elif "Launch" not in made["suspended"] and "SCALE_OUT" not in made["suspended"]:
            for key in ids:
                self.start(self.instances[key].tags, group, busy=not self.unfit_at_start)

    def pass_minutes(self, minutes: int) -> None:
        self._pass(minutes * MINUTE)

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass, as a sweep's wait does."""
        self._pass(timedelta(seconds=seconds))

    def _pass(self, span: timedelta) -> None:
        end = self.now + span
        while self.now < end:
            minute = self.now.replace(second=0, microsecond=0) + MINUTE
            asked = self._asked()
            look = self._next_look(asked)
            self.now = min(minute, end, look, *(held_up.until for held_up in self._held_up.values()))
            for key, held_up in list(self._held_up.items()):
                if held_up.until <= self.now:
                    self._go_on(self.instances[key], held_up)
            for instance in asked if self.now == look else ():
                self._answer(instance)
            for instance in self.instances.values() if self.now == minute else ():
                if instance.state == "running":
                    self._minute_of(instance)

    def _asked(self) -> list[SimulatedInstance]:
        """Return the instances whose agents were asked by a due mark, or have refused one."""
        if self.answering is None:
            return []
        everyone = self.instances.values()
        due = [one for one in everyone if self._is_due(one) or TAG_WITHDRAWN in one.tags]
        known = [self.instances[key] for key in self.agents]
        asked = {instance.id: instance for instance in (*due, *known) if instance.state == "running"}
        return [call for call in asked.values() if call.agent in AT_WORK and call.id not in self._held_up]

    def _is_due(self, instance: SimulatedInstance) -> bool:
        mark = instance.tags.get(TAG_REAP_AFTER)
        return mark is not None and datetime.fromisoformat(mark) <= self.now

    def _next_look(self, asked: list[SimulatedInstance]) -> datetime:
        """Return the time of the next poll: every five seconds, and every second behind a closed door."""
        if not asked:
            return NEVER
        step = SECOND if any(call.door.is_shut for call in asked) else 5 * SECOND
        return EPOCH + ((self.now - EPOCH) // step + 1) * step

    def _answer(self, instance: SimulatedInstance) -> None:
        """Run one poll of an agent about its mark; its calls take none of the sweep's time."""
        assert self.answering is not None
        agent = self.agents.get(instance.id) or self.answering(instance)
        self.agents[instance.id] = agent
        if self.way is not None:
            self._go_on(instance, HeldUpLook(agent.act))
            return
        with self._of_agents():
            agent.act()
        self._forget_idle(instance)

    @contextmanager
    def _of_agents(self) -> Iterator[None]:
        """Let the calls of a block be an agent's, which no fault but a throttle meets."""
        self._agents_act = True
        try:
            yield
        finally:
            self._agents_act = False

    def _go_on(self, instance: SimulatedInstance, look: "HeldUpLook") -> None:
        """Run one poll of an agent until a reply is delayed; a reply under way is lost with its agent."""
        self._held_up.pop(instance.id, None)
        if instance.agent not in AT_WORK or instance.state != "running":
            look.give_up()
            return
        with self._of_agents():
            look.go_on()
        if look.is_over:
            self._forget_idle(instance)
        else:
            self._held_up[instance.id] = look

    def _forget_idle(self, instance: SimulatedInstance) -> None:
        """Forget an agent that is not asked."""
        agent = self.agents[instance.id]
        tagged = instance.tags.keys() & {TAG_REAP_AFTER, TAG_WITHDRAWN}
        if not tagged and agent.notice_listener.talk.mark is None and not instance.door.is_shut:
            del self.agents[instance.id]

    def _minute_of(self, instance: SimulatedInstance) -> None:
        if self.alarms:
            instance.line.asked_for.open(self.now)
        elif not instance.unfit:
            instance.line.asked_for.close(self.now)
        if instance.was_used() and instance.agent == "alive":
            instance.seen_active_at = self.now
        if instance.agent == "dead":
            return
        if instance.agent == "alive" and instance.unfit and not instance.busy:
            value = -3.0
        elif instance.agent in {"alive", "sightless", "deluded"}:
            value = (self.now - instance.seen_active_at).total_seconds()
        elif instance.agent in {"blind", "doubtful"}:
            value = CODE_HUNG if instance.agent == "doubtful" else -1.0
        else:
            value = instance.beats[-1] if instance.beats else 0.0
        instance.beats_at.append(self.now + instance.clock_ahead)
        instance.beats.append(value)

    def restart_agent(self, instance: SimulatedInstance) -> None:
        self._stop_agent(instance)
        instance.habits = None
        if instance.door.is_shut and self.answering is not None:
            self.agents[instance.id] = self.answering(instance)
        instance.agent = "alive"
        instance.seen_active_at = self.now

    def _stop_agent(self, instance: SimulatedInstance) -> None:
        self.agents.pop(instance.id, None)
        if look := self._held_up.pop(instance.id, None):
            look.give_up()

    # what every call goes through

    def send(self, key: str) -> None:
        if self.way is None or not HeldUpLook.is_held_up():
            return
        patience = self.patience()
        for _ in range(patience.attempts):
            took = self.way(key)
            HeldUpLook.wait(self.now + (patience.given_up_after if took is None else took))
            if took is not None:
                return
        raise ReadTimeoutError(endpoint_url=key)

    def answer(self, operation: str, content: dict[str, Any]) -> dict[str, Any]:
        if not self._agents_act:
            self.calls.append(operation)
        return dated(self.now, content)

    def on_call(self, operation: str, act: Callable[[], object], number: int = 2) -> None:
        """Run an action right before a call, by default the second of its kind from now on."""
        self._surprises[operation] = (number, act)

    def deny(self, operation: str, number: int = 1) -> None:
        """Refuse a call, by default the next of its kind; a transient code would be tried again."""

        def refuse() -> None:
            raise refusal("UnauthorizedOperation", operation)

        self.on_call(operation, refuse, number)

    def before(self, operation: str) -> None:
        if self._agents_act:
            if self.chance(self.faults.throttled):
                raise refusal("RequestLimitExceeded", operation)
            return
        if operation in self._surprises:
            left, act = self._surprises.pop(operation)
            if left > 1:
                self._surprises[operation] = (left - 1, act)
            else:
                act()
        self.pass_seconds(self.faults.seconds_per_call)
        for instance in self.instances.values():
            if self.chance(self.faults.back_to_work) and instance.state == "running":
                instance.busy = True
            if operation in BEFORE_THE_LAST_LOOK and self.faults.unmarked:
                self.unmark(instance, self.faults.unmarked)
        if self._random.random() < self.faults.throttled:
            raise refusal("RequestLimitExceeded", operation)
        if self._random.random() < self.faults.denied:
            raise refusal("UnauthorizedOperation", operation)

    def after(self, operation: str) -> None:
        """Inject the fault that hides a call's success."""
        if self._random.random() < self.faults.after_commit:
            raise refusal("InternalError", operation)

    def hear(self, message: str) -> None:
        """Record a message to users; one with `gpu-fleet keep` is the notice of an instance's end."""
        self.messages.append((self.now, message))
        for instance in self.instances.values():
            if instance.id in message and "gpu-fleet keep" in message:
                instance.line.notices.append(self.now)

    def floors(self) -> list[str]:
        """Return every group that wants fewer than its minimum, or than it has: its cloud would end one."""
        return [
            f"group {name} wants {group['desired']}, its minimum is {group['min']}, and {count} run in it"
            for name, group in self.groups.items()
            for count in [sum(self.instances[key].state == "running" for key in group["members"])]
            if group["desired"] < max(group["min"], count)
        ]

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def unmark(self, instance: SimulatedInstance, chance: float = 1.0, until: datetime | None = None) -> None:
        """Remove its mark with a probability, as an administrator may; see ``SimulatedInstance.unmark``."""
        rules = self.rules.get(instance.tags.get(TAG_POOL, ""))
        if rules is not None and self.chance(chance):
            instance.unmark(rules.grace, until)

    def gone(self, instance: SimulatedInstance, how: str) -> None:
        if instance.state == "running" or (instance.state == "stopped" and how == "terminated"):
            self.ends.append((self.now, instance, how))
            rules = self.rules.get(instance.tags.get(TAG_POOL, ""))
            wrongs = wrongs_of(instance.line, self.now, rules) if rules else ["its pool is in no policy"]
            self.wrongs += [f"{instance.id} was {how} at {self.now}: {wrong}" for wrong in wrongs]
        instance.leave()
        instance.line.given_back.close(self.now)
        self._stop_agent(instance)
        instance.state = how
        instance.stopped_at = self.now
        (instance.line.stopped.open if how == "stopped" else instance.line.stopped.close)(self.now)

    def boot(self, instance: SimulatedInstance) -> None:
        instance.state, instance.stopped_at = "running", None
        instance.line.stopped.close(self.now)
        instance.line.boots.append(self.now)
        instance.launched_at = self.now
        instance.door.open()
        self.restart_agent(instance)
        instance.busy = True

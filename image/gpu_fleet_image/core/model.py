"""The words of this room: instances, groups, what is known of their activity, and verdicts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

TAG_STACK = "gpu-fleet:stack"
TAG_POOL = "gpu-fleet:pool"
TAG_OWNER = "gpu-fleet:owner"
TAG_MANAGED = "gpu-fleet:managed"
TAG_IDLE_SINCE = "gpu-fleet:idle-since"
TAG_REAP_AFTER = "gpu-fleet:reap-after"
TAG_PROTECTED = "gpu-fleet:protected"  # any value: an administrator's never
TAG_WITHDRAWN = "gpu-fleet:withdrawn"  # an instance's own, for a mark: on AWS it denies its stop
# set by whoever took the instance, as ``TIME NAME``: the sweep terminates it as soon as nothing runs there
TAG_GIVE_BACK = "gpu-fleet:give-back"
TAG_TAKEN_AT = "gpu-fleet:taken-at"  # when a user got it, be it a spare that ran before; set by the mover
TAG_KEEP_UNTIL = "gpu-fleet:keep-until"
TAG_KEEP_REASON = "gpu-fleet:keep-reason"
TAG_KEEP_BY = "gpu-fleet:keep-by"  # TIME NAME: of the hold whose end is TIME
TAG_USERS = "gpu-fleet:users"  # who was seen on the instance, newest first; set by its agent

KEEP_AT_MOST = timedelta(days=14)
# A login name that may be said: what a tag's value may hold (EC2, API Tag), without what sets words apart.
LOGIN_NAME = re.compile(r"[\w./=@-]{1,64}", re.ASCII)


class Tie(StrEnum):
    """What a user was seen to do on an instance."""

    LAUNCHED = "launch"
    LOGGED_IN = "login"
    RUNS = "process"


@dataclass(frozen=True)
class User:
    """A user seen on an instance: a word of ``TAG_USERS``, say ``ada:login+process``.

    Attributes:
        ties: what they did, each once.
    """

    name: str
    ties: tuple[Tie, ...]

    @classmethod
    def of(cls, word: object) -> "User | None":
        """What a word says; None for one that no agent writes."""
        name, colon, ties = str(word).partition(":")
        if not colon or LOGIN_NAME.fullmatch(name) is None:
            return None
        try:
            return cls(name, tuple(dict.fromkeys(Tie(tie) for tie in ties.split("+"))))
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.name}:{'+'.join(self.ties)}"


class Verdict(StrEnum):
    """What a sweep does with one instance; only STOP and TERMINATE end it."""

    KEEP_BUSY = "KEEP-busy"
    KEEP_YOUNG = "KEEP-young"
    KEEP_HELD = "KEEP-held"
    KEEP_PROTECTED = "KEEP-protected"
    KEEP_FLOOR = "KEEP-floor"
    KEEP_UNKNOWN = "KEEP-unknown"
    MARK = "MARK"
    WAIT = "WAIT"
    UNMARK = "UNMARK"
    STOP = "STOP"
    TERMINATE = "TERMINATE"
    ALERT = "ALERT"


ENDS = frozenset({Verdict.STOP, Verdict.TERMINATE})


@dataclass(frozen=True)
class Instance:
    """One instance as the cloud describes it.

    Attributes:
        state: ``pending``, ``running``, ``stopping``, ``stopped``, ``shutting-down`` or ``terminated``.
        launched_at: last start; a stop and start moves it.
        stopped_at: when it was stopped or terminated, where the cloud says so.
        locked: why the cloud itself would not let it go, or an empty text.
        image: what it booted, or an empty text where the cloud does not say so.
    """

    id: str
    type: str
    state: str
    launched_at: datetime
    tags: Mapping[str, str] = field(default_factory=dict)
    spot: bool = False
    stopped_at: datetime | None = None
    locked: str = ""
    image: str = ""

    @property
    def pool(self) -> str:
        """Its pool, or an empty text."""
        return self.tags.get(TAG_POOL, "")

    @property
    def owner(self) -> str:
        """Who answers for it, or an empty text."""
        return self.tags.get(TAG_OWNER, "")


@dataclass(frozen=True)
class Group:
    """A scaling group.

    Attributes:
        min_size: the group never has fewer instances.
        members: instance id -> lifecycle state (``InService``, ``Standby``, ``Terminating:Wait``...).
        max_size: the group never has more instances.
        pool: whose instances it starts, or an empty text.
        closed: it starts no instance, whatever it wants (its ``Launch`` process is suspended).
        title: what its stack calls it: its name on AWS, where Alibaba Cloud goes by ids.
    """

    name: str
    min_size: int
    desired: int
    members: Mapping[str, str]
    max_size: int = 0
    pool: str = ""
    closed: bool = False
    title: str = ""

    @property
    def size(self) -> int:
        """Instances that are in it and not on their way out."""
        leaving = ("Terminat", "Detach", "Remov")
        return sum(not state.startswith(leaving) for state in self.members.values())


@dataclass(frozen=True)
class Inventory:
    """Every managed instance of the stack, and the groups they are in.

    Attributes:
        instances: those that are not gone.
        groups: every group of the stack.
        gone: terminated ones that the cloud still lists, for the meter alone.
    """

    instances: tuple[Instance, ...]
    groups: tuple[Group, ...] = ()
    gone: tuple[Instance, ...] = ()

    def group_of(self, instance_id: str) -> Group | None:
        """The group an instance is in, if any."""
        return next((group for group in self.groups if instance_id in group.members), None)


@dataclass(frozen=True)
class Coverage:
    """How many metric periods of a window hold a heartbeat that says whether the instance is idle."""

    seen: int
    expected: int

    @property
    def percent(self) -> float:
        """Share of the window that is covered."""
        return 100.0 * self.seen / self.expected if self.expected else 0.0


@dataclass(frozen=True)
class Activity:
    """What an instance's heartbeats say, summed up.

    Attributes:
        newest_at: start of the metric period of the newest heartbeat; None without any.
        newest_value: that period's smallest ``SecondsSinceActivity``: seconds, or a negative code.
        last_active_at: the latest moment at or after which something is known to have been active; None when
            no heartbeat says.
        coverage: of each window that was looked at.
        complete: the cloud answered the whole query.
        contradictory: the heartbeats disagree with one another.
    """

    newest_at: datetime | None
    period_s: int
    newest_value: float
    last_active_at: datetime | None
    coverage: tuple[Coverage, ...]
    complete: bool = True
    contradictory: bool = False


@dataclass(frozen=True)
class Decision:
    """A verdict on one instance, with its one reason.

    Attributes:
        reason: why, for a user.
        idle_s: proven seconds without activity, where known.
        idle_since: since when nothing was active, where known.
        reap_after: when the instance may go, where marked or to be marked.
        alert: a user should be notified.
        hourly_price: of the instance in the policy's currency, where known.
        replaced: its group starts another in its place.
        withdrawn: its agent withdrew the mark, though its heartbeats show no use.
    """

    instance: Instance
    verdict: Verdict
    reason: str
    idle_s: float | None = None
    idle_since: datetime | None = None
    reap_after: datetime | None = None
    alert: bool = False
    hourly_price: Decimal | None = None
    replaced: bool = False
    withdrawn: bool = False


@dataclass(frozen=True)
class Plan:
    """One decision for each instance.

    Attributes:
        decisions: by instance id.
        breaker: too many instances fell idle at once; nothing is to be done.
    """

    decisions: tuple[Decision, ...]
    breaker: bool = False

    def with_verdict(self, *verdicts: Verdict) -> tuple[Decision, ...]:
        """The decisions with one of these verdicts."""
        return tuple(decision for decision in self.decisions if decision.verdict in verdicts)


class Kind(StrEnum):
    """What an instance left behind."""

    VOLUME = "volume"
    ADDRESS = "address"
    INSTANCE = "stopped instance"


@dataclass(frozen=True)
class OrphanedResource:
    """One thing that nobody uses.

    Attributes:
        size_gib: of a volume, or of a stopped instance's volumes; 0 for an address.
        unused_since: where the cloud reports it; else the note on it counts.
        in_use: it carries a note but is used again.
    """

    kind: Kind
    id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    size_gib: int = 0
    volume_type: str = ""
    unused_since: datetime | None = None
    in_use: bool = False

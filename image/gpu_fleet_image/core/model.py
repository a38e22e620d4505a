"""The reaper's data model: instances, groups, their activity, and verdicts."""

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
TAG_PROTECTED = "gpu-fleet:protected"  # any value: set by an administrator, the instance is never terminated
TAG_WITHDRAWN = "gpu-fleet:withdrawn"  # the instance's own, for a mark: on AWS it denies its stop
# set by the user of the instance, as ``TIME NAME``: the sweep terminates it as soon as it is idle
TAG_GIVE_BACK = "gpu-fleet:give-back"
TAG_TAKEN_AT = "gpu-fleet:taken-at"  # when a user got it, even if it ran before as a spare; set by the mover
TAG_KEEP_UNTIL = "gpu-fleet:keep-until"
TAG_KEEP_REASON = "gpu-fleet:keep-reason"
TAG_KEEP_BY = "gpu-fleet:keep-by"  # TIME NAME: of the hold whose end is TIME
TAG_USERS = "gpu-fleet:users"  # users seen on the instance, newest first; set by its agent

KEEP_AT_MOST = timedelta(days=14)
# A login name that a tag's value can hold (EC2, API Tag), without the characters that separate words.
LOGIN_NAME = re.compile(r"[\w./=@-]{1,64}", re.ASCII)


class Tie(StrEnum):
    """Relation of a user to an instance: what they did there."""

    LAUNCHED = "launch"
    LOGGED_IN = "login"
    RUNS = "process"


@dataclass(frozen=True)
class User:
    """A user seen on an instance: a word of ``TAG_USERS``, say ``ada:login+process``.

    Attributes:
        ties: what they did, each kind once.
    """

    name: str
    ties: tuple[Tie, ...]

    @classmethod
    def of(cls, word: object) -> "User | None":
        """Parse a word; None for one that no agent writes."""
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
    """Result of a sweep for one instance; only STOP and TERMINATE act on it."""

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
        launched_at: last start; a stop and a start change it.
        stopped_at: when it was stopped or terminated, if the cloud reports it.
        locked: why the cloud itself would not terminate it, or an empty text.
        image: the image it booted, or an empty text if the cloud does not report it.
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
    def ended(self) -> bool:
        """True if it is terminated, or is shutting down."""
        return self.state in ("shutting-down", "terminated")

    @property
    def owner(self) -> str:
        """Its owner, or an empty text."""
        return self.tags.get(TAG_OWNER, "")


@dataclass(frozen=True)
class Group:
    """A scaling group.

    Attributes:
        min_size: the group never has fewer instances.
        members: instance id -> lifecycle state (``InService``, ``Standby``, ``Terminating:Wait``...).
        max_size: the group never has more instances.
        pool: the pool whose instances it starts, or an empty text.
        closed: it starts no instance, whatever its desired capacity (its ``Launch`` process is suspended).
        title: its name in the stack: on AWS its name, while Alibaba Cloud uses ids.
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
        """Number of members that are not leaving."""
        leaving = ("Terminat", "Detach", "Remov")
        return sum(not state.startswith(leaving) for state in self.members.values())


@dataclass(frozen=True)
class Inventory:
    """All managed instances of the stack, and their groups.

    Attributes:
        instances: those that are not terminated.
        groups: every group of the stack.
        gone: terminated ones that the cloud still lists, for the meter alone.
    """

    instances: tuple[Instance, ...]
    groups: tuple[Group, ...] = ()
    gone: tuple[Instance, ...] = ()

    def group_of(self, instance_id: str) -> Group | None:
        """Return the group of an instance, if any."""
        return next((group for group in self.groups if instance_id in group.members), None)


@dataclass(frozen=True)
class Coverage:
    """Share of a window's metric periods with a heartbeat that shows idleness or activity."""

    seen: int
    expected: int

    @property
    def percent(self) -> float:
        """Covered share of the window, in percent."""
        return 100.0 * self.seen / self.expected if self.expected else 0.0


@dataclass(frozen=True)
class Activity:
    """Summary of an instance's heartbeats.

    Attributes:
        newest_at: start of the metric period of the newest heartbeat; None without any.
        newest_value: that period's smallest ``SecondsSinceActivity``: seconds, or a negative code.
        last_active_at: latest moment at or after which activity is known; None if no heartbeat shows one.
        coverage: of each window that was read.
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
    """Verdict on one instance, with its single reason.

    Attributes:
        idle_s: proven seconds without activity, where known.
        idle_since: start of the idleness, if known.
        reap_after: time from which the instance may be terminated, if it is marked or will be.
        hourly_price: of the instance in the policy's currency, if known.
        replaced: its group starts another instance in its place.
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
    """Decisions of one sweep, one for each instance.

    Attributes:
        decisions: sorted by instance id.
        breaker: too many instances became idle at once; the sweep does nothing.
    """

    decisions: tuple[Decision, ...]
    breaker: bool = False

    def with_verdict(self, *verdicts: Verdict) -> tuple[Decision, ...]:
        """Return the decisions with one of these verdicts."""
        return tuple(decision for decision in self.decisions if decision.verdict in verdicts)


class Kind(StrEnum):
    """Kind of a resource that an instance left behind."""

    VOLUME = "volume"
    ADDRESS = "address"
    INSTANCE = "stopped instance"


@dataclass(frozen=True)
class OrphanedResource:
    """One resource that nobody uses.

    Attributes:
        size_gib: of a volume, or of a stopped instance's volumes; 0 for an address.
        unused_since: as the cloud reports it; otherwise the note on it counts.
        in_use: it carries a note but is used again.
    """

    kind: Kind
    id: str
    tags: Mapping[str, str] = field(default_factory=dict)
    size_gib: int = 0
    volume_type: str = ""
    unused_since: datetime | None = None
    in_use: bool = False

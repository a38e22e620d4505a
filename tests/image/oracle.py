"""The oracle: the true timeline of each instance, and the judgement whether its end was right.

Only the world writes a timeline: work, typing, holds, boots, locks, notices that reached a user. Data of the
product (tags, records, metrics, acknowledgements) is no evidence here, and no event at the time of an end
is excused.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

# An agent looks every five seconds: what is shorter may fall between two looks.
SHORTEST_USE = timedelta(seconds=5)
# A core counts by a minute's mean of 0.1 (judge.Limits), 6 s of it, and two minutes may share what is shorter
# than 12 s. A job that was over by then starts no idle time anew. One that is at work is, however young.
SHORTEST_WORK = timedelta(seconds=12)
NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass
class Span:
    """A span of time, whose end is far in the future while it lasts."""

    begin: datetime
    end: datetime = NEVER

    def holds_at(self, at: datetime) -> bool:
        """Return whether it had begun and was not over."""
        return self.begin <= at < self.end

    def is_over_within(self, least: timedelta) -> bool:
        """Return whether it was too short to be detected for certain."""
        return self.end - self.begin < least


class Spans(list[Span]):
    """Spans of one kind, oldest first."""

    def open(self, at: datetime) -> None:
        if not self.holds_at(at):
            self.append(Span(at))

    def close(self, at: datetime) -> None:
        if self and self[-1].end > at:
            self[-1].end = at

    def holds_at(self, at: datetime) -> bool:
        """Return whether one of them covers a moment."""
        return any(span.holds_at(at) for span in self)


@dataclass
class Timeline:
    """True history of one instance.

    Attributes:
        boots: times when it was launched or started.
        typing: a user types on it, in any terminal or notebook.
        holds: a user asked to keep it; an unreadable hold lasts until it is withdrawn.
        foreign: it was not managed by this stack, or protected by its administrator.
        locked: the cloud's termination protection.
        stopped: it was stopped, and its disks were kept.
        asked_for: low load or a failed boot check asked for it: a shorter idle time is enough.
        given_back: its owner, as its only user, gave it back: a short idle time is enough,
            at any age, and without a wait for users.
        taken: times when a user got it, which count as a use like a boot.
        notices: times when a user was notified of its termination.
        written: times when users' files to be kept changed; a job writes its results there.
        saved_at: time of the last copy of all of them.
        spared: its mark was removed, or replaced by a later one that is not due yet.
    """

    boots: list[datetime] = field(default_factory=list)
    jobs: Spans = field(default_factory=Spans)
    typing: Spans = field(default_factory=Spans)
    holds: Spans = field(default_factory=Spans)
    foreign: Spans = field(default_factory=Spans)
    locked: Spans = field(default_factory=Spans)
    member: Spans = field(default_factory=Spans)
    stopped: Spans = field(default_factory=Spans)
    asked_for: Spans = field(default_factory=Spans)
    given_back: Spans = field(default_factory=Spans)
    taken: list[datetime] = field(default_factory=list)
    notices: list[datetime] = field(default_factory=list)
    written: list[datetime] = field(default_factory=list)
    saved_at: datetime | None = None
    spared: Spans = field(default_factory=Spans)

    def uses(self) -> Iterator[Span]:
        """Return every span of use, without short moments."""
        yield from (span for span in self.jobs if not span.is_over_within(SHORTEST_WORK))
        yield from (span for span in self.typing if not span.is_over_within(SHORTEST_USE))


@dataclass(frozen=True)
class Rules:
    """Promises to users.

    Attributes:
        idle_after: least idle time before a notice, which the grace follows.
        min_uptime: a younger instance is left alone.
        lifetime: an older instance is asked for, too; None for never.
        stopped_for: time that an instance is stopped before a notice of its termination; None for ever.
        idle_on_request: least idle time of one that was asked for.
        idle_given_back: least idle time of one that was given back, less the rounding of two heartbeats.
        unsaved: changes within this time before the end of a running instance need not be saved; None
            if nothing is saved.
        unseen: use that began less than this time before the end is excused, and earlier use that continues
            is not. The aim is 0.
    """

    idle_after: timedelta
    grace: timedelta
    min_uptime: timedelta
    lifetime: timedelta | None = None
    stopped_for: timedelta | None = None
    idle_on_request: timedelta = timedelta(minutes=30)
    idle_given_back: timedelta = timedelta(minutes=4)
    unsaved: timedelta | None = None
    unseen: timedelta = timedelta(0)


def wrongs_of(line: Timeline, at: datetime, rules: Rules) -> list[str]:
    """Return every promise that the end of an instance would break at a moment; empty if it is right."""
    uses = [span for span in line.uses() if span.begin <= at - rules.unseen]
    now = [span for span in uses if span.holds_at(at)]
    stopped = line.stopped.holds_at(at)
    due = [notice for notice in line.notices if _is_due(line, notice, at, rules)]
    checks = {
        "a job was at work on it": any(span in line.jobs for span in now),
        "somebody was typing on it": any(span in line.typing for span in now),
        "somebody had asked to keep it": line.holds.holds_at(at),
        "it was not this stack's to end": line.foreign.holds_at(at),
        "its termination was locked": line.locked.holds_at(at),
        "its mark had been taken away": line.spared.holds_at(at),
        "it was still in its scaling group": line.member.holds_at(at),
        "it was young": not stopped
        and not line.given_back.holds_at(at)
        and at - line.boots[-1] < rules.min_uptime,
        "nobody was notified in time": not due,
        "it was used after the notice, or too shortly before": not any(
            _was_idle(line, uses, notice, at, rules) for notice in due
        ),
        "what its users keep was not saved": rules.unsaved is not None
        and not stopped
        and any(
            line.saved_at is None or written > line.saved_at
            for written in line.written
            if written <= at - rules.unsaved
        ),
    }
    return [wrong for wrong, holds in checks.items() if holds]


def _is_due(line: Timeline, notice: datetime, at: datetime, rules: Rules) -> bool:
    """Return whether the notice's grace is over; a notice from before a start or a stop does not count."""
    grace = timedelta(0) if line.given_back.holds_at(notice) else rules.grace
    return at - notice >= grace and notice >= max([*line.boots, *(span.begin for span in line.stopped)])


def _was_idle(line: Timeline, uses: Iterable[Span], notice: datetime, at: datetime, rules: Rules) -> bool:
    """Return whether the instance was idle for long enough at the notice, and has been since."""
    if line.stopped.holds_at(at):
        return rules.stopped_for is not None and notice - line.stopped[-1].begin >= rules.stopped_for
    old = rules.lifetime is not None and notice - line.boots[-1] >= rules.lifetime
    asked_for = old or any(span.begin <= notice <= span.end for span in line.asked_for)
    needed = min(rules.idle_after, rules.idle_on_request) if asked_for else rules.idle_after
    if line.given_back.holds_at(notice):
        needed = rules.idle_given_back
    last = max([*(min(span.end, at) for span in uses), *line.taken, line.boots[-1]])
    return last <= notice - needed

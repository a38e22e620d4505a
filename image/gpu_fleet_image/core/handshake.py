"""Handshake of sweep and instance before a stop or a termination, and of ``gpu-fleet keep`` with both.

Objects for one mark of one instance lie below ``handshake/CALLER/MARK/`` of the stack's records:

- ``idle``, ``closed``, ``refused``: replies of its agent. *Idle*: /scratch/keep is saved, and nothing runs.
  *Closed*: log-ins and jobs are refused, and still nothing runs. *Refused*: the mark is void.
- ``decision``: created once; the first writer wins: the sweep with *end*, or the instance with *withdrawn*.

CALLER is the cloud's name of the instance's credentials. On AWS it is ``${aws:userid}``, ``AROA...:i-0123``,
below which only that instance can write. Alibaba Cloud has no such variable: there it is ``POOL.i-0123``. A
stopped instance has no agent: its CALLER is its id alone, which sweep and ``keep`` share. MARK is the mark's
reap-after; a reply counts for no other mark. The store gives the age of a reply, so that an instance's wrong
clock makes nothing fresh. Nobody deletes these objects; the bucket does, after two days.

An instance can write as many names below its own CALLER as it likes. So the reader asks for the present marks
and skips all other names: a caller costs three more pages of a listing at most. An agent writes three names
below a mark; with more than ``_MOST_REPLIES`` none is believed, and the instance is not terminated.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.store import Listed, Page, Store
from gpu_fleet_image.core.times import format_time, parse_time

PREFIX = "handshake"
_DECISION = "decision"
# The agent repeats each reply while it holds: ``agent/answers.py``.
IDLE_LASTS = timedelta(minutes=3)
# A dead agent is believed for this long. A living one repeats its reply every ten seconds, and reading all
# sensors may take twice that.
CLOSED_LASTS = timedelta(seconds=30)
LONGEST = 1 << 16  # bytes of a reply or decision: an instance can write anything there
_MOST_REPLIES = 16  # below one mark: four times as many as an agent, the sweep and `keep` write
_MOST_NAMES = 200  # of one caller in two days: a new mark every hour; more are skipped
# Of one listing, beside two for each instance that is asked: some 25,000 marks in two days.
_MOST_PAGES = 100
_AFTER_SLASH = "0"  # the character after "/": sorts after `CALLER/` and everything below it


class Reply(StrEnum):
    """An instance's reply for a mark."""

    IDLE = "idle"
    CLOSED = "closed"
    REFUSED = "refused"


class Winner(StrEnum):
    """Winner of the decision for a mark."""

    END = "end"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class MarkReplies:
    """Replies of one instance for one mark.

    Attributes:
        caller: the instance's name in the records; empty if two names claim to be the instance, so that none
            counts.
        ages: reply -> time since it was last written.
        flooded: the mark has so many names that not all were read; none of them counts.
    """

    caller: str
    ages: Mapping[Reply, timedelta] = field(default_factory=dict)
    flooded: bool = False

    @property
    def reply(self) -> Reply | None:
        """The reply that counts now; None if there is none, or none recent enough."""
        if not self.caller or self.flooded:
            return None
        if Reply.REFUSED in self.ages:
            return Reply.REFUSED
        if self.ages.get(Reply.CLOSED, timedelta.max) <= CLOSED_LASTS:
            return Reply.CLOSED
        return Reply.IDLE if self.ages.get(Reply.IDLE, timedelta.max) <= IDLE_LASTS else None


@dataclass(frozen=True)
class Decided:
    """Decision for a mark.

    Attributes:
        at: its time, by the clock of the writer; None if that cannot be read.
    """

    winner: Winner
    at: datetime | None = None


_NO_REPLIES = MarkReplies("")
# (instance id, mark) -> its replies
Replies = Mapping[tuple[str, str], MarkReplies]


def mark_name(reap_after: datetime) -> str:
    """Return the name of a mark: ``20261121T120000Z``."""
    return f"{reap_after:%Y%m%dT%H%M%SZ}"


def key(caller: str, reap_after: datetime, name: str) -> str:
    """Return the key of a reply or of the decision."""
    return f"{PREFIX}/{caller}/{mark_name(reap_after)}/{name}.json"


def replies(listed: Iterable[Listed]) -> Replies:
    """Return the replies in a listing below ``PREFIX``; other names are skipped."""
    said_by: dict[tuple[str, str], MarkReplies] = {}
    for entry in listed:
        match entry.key.removesuffix(".json").split("/"):
            case [_, caller, mark, name] if name == _DECISION or name in set(Reply):
                *role, instance_id = re.split("[:.]", caller)
                if not role:  # of a stopped instance, which has no agent
                    continue
                said = said_by.get((instance_id, mark), MarkReplies(caller))
                ages = said.ages if name == _DECISION else {**said.ages, Reply(name): entry.age}
                known = caller if said.caller == caller else ""
                said_by[instance_id, mark] = MarkReplies(known, ages)
    return said_by


@dataclass(frozen=True)
class MarkQuestion:
    """An instance whose reply for a mark is wanted.

    Attributes:
        caller: its name in the records; empty if only its id is known.
    """

    instance_id: str
    mark: datetime
    caller: str = ""


@dataclass(frozen=True)
class ReadReplies:
    """Replies in a listing, and callers that wrote too much.

    Attributes:
        replies: of the instances asked for, and of others that were read on the way.
        flooding: caller that wrote more names than agents do -> how many of them were read. The key ``*``
            stands for all together, if the last pages were not read because there were too many.
    """

    replies: Replies = field(default_factory=dict)
    flooding: Mapping[str, int] = field(default_factory=dict)


def read_replies(store: Store, asked: Collection[MarkQuestion]) -> ReadReplies:
    """Read the instances' replies for these marks, of which there is at least one. Raises CloudError."""
    listening = _Listening(asked)
    after, token = listening.start, ""
    for _ in range(_MOST_PAGES + 2 * len(asked)):
        page = store.page(f"{PREFIX}/", after, token)
        listening.note(page)
        if not page.token:
            return listening.result()
        last = page.listed[-1].key if page.listed else ""
        goal = listening.goal(last) if last else last
        if goal is None:
            return listening.result()
        # without a skip, use the bucket's own token
        after, token = ("", page.token) if goal == last else (goal, "")
    return listening.result(given_up_at=last)


def pool_caller(pool: str, instance_id: str) -> str:
    """Return an instance's name in the records on a cloud that has no name for its credentials alone."""
    return f"{pool}.{instance_id}"


class _Listening:
    """State of a listing: the marks asked for, what was read so far, and where to continue. Pure.

    Attributes:
        start: the key after which the listing begins.
    """

    def __init__(self, asked: Collection[MarkQuestion]) -> None:
        self._callers = {question.instance_id: question.caller for question in asked}
        self._marks: dict[str, list[str]] = {}
        for question in sorted(asked, key=lambda each: each.mark):
            self._marks.setdefault(question.instance_id, []).append(mark_name(question.mark))
        self._places = sorted(f"{PREFIX}/{question.caller}/{mark_name(question.mark)}/" for question in asked)
        self._all_known = all(self._callers.values())
        self._read: list[Listed] = []
        self._names = Counter[str]()
        self._below = Counter[tuple[str, str]]()
        self.start = self._places[0]  # no unknown name sorts before all known ones

    def note(self, page: Page) -> None:
        """Add one page."""
        for entry in page.listed:
            caller, mark = _place(entry.key)
            self._names[caller] += 1
            if self._may_be(caller):
                self._below[caller, mark] += 1
                self._read.append(entry)

    def goal(self, last: str) -> str | None:
        """Return the key to read on after, at least the last one read; None if nothing is left."""
        caller, mark = _place(last)
        marks = self._marks.get(_instance_of(caller), ()) if self._may_be(caller) else ()
        if mark in marks and self._below[caller, mark] <= _MOST_REPLIES:
            return last  # the page ended between the replies of a mark
        if self._all_known:
            return next((place for place in self._places if place > last), None)
        if self._names[caller] <= _MOST_NAMES:
            return last
        asked = (f"{PREFIX}/{caller}/{each}/" for each in marks)
        return next((prefix for prefix in asked if prefix > last), f"{PREFIX}/{caller}{_AFTER_SLASH}")

    def result(self, given_up_at: str = "") -> ReadReplies:
        """Return the replies read so far.

        Args:
            given_up_at: the last key that was read, if there were more; else empty.
        """
        read = dict(replies(self._read))
        flooded = {place for place, count in self._below.items() if count > _MOST_REPLIES}
        for caller, mark in flooded | ({_place(given_up_at)} if given_up_at else set()):
            of_mark = _instance_of(caller), mark
            read[of_mark] = replace(read.get(of_mark, MarkReplies(caller)), flooded=True)
        names = {caller for caller, _ in flooded} | {
            caller for caller, count in self._names.items() if count > _MOST_NAMES
        }
        flooding = {caller: self._names[caller] for caller in sorted(names)}
        return ReadReplies(read, flooding | ({"*": self._names.total()} if given_up_at else {}))

    def _may_be(self, caller: str) -> bool:
        """Return whether a caller may be the instance whose id it bears; a known name admits no other."""
        return self._callers.get(_instance_of(caller), "") in ("", caller)


def _place(key_of_word: str) -> tuple[str, str]:
    """Return (caller, mark) of any key below ``PREFIX``."""
    parts = key_of_word.split("/", 3)
    return parts[1], parts[2] if len(parts) > 3 else ""  # noqa: PLR2004 - prefix, caller, mark, and the rest


def _instance_of(caller: str) -> str:
    return re.split("[:.]", caller)[-1]


def replies_of(said_by: Replies, instance_id: str, reap_after: datetime) -> MarkReplies:
    """Return the replies of one instance for one mark."""
    return said_by.get((instance_id, mark_name(reap_after)), _NO_REPLIES)


@dataclass(frozen=True)
class Exchange:
    """Records that one instance and the sweep write for one mark. Every method raises CloudError."""

    store: Store
    caller: str
    mark: datetime

    def say(self, reply: Reply, **more: Any) -> None:
        """Write a reply, or renew it."""
        self.store.put(key(self.caller, self.mark, reply), {"schema_version": 1, **more})

    def claim(self, wanted: Winner, reason: str, now: datetime) -> Winner:
        """Decide, unless it is decided already.

        Returns:
            The decision. A second claim, say after a lost answer, returns the same decision.
        """
        content = {"schema_version": 1, "winner": wanted, "reason": reason, "at": format_time(now)}
        if self.store.create(self._decision_key, content) is not None:
            return wanted
        decided = self.decision()
        if decided is None:
            raise CloudError(f"{self._decision_key}: refused, and not there")
        return decided

    def decision(self) -> Winner | None:
        """Return the winner of the decision, or None."""
        decided = self.decided()
        return decided.winner if decided else None

    def decided(self) -> "Decided | None":
        """Return the decision and its time, or None."""
        there = self._is_there(self._decision_key)
        stored = self.store.get(self._decision_key, LONGEST) if there else None
        if stored is None:
            return None
        try:
            winner = Winner(stored.content.get("winner", ""))
        except ValueError as error:
            raise CloudError(f"{self._decision_key}: no decision: {stored.content!r}", "Malformed") from error
        try:
            return Decided(winner, parse_time(str(stored.content.get("at"))))
        except ValueError:
            return Decided(winner)  # the winner is known all the same

    def is_refused(self) -> bool:
        """Return whether the instance refused: it is not terminated, and the next sweep removes the mark."""
        return self._is_there(key(self.caller, self.mark, Reply.REFUSED))

    def _is_there(self, wanted: str) -> bool:
        try:
            return self.store.newest(wanted, LONGEST) is not None
        except CloudError as error:
            if error.code not in DENIED:
                raise
            return False  # S3's reply for an object that does not exist, to an instance, which may not list

    @property
    def _decision_key(self) -> str:
        return key(self.caller, self.mark, _DECISION)

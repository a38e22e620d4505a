"""What sweep and instance say to one another before a stop or a termination, and ``gpu-fleet keep`` to both.

Below ``handshake/CALLER/MARK/`` of the stack's records lie, for one mark of one instance:

- ``idle``, ``closed``, ``refused``: replies of its agent. *Idle*: /scratch/keep is saved, and nothing runs
  here. *Closed*: log-ins and jobs are refused, and still nothing runs. *Refused*: this mark is over.
- ``decision``: created once. Whoever comes first wins: the sweep with *end*, the instance with *withdrawn*.

CALLER is what the cloud calls the instance's credentials: on AWS ``${aws:userid}``, ``AROA...:i-0123``, below
which one instance alone can write; on Alibaba Cloud, which knows no such variable, ``POOL.i-0123``. For a
stopped instance, which has no agent, CALLER is its id alone: there sweep and ``keep`` meet. MARK is
the mark's reap-after: no reply counts for another mark. How old a reply is the store says, so that a wrong
clock of an instance makes nothing fresh. Nobody deletes these objects; the bucket does, two days after.

An instance can write as many names below its own CALLER as it likes. So whoever listens asks for the marks
of this moment and jumps over what else lies there: a caller costs three more pages of a listing at most.
Below a mark its agent writes three names; where there are more than ``MOST_REPLIES``, none is believed, and
the instance stays.
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
DECISION = "decision"
# The agent says each again while it holds: ``agent/answers.py``.
IDLE_LASTS = timedelta(minutes=3)
# As long an agent that died is believed. A living one says it again every ten seconds, agents of before every
# twenty, and a look at all sensors may take some more.
CLOSED_LASTS = timedelta(seconds=30)
LONGEST = 1 << 16  # bytes of a reply or decision: an instance may write what it likes there
MOST_REPLIES = 16  # below one mark, four times what an agent, the sweep and `keep` write
MOST_NAMES = 200  # of one caller in two days: a new mark every hour; more are jumped over
# Of one listing, beside two for each instance that is asked: some 25,000 marks in two days.
MOST_PAGES = 100
_AFTER_SLASH = "0"  # the character after "/": what comes after `CALLER/` and everything below it


class Reply(StrEnum):
    """What an instance says for a mark."""

    IDLE = "idle"
    CLOSED = "closed"
    REFUSED = "refused"


class Winner(StrEnum):
    """What was decided for a mark."""

    END = "end"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True)
class Said:
    """What one instance said for one mark.

    Attributes:
        caller: under which name; empty where two names claim to be the instance, so that none is believed.
        ages: reply -> since when it was last said.
        flooded: so many names lie below the mark that not all were read; none of them is believed.
    """

    caller: str
    ages: Mapping[Reply, timedelta] = field(default_factory=dict)
    flooded: bool = False

    @property
    def reply(self) -> Reply | None:
        """The one that counts now; None where it said nothing, or nothing lately."""
        if not self.caller or self.flooded:
            return None
        if Reply.REFUSED in self.ages:
            return Reply.REFUSED
        if self.ages.get(Reply.CLOSED, timedelta.max) <= CLOSED_LASTS:
            return Reply.CLOSED
        return Reply.IDLE if self.ages.get(Reply.IDLE, timedelta.max) <= IDLE_LASTS else None


@dataclass(frozen=True)
class Decided:
    """What was decided for a mark.

    Attributes:
        at: when, by the clock of whoever did; None where that cannot be read.
    """

    winner: Winner
    at: datetime | None = None


NOTHING_SAID = Said("")
# (instance id, mark) -> what was said.
Replies = Mapping[tuple[str, str], Said]


def mark_name(reap_after: datetime) -> str:
    """How a mark is called: ``20261121T120000Z``."""
    return f"{reap_after:%Y%m%dT%H%M%SZ}"


def key(caller: str, reap_after: datetime, name: str) -> str:
    """Where a reply or the decision lies."""
    return f"{PREFIX}/{caller}/{mark_name(reap_after)}/{name}.json"


def replies(listed: Iterable[Listed]) -> Replies:
    """What a listing below ``PREFIX`` says; names that are none of these are passed over."""
    said_by: dict[tuple[str, str], Said] = {}
    for entry in listed:
        match entry.key.removesuffix(".json").split("/"):
            case [_, caller, mark, name] if name == DECISION or name in set(Reply):
                *role, instance_id = re.split("[:.]", caller)
                if not role:  # of a stopped instance, which says nothing
                    continue
                said = said_by.get((instance_id, mark), Said(caller))
                ages = said.ages if name == DECISION else {**said.ages, Reply(name): entry.age}
                known = caller if said.caller == caller else ""
                said_by[instance_id, mark] = Said(known, ages)
    return said_by


@dataclass(frozen=True)
class MarkQuestion:
    """An instance that is asked for its reply for a mark.

    Attributes:
        mark: the mark's reap-after.
        caller: its name in the records; empty where only its id is known.
    """

    instance_id: str
    mark: datetime
    caller: str = ""


@dataclass(frozen=True)
class Heard:
    """What a listing gave.

    Attributes:
        replies: of those that were asked, and of others that were passed on the way.
        flooding: caller that wrote more names than agents do -> how many of them were read; ``*`` for all
            together, where so many pages were needed that the last were not read.
    """

    replies: Replies = field(default_factory=dict)
    flooding: Mapping[str, int] = field(default_factory=dict)


def heard(store: Store, asked: Collection[MarkQuestion]) -> Heard:
    """What the instances said for these marks, of which there is one at least. Raises CloudError."""
    listening = _Listening(asked)
    after, token = listening.start, ""
    for _ in range(MOST_PAGES + 2 * len(asked)):
        page = store.page(f"{PREFIX}/", after, token)
        listening.note(page)
        if not page.token:
            return listening.heard()
        last = page.listed[-1].key if page.listed else ""
        goal = listening.goal(last) if last else last
        if goal is None:
            return listening.heard()
        # where nothing is to be jumped over, as the bucket itself goes on
        after, token = ("", page.token) if goal == last else (goal, "")
    return listening.heard(given_up_at=last)


def pool_caller(pool: str, instance_id: str) -> str:
    """How an instance calls itself where the cloud has no name for its credentials alone."""
    return f"{pool}.{instance_id}"


class _Listening:
    """Which marks are asked for, what was read of them so far, and where to read on. Pure.

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
        self.start = self._places[0]  # no name that is not known comes before all that are

    def note(self, page: Page) -> None:
        """Take up one page."""
        for entry in page.listed:
            caller, mark = _place(entry.key)
            self._names[caller] += 1
            if self._may_be(caller):
                self._below[caller, mark] += 1
                self._read.append(entry)

    def goal(self, last: str) -> str | None:
        """After which key to read on, at least the last one that was read; None where nothing is left."""
        caller, mark = _place(last)
        marks = self._marks.get(_instance_of(caller), ()) if self._may_be(caller) else ()
        if mark in marks and self._below[caller, mark] <= MOST_REPLIES:
            return last  # the page ended between the replies of a mark
        if self._all_known:
            return next((place for place in self._places if place > last), None)
        if self._names[caller] <= MOST_NAMES:
            return last
        asked = (f"{PREFIX}/{caller}/{each}/" for each in marks)
        return next((prefix for prefix in asked if prefix > last), f"{PREFIX}/{caller}{_AFTER_SLASH}")

    def heard(self, given_up_at: str = "") -> Heard:
        """What all of it gives.

        Args:
            given_up_at: the last key that was read, where more were to be; empty otherwise.
        """
        heard = dict(replies(self._read))
        flooded = {place for place, count in self._below.items() if count > MOST_REPLIES}
        for caller, mark in flooded | ({_place(given_up_at)} if given_up_at else set()):
            of_mark = _instance_of(caller), mark
            heard[of_mark] = replace(heard.get(of_mark, Said(caller)), flooded=True)
        names = {caller for caller, _ in flooded} | {
            caller for caller, count in self._names.items() if count > MOST_NAMES
        }
        flooding = {caller: self._names[caller] for caller in sorted(names)}
        return Heard(heard, flooding | ({"*": self._names.total()} if given_up_at else {}))

    def _may_be(self, caller: str) -> bool:
        """Whether a caller may be the instance whose id it bears; where its name is known, no other is."""
        return self._callers.get(_instance_of(caller), "") in ("", caller)


def _place(key_of_word: str) -> tuple[str, str]:
    """(caller, mark) of a key below ``PREFIX``, whatever it is."""
    parts = key_of_word.split("/", 3)
    return parts[1], parts[2] if len(parts) > 3 else ""  # noqa: PLR2004 - prefix, caller, mark, and the rest


def _instance_of(caller: str) -> str:
    return re.split("[:.]", caller)[-1]


def said_of(said_by: Replies, instance_id: str, reap_after: datetime) -> Said:
    """What one instance said for one mark."""
    return said_by.get((instance_id, mark_name(reap_after)), NOTHING_SAID)


@dataclass(frozen=True)
class Exchange:
    """What one instance and the sweep write for one mark. Every method raises CloudError.

    Attributes:
        store: of the stack's records.
        caller: the instance's name there.
        mark: the mark's reap-after.
    """

    store: Store
    caller: str
    mark: datetime

    def say(self, reply: Reply, **more: Any) -> None:
        """Say a reply, once more if it was said before."""
        self.store.put(key(self.caller, self.mark, reply), {"schema_version": 1, **more})

    def claim(self, wanted: Winner, reason: str, now: datetime) -> Winner:
        """Decide, unless it is decided already.

        Returns:
            What is decided: who claims twice, say after an answer that was lost, gets the same answer.
        """
        content = {"schema_version": 1, "winner": wanted, "reason": reason, "at": format_time(now)}
        if self.store.create(self._decision_key, content) is not None:
            return wanted
        decided = self.decision()
        if decided is None:
            raise CloudError(f"{self._decision_key}: refused, and not there")
        return decided

    def decision(self) -> Winner | None:
        """What is decided, or None."""
        decided = self.decided()
        return decided.winner if decided else None

    def decided(self) -> "Decided | None":
        """What is decided and when, or None."""
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
            return Decided(winner)  # who won is known all the same

    def is_refused(self) -> bool:
        """Whether the instance said *refused*: it stays, and the next sweep takes the mark away."""
        return self._is_there(key(self.caller, self.mark, Reply.REFUSED))

    def _is_there(self, wanted: str) -> bool:
        try:
            return self.store.newest(wanted, LONGEST) is not None
        except CloudError as error:
            if error.code not in DENIED:
                raise
            return False  # what S3 says of an object that is not there, to an instance, which may not list

    @property
    def _decision_key(self) -> str:
        return key(self.caller, self.mark, DECISION)

"""What sweep and instance say to one another before a stop or a termination, and ``gpu-fleet keep`` to both.

Below ``handshake/CALLER/MARK/`` of the stack's records lie, for one mark of one instance:

- ``idle``, ``closed``, ``refused``: words of its agent. *Idle*: /scratch/keep is saved, and nothing runs
  here. *Closed*: log-ins and jobs are refused, and still nothing runs. *Refused*: this mark is over.
- ``decision``: created once. Whoever comes first wins: the sweep with *end*, the instance with *withdrawn*.

CALLER is what the cloud calls the instance's credentials: on AWS ``${aws:userid}``, ``AROA...:i-0123``, below
which one instance alone can write; on Alibaba Cloud, which knows no such variable, ``POOL.i-0123``. For a
stopped instance, which has no agent, CALLER is its id alone: there sweep and ``keep`` meet. MARK is
the mark's reap-after: no word counts for another mark. How old a word is the store says, so that a wrong
clock of an instance makes nothing fresh. Nobody deletes these objects; the bucket does, two days after.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from image.reaper.calls import DENIED
from image.reaper.errors import CloudError
from image.reaper.store import Listed, Store
from image.reaper.times import format_time, parse_time

PREFIX = "handshake"
DECISION = "decision"
# The agent says each again while it holds: ``agent/answers.py``.
IDLE_LASTS = timedelta(minutes=3)
# As long an agent that died is believed. A living one says it again every ten seconds, agents of before every
# twenty, and a look at all sensors may take some more.
CLOSED_LASTS = timedelta(seconds=30)


class Word(StrEnum):
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
        ages: word -> since when it was last said.
    """

    caller: str
    ages: Mapping[Word, timedelta] = field(default_factory=dict)

    @property
    def word(self) -> Word | None:
        """The one that counts now; None where it said nothing, or nothing lately."""
        if not self.caller:
            return None
        if Word.REFUSED in self.ages:
            return Word.REFUSED
        if self.ages.get(Word.CLOSED, timedelta.max) <= CLOSED_LASTS:
            return Word.CLOSED
        return Word.IDLE if self.ages.get(Word.IDLE, timedelta.max) <= IDLE_LASTS else None


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
Words = Mapping[tuple[str, str], Said]


def mark_name(reap_after: datetime) -> str:
    """How a mark is called: ``20261121T120000Z``."""
    return f"{reap_after:%Y%m%dT%H%M%SZ}"


def key(caller: str, reap_after: datetime, name: str) -> str:
    """Where a word or the decision lies."""
    return f"{PREFIX}/{caller}/{mark_name(reap_after)}/{name}.json"


def words(listed: Iterable[Listed]) -> Words:
    """What a listing below ``PREFIX`` tells; names that are none of these are passed over."""
    found: dict[tuple[str, str], Said] = {}
    for one in listed:
        match one.key.removesuffix(".json").split("/"):
            case [_, caller, mark, name] if name == DECISION or name in set(Word):
                *role, instance_id = re.split("[:.]", caller)
                if not role:  # of a stopped instance, which says nothing
                    continue
                said = found.get((instance_id, mark), Said(caller))
                ages = said.ages if name == DECISION else {**said.ages, Word(name): one.age}
                known = caller if said.caller == caller else ""
                found[instance_id, mark] = Said(known, ages)
    return found


def heard(store: Store) -> Words:
    """What the instances said. Raises CloudError."""
    return words(store.listed(f"{PREFIX}/"))


def said_of(found: Words, instance_id: str, reap_after: datetime) -> Said:
    """What one instance said for one mark."""
    return found.get((instance_id, mark_name(reap_after)), NOTHING_SAID)


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

    def say(self, word: Word, **more: Any) -> None:
        """Say a word, once more if it was said before."""
        self.store.put(key(self.caller, self.mark, word), {"schema_version": 1, **more})

    def claim(self, wanted: Winner, reason: str, now: datetime) -> Winner:
        """Decide, unless it is decided already.

        Returns:
            What is decided: who claims twice, say after an answer that was lost, is told the same.
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
        found = self.decided()
        return found.winner if found else None

    def decided(self) -> "Decided | None":
        """What is decided and when, or None."""
        found = self.store.get(self._decision_key) if self._is_there(self._decision_key) else None
        if found is None:
            return None
        try:
            winner = Winner(found.content.get("winner", ""))
        except ValueError as error:
            raise CloudError(f"{self._decision_key}: no decision: {found.content!r}", "Malformed") from error
        try:
            return Decided(winner, parse_time(str(found.content.get("at"))))
        except ValueError:
            return Decided(winner)  # who won is known all the same

    def is_refused(self) -> bool:
        """Whether the instance said *refused*: it stays, and the next sweep takes the mark away."""
        return self._is_there(key(self.caller, self.mark, Word.REFUSED))

    def _is_there(self, wanted: str) -> bool:
        try:
            return self.store.newest(wanted) is not None
        except CloudError as error:
            if error.code not in DENIED:
                raise
            return False  # what S3 says of an object that is not there, to an instance, which may not list

    @property
    def _decision_key(self) -> str:
        return key(self.caller, self.mark, DECISION)

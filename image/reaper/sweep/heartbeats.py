"""What is asked of a cloud's metrics, and what comes back: the same words on both clouds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from image.reaper.calls import Failure
from image.reaper.errors import CloudError

COMPLETE = "Complete"
Statistic = Literal["Minimum", "Average", "Sum"]


@dataclass(frozen=True)
class Query:
    """One metric of one machine.

    Attributes:
        instance_id: the machine.
        metric: its metric.
        period_s: length of a period; its smallest value is asked for unless ``statistic`` says otherwise.
        enough_below_s: a newest value from 0 up to this says enough: where a cloud is cheaper to ask for it
            alone, the rest of the window may stay unread.
        statistic: what is asked of a period's values.
    """

    instance_id: str
    metric: str
    period_s: int
    enough_below_s: float = 0.0
    statistic: Statistic = "Minimum"


@dataclass
class Answer:
    """What came back for one query.

    Attributes:
        points: (start of the period, its value), in any order, perhaps repeated.
        status: the newest that the cloud said of it.
    """

    points: list[tuple[datetime, float]] = field(default_factory=list)
    status: str = "Missing"

    @property
    def complete(self) -> bool:
        """Whether every point is here."""
        return self.status == COMPLETE


@dataclass(frozen=True)
class Span:
    """Which time is asked for."""

    start: datetime
    end: datetime


def give_up(batch: Sequence[Query], answers: Mapping[Query, Answer], error: CloudError) -> list[Failure]:
    """Note that a call for these failed; a failure of each."""
    for query in batch:
        answers[query].status = "Failed"
    return [Failure(query.instance_id, "read heartbeats", str(error)) for query in batch]

"""Rows of the tables of preflight: an account, a stack, and the finding about one subject."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gpu_fleet_stacks.preflight.findings import Finding, Rating
from gpu_fleet_stacks.settings import Stack

Look = Callable[[Stack, Any], Iterable[Finding]]


@dataclass(frozen=True)
class Row:
    """One finding of a preflight.

    Attributes:
        says, remedy: parts of the finding's text.
        account: answers of the cloud; None for the test's account without limits.
        stack: None for the test's valid one.
    """

    subject: str
    rating: Rating
    says: str = ""
    account: Any = field(default=None, repr=False)
    stack: Stack | None = field(default=None, repr=False)
    remedy: str = ""

    def fits(self, finding: Finding) -> bool:
        """Return whether a finding matches; a problem without a remedy does not."""
        helps = bool(finding.remedy) or self.rating is not Rating.PROBLEM
        same = (finding.subject, finding.rating) == (self.subject, self.rating)
        return same and helps and self.says in finding.says and self.remedy in finding.remedy


def about(subject: str, stack: Stack | None, *table: tuple[Any, ...]) -> list[Row]:
    """Return a row of one subject for each rating, text, account, and remedy if it says one."""
    return [Row(subject, rating, says, cloud, stack, *remedy) for rating, says, cloud, *remedy in table]


def wrong(rows: Iterable[Row], look: Look, room: Any, sound: Stack) -> list[str]:
    """Return the rows whose finding is missing, each with the findings in its place."""
    reports = []
    for row in rows:
        found = list(look(row.stack or sound, row.account or room))
        if not any(map(row.fits, found)):
            reports.append(f"{row}: {[finding for finding in found if finding.subject == row.subject]}")
    return reports

"""Rows of the tables of preflight: an account, a stack, and what is found there about one subject."""

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
        says, remedy: parts of what the finding says.
        account: what the cloud answers; None for the test's account with room for anything.
        stack: None for the test's sound one.
    """

    subject: str
    rating: Rating
    says: str = ""
    account: Any = field(default=None, repr=False)
    stack: Stack | None = field(default=None, repr=False)
    remedy: str = field(default="", kw_only=True)

    def fits(self, finding: Finding) -> bool:
        """Whether it is the finding; a problem without a remedy is none."""
        helps = bool(finding.remedy) or self.rating is not Rating.PROBLEM
        same = (finding.subject, finding.rating) == (self.subject, self.rating)
        return same and helps and self.says in finding.says and self.remedy in finding.remedy


def wrong(rows: Iterable[Row], look: Look, room: Any, sound: Stack) -> list[str]:
    """The rows whose finding is missing, each with what was found in its place."""
    reports = []
    for row in rows:
        found = list(look(row.stack or sound, row.account or room))
        if not any(map(row.fits, found)):
            reports.append(f"{row}: {[finding for finding in found if finding.subject == row.subject]}")
    return reports

"""Findings of a preflight: one line for each question, and the exit code of all of them. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from gpu_fleet_stacks.clients.errors import CannotCheckError


class Rating(StrEnum):
    """Meaning of an answer for an ``up``, from harmless to unknown.

    A ``note`` is worth reading and stops nothing, for example spot capacity that is scarce today.
    """

    FINE = "fine"
    NOTE = "note"
    PROBLEM = "problem"
    UNCHECKED = "unchecked"


class ExitCode(IntEnum):
    """Exit code of the command; every command here uses 2 for a wrong call."""

    FINE = 0
    PROBLEMS = 1
    UNCHECKED = 3


@dataclass(frozen=True)
class Finding:
    """The answer to one question.

    Attributes:
        says: the answer in words, with its numbers.
        remedy: what to do, often a command; empty where there is nothing to do.
    """

    subject: str
    rating: Rating
    says: str
    remedy: str = ""


def guarded(subject: str, look: Callable[[], Finding]) -> Finding:
    """Run one check; turn a refusal into a finding, so that it hides no other answer."""
    try:
        return look()
    except CannotCheckError as error:
        return Finding(subject, Rating.UNCHECKED, f"could not be checked: {error}")


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Return the exit code; problems count more than failed checks."""
    ratings = {finding.rating for finding in findings}
    if Rating.PROBLEM in ratings:
        return ExitCode.PROBLEMS
    return ExitCode.UNCHECKED if Rating.UNCHECKED in ratings else ExitCode.FINE

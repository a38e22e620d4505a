"""What a look at the cloud found: one line a question, and the exit code that they add up to. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from stacks.calls.errors import CannotCheckError


class Rating(StrEnum):
    """What an answer means for an ``up``, from harmless to unknown.

    ``note`` is worth reading and stops nothing: spot capacity that is scarce today, say.
    """

    FINE = "fine"
    NOTE = "note"
    PROBLEM = "problem"
    UNCHECKED = "unchecked"


class ExitCode(IntEnum):
    """How the command ends; 2 is what every command here says of a wrong call."""

    FINE = 0
    PROBLEMS = 1
    UNCHECKED = 3


@dataclass(frozen=True)
class Finding:
    """The answer to one question.

    Attributes:
        says: the answer in words, with its numbers.
        remedy: what to do, often a command; empty where nothing is to be done.
    """

    subject: str
    rating: Rating
    says: str
    remedy: str = ""


def guarded(subject: str, look: Callable[[], Finding]) -> Finding:
    """Look, or say that it could not be done: one closed door hides no other answer."""
    try:
        return look()
    except CannotCheckError as error:
        return Finding(subject, Rating.UNCHECKED, f"could not be checked: {error}")


def exit_code(findings: Iterable[Finding]) -> ExitCode:
    """Problems count more than what could not be looked at."""
    ratings = {finding.rating for finding in findings}
    if Rating.PROBLEM in ratings:
        return ExitCode.PROBLEMS
    return ExitCode.UNCHECKED if Rating.UNCHECKED in ratings else ExitCode.FINE

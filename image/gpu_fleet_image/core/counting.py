"""Numbers with their nouns, and what a number leaves out, in text for users. Pure."""

from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """Return a number and a noun that agree: ``1 file``, ``1,200 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def left_uncounted(parts: Iterable[str]) -> str:
    """Return what a cost does not contain."""
    return f"without a public price, not counted: {', '.join(parts)}"

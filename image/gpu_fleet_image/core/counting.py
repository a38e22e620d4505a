"""A number with its noun, in text for users. Pure."""


def counted(number: int, noun: str) -> str:
    """Return a number and a noun that agree: ``1 file``, ``1,200 files``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

"""Short plays in a world, one for each promise of the sweep, with an assertion for each fault.

``test_mutants`` breaks one guard at a time and requires that a play detects it.
"""

from tests.image.plays import asked, fleet, one, users
from tests.image.plays.stage import CLOUDS, PLAYS

__all__ = ["CLOUDS", "PLAYS", "asked", "fleet", "one", "perform", "users"]


def perform(name: str, cloud: str = "aws") -> list[str]:
    """Perform a play; return its errors."""
    stage, wrongs = PLAYS[name](cloud), list[str]()
    try:
        getattr(stage, name)()
    except AssertionError as wrong:
        wrongs.append(str(wrong))
    return wrongs + stage.world.wrongs + stage.world.floors()

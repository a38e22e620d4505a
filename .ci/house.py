"""Check the house's own rules: `make lint` runs `house.py`; it prints one line for each violation."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(TOP / room) for room in ("stacks", "image")
]  # of this checkout, even if .venv belongs to another

from checks import arrows, changes, pages, pins, tables, trips, unused, words  # noqa: E402 - as above
from checks.sources import Checkout, Finding, NothingToCheckError  # noqa: E402

CHECKS = [
    check for room in (words, pages, trips, arrows, unused, pins, tables, changes) for check in room.CHECKS
]


def findings(check: Callable[[Checkout], Iterator[Finding]], checkout: Checkout) -> list[Finding]:
    """Return the findings of a check in a checkout; nothing to look at is a violation too."""
    found: list[Finding] = []
    try:
        found.extend(check(checkout))
    except NothingToCheckError as error:
        found.append(Finding(check.__module__, 1, f"{check.__name__}: {error}"))
    return found


def main() -> int:
    """Run every check over this checkout."""
    checkout = Checkout(TOP)
    found = [finding for check in CHECKS for finding in findings(check, checkout)]
    sys.stdout.writelines(f"{finding}\n" for finding in sorted(set(found)))
    if not found:
        sys.stdout.write(f"house: {len(checkout.paths)} files keep {len(CHECKS)} rules\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

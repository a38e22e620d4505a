"""Cases that ``make test`` skips, in a module that ranks do not import, as a rank needs no pytest."""

from typing import Any

import pytest


def by_proof(*cases: tuple[Any, ...]) -> list[Any]:
    """Return cases for `make prove-training` alone; `make test` has other cases of the same kind."""
    return [pytest.param(*case, marks=pytest.mark.prove) for case in cases]

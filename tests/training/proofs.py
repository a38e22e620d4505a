"""Cases that ``make test`` leaves out, apart from what ranks import: a rank needs no pytest."""

from typing import Any

import pytest


def by_proof(*cases: tuple[Any, ...]) -> list[Any]:
    """Cases for `make prove-training`, of whose kind `make test` has others."""
    return [pytest.param(*case, marks=pytest.mark.prove) for case in cases]

"""Plays the tests of each module in reversed order: ``pytest -p tests.reversed``."""

from itertools import groupby

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Turn around the tests of each module; the modules stay where they are."""
    items[:] = [
        item for _, of_module in groupby(items, lambda item: item.path) for item in [*of_module][::-1]
    ]

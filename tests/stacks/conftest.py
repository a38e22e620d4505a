"""Declared stacks for tests without moto, and new runs of their programs."""

from collections.abc import Callable

import pytest

from gpu_fleet_stacks.rehearsal import monitor, program
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Stack, stack_files
from tests.stacks import clouds, registrations
from tests.stacks.clouds import Declared
from tests.stacks.shipped import SHIPPED

AWS_STACKS = [name for name in SHIPPED if stack_files.settings_of(name).cloud == "aws"]


@pytest.fixture(scope="module", params=AWS_STACKS)
def declared(request) -> Declared:
    """Return each shipped AWS stack in turn."""
    return clouds.declared(request.param)


@pytest.fixture(scope="module", params=clouds.ON_ALICLOUD)
def alicloud(request) -> Declared:
    """Return each shipped stack of Alibaba Cloud, and one that uses every key."""
    return clouds.declared(request.param)


@pytest.fixture(scope="module", params=clouds.STACKS)
def either(request) -> Declared:
    """Return each shipped stack of both clouds, and one of each with resources that no shipped one has."""
    return clouds.declared(request.param)


@pytest.fixture
def register(monkeypatch) -> Callable[[Stack], Rehearsed]:
    """Return a function that runs the program for any settings with a test's patches; else ``declared``."""
    monkeypatch.setattr(program, "CREATORS", registrations.AnyType())
    monkeypatch.setattr(monitor, "answer", registrations.answer_of_none)
    return registrations.run

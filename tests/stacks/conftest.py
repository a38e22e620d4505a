"""Stacks as they are declared, for tests that ask no moto; and their programs run anew."""

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
    """Each shipped AWS stack in turn."""
    return clouds.declared(request.param)


@pytest.fixture(scope="module", params=clouds.ON_ALICLOUD)
def alicloud(request) -> Declared:
    """Those of Alibaba Cloud, and one that uses every key there is."""
    return clouds.declared(request.param)


@pytest.fixture(scope="module", params=clouds.STACKS)
def either(request) -> Declared:
    """Each shipped stack of both clouds, and one of each that makes what no shipped one does."""
    return clouds.declared(request.param)


@pytest.fixture
def register(monkeypatch) -> Callable[[Stack], Rehearsed]:
    """Run the program for any settings anew, with what a test patches; else ``declared``."""
    monkeypatch.setattr(program, "CREATORS", registrations.AnyType())
    monkeypatch.setattr(monitor, "answer", registrations.answer_of_none)
    return registrations.run

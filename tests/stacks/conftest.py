"""Stacks stood up in moto, for tests that read its state with boto3."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import boto3
import pytest

from stacks.rehearsal import monitor, program
from stacks.rehearsal.program import Rehearsed
from stacks.settings import Stack, stack_files
from tests.stacks import clouds, registrations
from tests.stacks.clouds import Declared
from tests.stacks.standing import standing

AWS_STACKS = [name for name in stack_files.names() if stack_files.settings_of(name).cloud == "aws"]


@dataclass(frozen=True)
class StoodUp:
    """A stack in moto: what its file says, what the program registered, and clients to look with."""

    settings: Stack
    rehearsed: Rehearsed
    client: Callable[[str], Any]

    def of_type(self, token: str):
        return self.rehearsed.of_type(token)


@contextmanager
def stood_up(name: str) -> Iterator[StoodUp]:
    settings = stack_files.settings_of(name)
    with standing(name, settings.region, lambda: registrations.run(name)) as rehearsed:
        yield StoodUp(settings, rehearsed, partial(boto3.client, region_name=settings.region))


@pytest.fixture(params=AWS_STACKS)
def shipped(request) -> Iterator[StoodUp]:
    """Each shipped AWS stack in turn."""
    with stood_up(request.param) as found:
        yield found


@pytest.fixture
def prod() -> Iterator[StoodUp]:
    with stood_up("aws-prod") as found:
        yield found


@pytest.fixture(scope="module", params=AWS_STACKS)
def declared(request) -> StoodUp:
    """Each shipped AWS stack in turn as its program declares it, for tests that ask no moto."""
    return StoodUp(stack_files.settings_of(request.param), registrations.declared(request.param), nobody)


@pytest.fixture(scope="module", params=clouds.STACKS)
def either(request) -> Declared:
    """Each shipped stack of both clouds, and one of each that makes what no shipped one does."""
    return clouds.declared(request.param)


@pytest.fixture(scope="module", params=clouds.ON_ALICLOUD)
def alicloud(request) -> Declared:
    """Those of Alibaba Cloud."""
    return clouds.declared(request.param)


def nobody(service: str) -> Any:
    raise AssertionError(f"{service}: a stack that is only declared stands nowhere")


@pytest.fixture
def register(monkeypatch) -> Callable[[Stack], Rehearsed]:
    """Run the program for any settings anew, with what a test patches; else ``declared``."""
    monkeypatch.setattr(program, "CREATORS", registrations.AnyType())
    monkeypatch.setattr(monitor, "answer", registrations.answer_of_none)
    return registrations.run

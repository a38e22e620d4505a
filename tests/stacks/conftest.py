"""Stacks stood up in moto, for tests that read its state with boto3."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import boto3
import pytest

from stacks.aws.stack import build
from stacks.rehearsal import invokes, monitor, program
from stacks.rehearsal.moto_server import moto_server
from stacks.rehearsal.program import Rehearsed, run_program
from stacks.settings import Stack, stack_files
from tests.stacks.deflating import deflate_once

deflate_once()

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
    with moto_server(settings.region):
        yield StoodUp(settings, run_program(name), partial(boto3.client, region_name=settings.region))


@pytest.fixture(scope="module", params=AWS_STACKS)
def shipped(request) -> Iterator[StoodUp]:
    """Each shipped AWS stack in turn."""
    with stood_up(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def prod() -> Iterator[StoodUp]:
    with stood_up("aws-prod") as found:
        yield found


class AnyType(dict[str, Any]):
    """A creator for every type: gives back the inputs and what a provider computes, and keeps nothing."""

    def get(self, token: str, default: Any = None) -> Any:
        def create(clients, name, inputs):
            computed = {
                "arn": f"arn:aws:any:::{name}",
                "name": name,
                "keyId": name,
                "dnsName": f"{name}.example",
                "latestVersion": 1,
                "prefixListId": "pl-0123456789abcdef0",
            }
            return f"{name}-id", computed | inputs

        return create


def answer_of_none(clients, token: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Of an account in which no image was built yet; it asks no moto."""
    if token == "aws:ssm/getParametersByPath:getParametersByPath":
        return {**arguments, "id": "none", "arns": [], "names": [], "types": [], "values": []}
    if token == "aws:ssm/getParameter:getParameter":
        return {**arguments, "id": "none", "value": "ami-0123456789abcdef0"}
    return invokes.answer(clients, token, arguments)


@cache
def declared_resources(name: str) -> Rehearsed:
    """What the program of a shipped stack registers; nothing stands anywhere after it."""
    with pytest.MonkeyPatch.context() as patch:
        if name in AWS_STACKS:
            patch.setattr(program, "CREATORS", AnyType())
            patch.setattr(monitor, "answer", answer_of_none)
        return run_program(name)


@pytest.fixture(scope="module", params=AWS_STACKS)
def declared(request) -> StoodUp:
    """Each shipped AWS stack in turn as its program declares it, for tests that ask no moto."""
    return StoodUp(stack_files.settings_of(request.param), declared_resources(request.param), nobody)


def nobody(service: str) -> Any:
    raise AssertionError(f"{service}: a stack that is only declared stands nowhere")


@pytest.fixture
def register(monkeypatch) -> Callable[[Stack], Rehearsed]:
    """Run the program for any settings and give what was registered; nothing stands anywhere after it."""
    monkeypatch.setattr(program, "CREATORS", AnyType())
    monkeypatch.setattr(monitor, "answer", answer_of_none)
    return lambda settings: run_program(settings.name, program=lambda: build(settings), config={})

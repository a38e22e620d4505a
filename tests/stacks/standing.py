"""Deployed stacks in moto, created once a process and restored for each test."""

import atexit
import copy
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from moto.core.base_backend import BackendDict
from moto.moto_api._internal import mock_random
from moto.s3.models import FakeKey, FakeMultipart
from moto.ssm.models import ParameterDict

from gpu_fleet_stacks.rehearsal.bucket_policies import conditions_left_out
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import stack_files
from tests.stacks import registrations

Made = TypeVar("Made")


def _copied_parameters(parameters: Any, memo: dict[int, Any]) -> Any:
    """Copy SSM's parameters, whose constructor copy.deepcopy cannot call."""
    made = memo[id(parameters)] = parameters.__class__.__new__(parameters.__class__)
    made.default_factory = parameters.default_factory
    vars(made).update(copy.deepcopy(vars(parameters), memo))
    dict.update(made, copy.deepcopy(dict(parameters), memo))
    return made


def _copied_weakly(values: Any, memo: dict[int, Any]) -> Any:
    """Copy Lambda's ARNs with references to the copies; Python's own copy would refer to the originals."""
    made = memo[id(values)] = WeakValueDictionary()
    made.update({key: copy.deepcopy(value, memo) for key, value in values.items()})
    return made


copy._deepcopy_dispatch[WeakValueDictionary] = _copied_weakly  # type: ignore[attr-defined]
copy._deepcopy_dispatch[ParameterDict] = _copied_parameters  # type: ignore[attr-defined]
copy._deepcopy_dispatch[type(threading.RLock())] = lambda lock, _: lock  # type: ignore[attr-defined] # SQS has one


class Snapshot:
    """Snapshot of moto's whole state."""

    def __init__(self) -> None:
        self._services = [(service, dict(service)) for service in BackendDict._instances]
        self._accounts = [
            (regions, dict(regions)) for _, accounts in self._services for regions in accounts.values()
        ]
        self._backends = [backend for _, regions in self._accounts for backend in regions.values()]
        self._shared = [
            (vars(service)[name], dict(value))
            for service, _ in self._services
            for name, value in vars(service).items()
            if isinstance(value, dict)
        ]
        tracked = [(kind.instances_tracked, len(kind.instances_tracked)) for kind in (FakeKey, FakeMultipart)]
        self._contents = self._copied([vars(backend) for backend in self._backends])
        for instances, count in tracked:
            del instances[count:]  # moto would close the files of this copy when it is emptied
        self._chance = mock_random.getstate()

    def _copied(self, contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Copy the contents of backends, with references to the same backends."""
        held = (service for service, _ in self._services), (regions for regions, _ in self._accounts)
        memo = {id(kept): kept for objects in (self._backends, *held) for kept in objects}
        return copy.deepcopy(contents, memo)

    def restore(self) -> None:
        """Restore moto's state; it may be changed and restored again."""
        BackendDict.reset()
        BackendDict._instances.extend(service for service, _ in self._services)
        for service, accounts in self._services:
            service.update(accounts)
        for regions, backends in self._accounts:
            dict.clear(regions)
            regions.update(backends)
        for backend, content in zip(self._backends, self._copied(self._contents), strict=True):
            vars(backend).clear()
            vars(backend).update(content)
        for value, content in self._shared:
            value.update(content)
        mock_random.setstate(self._chance)


_made: dict[Hashable, tuple[Any, Snapshot]] = {}
atexit.register(_made.clear)  # moto closes the files of S3's keys, which it can no more while Python ends


@contextmanager
def standing(key: Hashable, region: str, make: Callable[[], Made]) -> Iterator[Made]:
    """Serve moto with the state after ``make``, which runs only the first time.

    Args:
        key: key of the state; one for each way to make it.
        make: creates it in an empty moto, and returns its description; a test must not change that.
    """
    with moto_server(region):
        if key in _made:
            _made[key][1].restore()
        else:
            _made[key] = (make(), Snapshot())
        yield _made[key][0]


@contextmanager
def usable(name: str) -> Iterator[Rehearsed]:
    """Serve moto with a shipped stack whose buckets accept users' writes, as in the cloud."""
    region = stack_files.settings_of(name).region
    with (
        conditions_left_out(),
        standing(("usable", name), region, lambda: registrations.run(name)) as rehearsed,
    ):
        yield rehearsed

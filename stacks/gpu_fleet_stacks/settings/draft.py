"""Settings with some fields that could not be parsed, for the rules that need only the others.

A rule is a generator of problems. It reads a draft like the settings themselves. A rule that reads a field
that did not parse ends there, because the malformed key has been reported already.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ParamSpec, TypeVar, cast

from gpu_fleet_stacks.core.errors import Problem

Draft = TypeVar("Draft")
Inputs = ParamSpec("Inputs")


class NotParsedError(Exception):
    """A rule read a field whose value in the file is malformed or missing."""


@cache
def _class(kind: Any) -> Any:
    """Return a subclass of a settings class whose instances raise on fields that did not parse."""

    def read(self: object, name: str) -> Any:
        if name in object.__getattribute__(self, "__dict__").get("_unparsed", ()):
            raise NotParsedError(name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": read})


def draft(kind: type[Draft], values: Mapping[str, Any], unparsed: Collection[str]) -> Draft:
    """Return an instance of a settings class with some of its fields unknown.

    Args:
        kind: one of the dataclasses of ``settings``.
        values: every field that parsed, with defaults.
        unparsed: the other fields; reading one raises NotParsedError.
    """
    known: Any = kind  # mypy accepts no type as hashable here
    made = object.__new__(_class(known))
    made.__dict__.update(values, _unparsed=frozenset(unparsed))
    return cast("Draft", made)


def problems_of(
    rules: Iterable[Callable[Inputs, Iterator[Problem]]], *args: Inputs.args, **kwargs: Inputs.kwargs
) -> Iterator[Problem]:
    """Yield the problems of the rules; a rule ends where it reads a field that did not parse."""
    for rule in rules:
        with suppress(NotParsedError):
            yield from rule(*args, **kwargs)

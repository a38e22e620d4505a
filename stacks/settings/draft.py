"""A value of the settings of which some fields could not be parsed, for the rules of all that could.

A rule is a generator of problems. It reads what it needs from a draft as from the settings themselves; where
that did not parse, the rule ends there, for the malformed key has been reported already.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, ParamSpec, TypeVar, cast

from stacks.errors import Problem

Draft = TypeVar("Draft")
Inputs = ParamSpec("Inputs")


class NotParsedError(Exception):
    """A rule read a field whose value in the file is malformed or missing."""


@cache
def _class(kind: Any) -> Any:
    """A subclass of a settings class whose instances refuse to give what did not parse."""

    def read(self: object, name: str) -> Any:
        if name in object.__getattribute__(self, "__dict__").get("_unparsed", ()):
            raise NotParsedError(name)
        return object.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": read})


def draft(kind: type[Draft], values: Mapping[str, Any], unparsed: Collection[str]) -> Draft:
    """An instance of a settings class with some of its fields unknown.

    Args:
        kind: one of the dataclasses of ``settings``.
        values: every field that parsed, defaults among them.
        unparsed: the others; to read one raises NotParsedError.
    """
    known: Any = kind  # mypy takes no type for hashable here
    made = object.__new__(_class(known))
    made.__dict__.update(values, _unparsed=frozenset(unparsed))
    return cast("Draft", made)


def problems_of(
    rules: Iterable[Callable[Inputs, Iterator[Problem]]], *args: Inputs.args, **kwargs: Inputs.kwargs
) -> Iterator[Problem]:
    """What the rules say, each as far as what it reads has parsed."""
    for rule in rules:
        with suppress(NotParsedError):
            yield from rule(*args, **kwargs)

"""YAML with Pulumi's rules, so that ``check`` and ``pulumi up`` find the same values in a file.

PyYAML follows YAML 1.1 where Pulumi's reader (gopkg.in/yaml.v3) does not: ``22:00`` is text for Pulumi, not
1,320 minutes, and ``yes``, ``no``, ``on`` and ``off`` are text too.
"""

import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import yaml
from yaml.constructor import ConstructorError

BOOL, INT, FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float"))
TIMESTAMP = "tag:yaml.org,2002:timestamp"
MOST_SHOWN = 40  # characters of a value in a message
LEADING_ZERO, NUMBER_LIKE = "!leading-zero", "!number-like"
# Tags whose values no key of a stack file takes; PyYAML would make bytes, sets and lists of pairs of them.
UNREAD = tuple(f"tag:yaml.org,2002:{name}" for name in ("binary", "omap", "pairs", "set"))
# A hundred times the values of the longest stack file of this project.
MOST_VALUES = 20_000


@dataclass(frozen=True)
class LeadingZero:
    """Digits without quotes that begin with 0: octal to one YAML reader, decimal or text to another."""

    text: str

    def __repr__(self) -> str:
        return self.text


class _Loader(yaml.SafeLoader):
    """A YAML loader that refuses a repeated key, as Pulumi's reader does; PyYAML takes the last value."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML declares it so
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (BOOL, INT, FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping; raise an error where a key is repeated."""
        seen = set()
        # a tag for a mapping on anything else is refused below
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"key {key.value!r} appears twice"
                    raise ConstructorError(
                        "while reading a mapping", node.start_mark, problem, key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(LEADING_ZERO, re.compile(r"[-+]?0[0-9_]+$"), list("-+0"))
_Loader.add_implicit_resolver(
    INT, re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+|0b[01_]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    FLOAT,
    re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?$|[-+]?\.(?:inf|Inf|INF)$|\.(?:nan|NaN|NAN)$"
    ),
    list("-+.0123456789"),
)


def _refusing(construct: Callable[[Any, yaml.ScalarNode], Any], kind: str) -> Callable[..., Any]:
    """Return a constructor whose ValueError names the line and column of the value."""

    def constructed(loader: _Loader, node: yaml.ScalarNode) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, KeyError, AttributeError) as error:  # a tag such as !!bool on other words
            problem = f"{str(node.value)[:MOST_SHOWN]} is no {kind}"
            raise ConstructorError(None, None, problem, node.start_mark) from error

    return constructed


_Loader.add_constructor(TIMESTAMP, _refusing(yaml.SafeLoader.construct_yaml_timestamp, "date"))
_Loader.add_constructor(BOOL, _refusing(yaml.SafeLoader.construct_yaml_bool, "word for true or false"))
for _tag, _construct in (
    (INT, yaml.SafeLoader.construct_yaml_int),
    (FLOAT, yaml.SafeLoader.construct_yaml_float),
):
    _Loader.add_constructor(_tag, _refusing(_construct, "number that Python can read"))
_Loader.add_constructor(LEADING_ZERO, lambda _, node: LeadingZero(str(node.value)))
for _tag in UNREAD:
    _Loader.add_constructor(_tag, _refusing(yaml.SafeLoader.construct_undefined, "value"))


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes text that begins like a number: other readers take 098 for one."""


_Dumper.add_implicit_resolver(NUMBER_LIKE, re.compile(r"[-+.]*[0-9]"), list("-+.0123456789"))


def written(content: object, *, flow: bool = False) -> str:
    """Return the content as YAML in which every text is read as text again."""
    text = yaml.dump(content, Dumper=_Dumper, default_flow_style=flow, sort_keys=False, width=math.inf)
    return str(text).removesuffix("...\n").strip() if flow else str(text)


def read(text: str) -> Any:
    """Return the content of a YAML document.

    Raises:
        yaml.YAMLError: it is no YAML, repeats a key in a mapping, is nested too deep, or has too many values
            once its aliases are expanded.
    """
    loader = _Loader(text)
    try:
        root = _root(loader)
        if root is None:
            return None
        if _values(root, {}) > MOST_VALUES:
            raise yaml.YAMLError(
                f"its aliases (*NAME) expand to more than {MOST_VALUES:,} values; write fewer"
            )
        return loader.construct_document(root)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deep, or an alias (*NAME) contains itself") from error
    finally:
        loader.dispose()


def _root(loader: _Loader) -> yaml.Node | None:
    """Return the root of the document; None if it is empty."""
    try:
        root: yaml.Node | None = loader.get_single_node()
    except (OverflowError, ValueError) as error:  # of chr(), for an escape beyond the last character
        raise yaml.YAMLError(
            f"line {loader.line + 1}: an escape (\\U) names no character; correct it"
        ) from error
    return root


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values in a document once each alias is expanded.

    A few lines can expand to more than any computer holds: nine lists of nine aliases, each of the list
    before, are 400 million values. PyYAML stores each once, but code that reads all of them would not end.

    Args:
        known: id of a node -> its values.

    Raises RecursionError if an alias is inside what it names.
    """
    if id(node) not in known:
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [part for pair in parts for part in (pair if isinstance(pair, tuple) else (pair,))]
        known[id(node)] = 1 + sum(_values(part, known) for part in inner)
    return known[id(node)]

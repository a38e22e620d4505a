"""Documented fields of Alibaba Cloud's actions, by which the tests' answers are checked.

    python -m tests.image.alicloud_api FOLDER [PACKAGE:ACTION ...]

rewrites ``alicloud_api.toml`` from the makers' own SDKs, unpacked below FOLDER (``pip install --no-deps
--target FOLDER`` and the packages that its rows name as sources), with a row more for each new action: the
names that a request takes and an answer has, at any depth, with the action's page and the day. A row of
another source was read by hand. Fakes answer nothing else.
"""

import argparse
import datetime
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tomli_w

TABLE = Path(__file__).with_name("alicloud_api.toml")
# Of every RPC request: www.alibabacloud.com/help/en/sdk/product-overview/rpc-mechanism
COMMON = frozenset(
    {
        *("Action", "Version", "Format", "AccessKeyId", "SecurityToken", "Timestamp", "RegionId"),
        *("Signature", "SignatureMethod", "SignatureVersion", "SignatureNonce", "SignatureType"),
    }
)

UNDOCUMENTED: list[str] = []


@cache
def documented() -> dict[str, Any]:
    """Return action -> its row."""
    return tomllib.loads(TABLE.read_text())


def misfit(action: str, request: Iterable[str], answer: Any) -> str:
    """Return the undocumented fields of a request or an answer; empty if both fit.

    Args:
        action: such as ``DescribeInstances``.
        request: names of parameters, ``Tag.1.Key`` and the like.
        answer: the whole answer, without its RequestId.
    """
    row = documented().get(action)
    if row is None:
        return f"{action} is in no row of {TABLE.name}"
    asked = {name.partition(".")[0] for name in request} - COMMON - set(row["request"])
    said = set(_names(answer)) - set(row["answer"])
    return f"{action} takes no {sorted(asked)}, answers no {sorted(said)}" if asked or said else ""


def refused(action: str, request: Iterable[str], answer: Any) -> str:
    """Return ``misfit``, and record it in ``UNDOCUMENTED``, which is checked at the end of every test.

    A refusal alone would be overlooked if the caller tolerates refusals, as agents and sweeps do.
    """
    odd = misfit(action, request, answer)
    if odd:
        UNDOCUMENTED.append(odd)
    return odd


def _names(answer: Any) -> Iterator[str]:
    if isinstance(answer, dict):
        yield from answer
        answer = list(answer.values())
    if isinstance(answer, list):
        for part in answer:
            yield from _names(part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("more", nargs="*", help="PACKAGE:ACTION of a new row")
    asked = parser.parse_args()
    table = dict(documented())
    for package, _, action in (new.partition(":") for new in asked.more):
        table[action] = {"source": package}
    for action, row in table.items():
        if known := re.match(r"alibabacloud_([a-z]+)(\d{4})(\d\d)(\d\d)", row["source"]):
            table[action] = _row(asked.folder, action, known)
    TABLE.write_text(tomli_w.dumps(dict(sorted(table.items()))))


def _row(folder: Path, action: str, package: re.Match[str]) -> dict[str, Any]:
    product, *date = package.groups()
    names = _fields(folder / package[0])
    (release,) = folder.glob(f"{package[0]}-*.dist-info")
    return {
        "page": f"https://api.alibabacloud.com/document/{product.capitalize()}/{'-'.join(date)}/{action}",
        "source": release.name.removesuffix(".dist-info"),
        "read": datetime.datetime.now(datetime.UTC).date(),
        "request": _of(names, f"{action}Request"),
        "answer": _of(names, f"{action}ResponseBody"),
    }


@cache
def _fields(package: Path) -> dict[str, set[str]]:
    """Return class -> the names that it sends or reads."""
    found: dict[str, set[str]] = {}
    for file in (*package.glob("models.py"), *package.glob("models/_*.py")):
        for part in re.split(r"^class ", file.read_text(), flags=re.MULTILINE)[1:]:
            found[part.partition("(")[0]] = set(re.findall(r"result\['([^']+)'\]", part))
    return found


def _of(names: dict[str, set[str]], prefix: str) -> list[str]:
    assert prefix in names or prefix.endswith("Request"), prefix
    return sorted({name for kind, fields in names.items() if kind.startswith(prefix) for name in fields})


if __name__ == "__main__":
    main()

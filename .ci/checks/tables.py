"""Files that are generated, or copied from a cloud's documentation: each must match its source."""

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks.sources import Checkout, Finding, NothingToCheckError, line_of
from gpu_fleet_stacks.settings import projects, reference

ACTIONS = "tests/image/alicloud_api.toml"
PAGES = ("https://api.alibabacloud.com/document/", "https://www.alibabacloud.com/help/")
ROOMS = ("image/", "stacks/", "training/")
FIRST_YEAR = 2026
REGIONS, PARTITIONS = "stacks/gpu_fleet_stacks/catalog/regions.toml", ("aws", "aws-us-gov")
CATALOG = ("stacks/gpu_fleet_stacks/catalog/catalog.toml", "stacks/gpu_fleet_stacks/catalog/prices.toml")
WORD = re.compile(r"\w+")
# Where the product names an action; other first words than these are parameters' too.
ASKED = re.compile(
    r'(?<!get)[(:]\s*(?:"[a-z]+", )?"((?:Assume|Attach|Check|Complete|Delete|Describe|Detach|Get|Invoke|'
    r'List|Modify|Put|Query|Release|Resume|Suspend)[A-Z]\w+)"'
)


def actions(checkout: Checkout) -> Iterator[Finding]:
    """Check that each action of Alibaba Cloud has a row with its page and day, and a stand-in in tests."""
    text = checkout.text(ACTIONS)
    rows: dict[str, Any] = tomllib.loads(text)
    if not rows:
        raise NothingToCheckError(f"{ACTIONS}: has no action")
    sources = [checkout.text(path) for path in checkout.files("tests", suffix=".py")]
    words = {word for source in sources for word in WORD.findall(source)}
    by_key = "\n".join(each for each in sources if re.search("alicloud_account|alicloud_api import", each))
    for action, row in rows.items():
        at = line_of(text, f"[{action}]")
        page = str(row.get("page"))
        if not page.startswith(PAGES) or action.lower() not in page.lower():
            yield Finding(ACTIONS, at, f"{action} names no page of its own")
        if not row.get("source") or not row.get("answer") or row["read"].year < FIRST_YEAR:
            yield Finding(ACTIONS, at, f"{action} lacks its source, its answer or the day of reading")
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower()
        if method not in words and not re.search(rf'"{action}": |\b{action}=|refused\("{action}"', by_key):
            yield Finding(ACTIONS, at, f"no stand-in answers {action}")
    for path in checkout.paths:
        if path.startswith(ROOMS) and path.endswith(".py") and re.search("alicloud|/oss", path):
            text = checkout.text(path)
            for action in sorted(set(ASKED.findall(text)) - rows.keys()):
                yield Finding(path, line_of(text, f'"{action}"'), f"{action} is in no row of {ACTIONS}")


def regions(checkout: Checkout) -> Iterator[Finding]:
    """Check that AWS regions are those of the SDK, and that price lists name only known regions."""
    known = {cloud: set(table["regions"]) for cloud, table in tomllib.loads(checkout.text(REGIONS)).items()}
    for region in sorted(known.get("aws", set()) ^ _of_sdk()):
        yield Finding(REGIONS, 1, f"{region} is either not listed or not in the SDK")
    for path in CATALOG:
        named = re.findall(r'^region = "(.+)"', checkout.text(path), re.MULTILINE)
        for region in sorted(set(named) - set().union(*known.values())):
            yield Finding(
                path, line_of(checkout.text(path), f'"{region}"'), f"{region} is in no list of regions"
            )


def _of_sdk() -> set[str]:
    spec = importlib.util.find_spec("botocore")  # importing it would take longer than this whole check
    assert spec is not None
    assert spec.origin is not None
    content = json.loads((Path(spec.origin).parent / "data" / "partitions.json").read_text(encoding="utf-8"))
    partitions = [row["regions"] for row in content["partitions"] if row["id"] in PARTITIONS]
    return {name for names in partitions for name in names if not name.endswith("-global")}


def written(checkout: Checkout) -> Iterator[Finding]:
    """Check that the JSON Schema of a stack file and the page of its keys match the settings."""
    schema = json.dumps(reference.json_schema(), indent=1) + "\n"
    schema_file = reference.FILE.relative_to(projects.OWN)
    for file, text in (
        (schema_file, schema),
        (reference.PAGE, reference.markdown()),
        (reference.PROJECT, reference.pulumi_project()),
    ):
        path = file.as_posix()
        if checkout.text(path) != text:
            yield Finding(path, 1, "is of other settings: run `gpu-fleet schema --write`")


CHECKS = (actions, regions, written)

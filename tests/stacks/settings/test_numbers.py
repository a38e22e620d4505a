"""Every number and switch of a stack file is checked: no `true` for a number, no text, no infinity."""

import math
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core import policy
from gpu_fleet_stacks.core.errors import SettingsError, StacksError
from gpu_fleet_stacks.payload import sweep_policy
from gpu_fleet_stacks.settings import Stack, namespaces, stack_files
from gpu_fleet_stacks.settings.reader import from_mapping
from gpu_fleet_stacks.settings.reference import json_schema
from tests.stacks.alicloud_examples import pool as alicloud_pool
from tests.stacks.alicloud_examples import stack as alicloud_stack
from tests.stacks.examples import changed, stack_file

SCHEMA = json_schema()
Place = tuple[str | int, ...]
# Names that the schema leaves open, of mappings from a name to a number.
NAMED = {"slots": "us-east-1a", "assume": "disk"}


def leaves(entry: dict[str, Any], place: Place) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the place of each value of the file that is no section, and its entry in the schema."""
    entry = SCHEMA["$defs"][entry["$ref"].removeprefix("#/$defs/")] if "$ref" in entry else entry
    if entry.get("type") == "array":
        yield from leaves(entry["items"], (*place, 0))
    elif "properties" in entry:
        for key, inner in entry["properties"].items():
            yield from leaves(inner, (*place, key))
    elif isinstance(inner := entry.get("additionalProperties"), dict):
        yield from leaves(inner, (*place, NAMED.get(str(place[-1]), "name")))
    elif "anyOf" in entry:
        for option in entry["anyOf"]:
            yield from leaves(option, place)
    else:
        yield place, entry


def found(kind: str) -> dict[Place, dict[str, Any]]:
    config = SCHEMA["properties"]["config"]["properties"]
    return {
        place: entry
        for key, top in config.items()
        for place, entry in leaves(top, (key.removeprefix(namespaces.PREFIX),))
        if entry.get("type") == kind or (kind == "integer" and isinstance(entry.get("enum", [""])[0], int))
    }


# Sums of money: in quotes they keep their decimals.
MONEY = {("budget", "assume", "disk"), ("budget", "cny_per_usd"), ("pools", 0, "spot_price_limit")}
WHOLE, NUMBERS, SWITCHES = found("integer"), found("integer") | found("number"), found("boolean")


def file_with(place: Place, value: object) -> dict[str, Any]:
    """Return a valid file with one value replaced."""
    content: dict[str, Any] = changed(stack_file(), {key_of(place): value})
    return content


def key_of(place: Place) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def said(place: Place, value: object) -> list[str]:
    """Return the reader's errors about one value."""
    with pytest.raises(SettingsError) as caught:
        from_mapping("test", file_with(place, value))
    return [str(problem) for problem in caught.value.problems if problem.key == key_of(place)]


def test_the_schema_has_numbers_to_try():
    assert len(NUMBERS) > 35
    assert len(SWITCHES) > 10
    assert ("pools", 0, "size", "max") in WHOLE
    assert ("logs", "retention_days") in WHOLE
    assert ("budget", "assume", "disk") in NUMBERS


def test_true_is_no_number():
    expected = {place: [f"{key_of(place)} = true: must be a number, not true or false"] for place in NUMBERS}

    assert {place: said(place, True) for place in NUMBERS} == expected


# What is no number anywhere, however large a number may be.
NO_NUMBERS = (
    st.booleans()
    | st.sampled_from([math.nan, math.inf, -math.inf, 1e30, 10**400, {}, []])
    | st.integers(max_value=-1)
    | st.integers(0, 10**9).map(str)
    | st.text(max_size=8)
)


@given(st.sampled_from(sorted(NUMBERS, key=key_of)), NO_NUMBERS)
def test_what_is_no_number_is_refused_by_its_key(place, value):
    if place in MONEY and isinstance(value, str):
        return
    assert said(place, value)


def test_a_sum_of_money_may_stand_in_quotes():
    for value in ("2.50", 2.5):
        settings = alicloud_stack(pools=[alicloud_pool(market="spot", spot_price_limit=value)])

        assert settings.pools[0].spot_price_limit == Decimal("2.5")


def test_only_a_number_is_asked_for_without_its_quotes():
    without = {text: said(("pools", 0, "size", "max"), text)[0] for text in ("3", "nan", "inf", "1:30")}

    assert [text for text, words in without.items() if "without quotes" in words] == ["3"]


def test_no_other_text_is_a_sum_of_money():
    taken = product(MONEY, ("two", "nan", "inf", "-1", ""))

    assert [(key_of(place), text) for place, text in taken if not said(place, text)] == []


@given(st.sampled_from(sorted(SWITCHES, key=key_of)), st.integers() | st.text() | st.floats())
def test_what_is_no_switch_is_refused_by_its_key(place, value):
    if place == ("protected",) and value in ("true", "false"):
        return
    (line,) = said(place, value)
    assert line.split(": ", 1)[1] == "must be true or false, without quotes"


def test_pulumi_hands_a_switch_at_the_top_as_text():
    for text in ("true", "false"):
        assert from_mapping("test", file_with(("protected",), text)).protected is (text == "true")


def accepted(place: Place, value: int) -> Stack | None:
    with suppress(SettingsError):
        return from_mapping("test", file_with(place, value))
    return None


def test_the_sweep_takes_the_largest_numbers_that_a_file_may_say():
    """It refuses its whole policy otherwise, and sweeps nothing."""
    most = {place: entry["maximum"] for place, entry in WHOLE.items() if "maximum" in entry}
    stacks = {key_of(place): read for place, value in most.items() if (read := accepted(place, value))}

    assert {"pools[0].size.max", "pools[0].max_lifetime_hours", "reaper.max_actions"} <= stacks.keys()
    for read in stacks.values():
        assert policy.parse(sweep_policy.policy_text(read)).stack == "test"


def test_a_value_that_no_yaml_reader_can_hold_is_one_message(tmp_path):
    path = tmp_path / "Pulumi.test.yaml"
    for line in ("1" * 5000, "2026-02-30"):
        path.write_text(f"config:\n  gpu-fleet:owner: {line}\n")
        with pytest.raises(StacksError, match="cannot be read"):
            stack_files.config_of(path)

"""Every number of a configuration must be a finite number: no `true`, no text."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet.core.config import Config, from_table
from gpu_fleet.core.errors import ConfigError

SOUND: dict[str, Any] = {"model": {"name": "resnet_small"}, "data": {"path": "data"}, "run": {"steps": 1}}
SCHEMA = Config.model_json_schema()
NO_NUMBERS = st.sampled_from([True, False, math.nan, math.inf, -math.inf, -1]) | st.integers(0).map(str)


def numbers() -> list[tuple[str, str]]:
    """Return (section, key) of every key that is or may be a number."""
    parts = {
        name: SCHEMA["$defs"][entry["$ref"].rpartition("/")[2]]
        for name, entry in SCHEMA["properties"].items()
    }
    return [
        (section, key)
        for section, part in parts.items()
        for key, entry in part["properties"].items()
        if {"integer", "number"} & {option.get("type") for option in entry.get("anyOf", [entry])}
    ]


def refusal(section: str, key: str, value: object) -> str:
    try:
        from_table(SOUND | {section: SOUND.get(section, {}) | {key: value}}, "job.toml")
    except ConfigError as error:
        return str(error)
    return ""


def test_a_valid_table_is_read_and_the_schema_has_numbers_to_try():
    assert refusal("run", "steps", 2) == ""
    assert len(numbers()) > 30


@given(st.sampled_from(numbers()), NO_NUMBERS)
def test_what_is_no_number_is_refused_by_its_key(place, value):
    assert f"{'.'.join(place)} = {value!r}: " in refusal(*place, value)

"""The JSON Schema and the page of keys: current, strict, and no stricter than the reader."""

import json

from click.testing import CliRunner
from hypothesis import given
from jsonschema import Draft202012Validator

from gpu_fleet_stacks.settings import namespaces, reference, stack_files, yaml_text
from tests.stacks.examples import pool, stack_file
from tests.stacks.examples import stack_files as sound_files
from tests.stacks.shipped import SHIPPED

VALIDATOR = Draft202012Validator(json.loads(reference.FILE.read_text()))


def whole(**changes):
    return {"config": {f"{namespaces.PREFIX}{key}": value for key, value in stack_file(**changes).items()}}


def test_the_command_prints_the_schema_which_is_one():
    assert CliRunner().invoke(reference.command).output == reference.FILE.read_text()
    Draft202012Validator.check_schema(VALIDATOR.schema)


def test_every_key_says_what_it_means():
    definitions = VALIDATOR.schema["$defs"]
    sections = [VALIDATOR.schema["properties"]["config"], *definitions.values()]

    silent = [
        key
        for section in sections
        for key, entry in section.get("properties", {}).items()
        if not {"description", "$ref"} & entry.keys() and "$ref" not in entry.get("items", {})
    ]

    assert silent == []
    assert all(definition["description"] for definition in definitions.values())


def test_a_shipped_file_names_the_schema_and_keeps_to_it():
    for name in SHIPPED:
        text = stack_files.path_of(name).read_text()
        first, _, _ = text.partition("\n")
        place = stack_files.path_of(name).parent / first.removeprefix("# yaml-language-server: $schema=")
        assert place.resolve() == reference.FILE, name
        assert list(VALIDATOR.iter_errors(yaml_text.read(text))) == [], name


@given(sound_files())
def test_the_schema_refuses_no_valid_file(content):
    file = {"config": {f"{namespaces.PREFIX}{key}": value for key, value in content.items()}}

    assert [error.message for error in VALIDATOR.iter_errors(file)] == []


def test_the_schema_takes_an_owner_in_any_script():
    assert VALIDATOR.is_valid(whole(owner="Команда зрения"))


BROKEN = {
    "'sise' was unexpected": whole(pools=[pool(sise={})]),
    "gpu-fleet:netwrok": whole(netwrok={}),
    "400 is greater than the maximum": whole(pools=[pool(idle={"after_hours": 400})]),
    "'spott' is not one of": whole(pools=[pool(market="spott")]),
    "'g5.xlagre' is not one of": whole(pools=[pool(types=["g5.xlagre"])]),
    "is not of type 'string'": whole(account_id=123456789012),
    "'Dev_1' does not match": whole(pools=[pool(name="Dev_1")]),
    "[] should be non-empty": whole(pools=[]),
    "'confg' was unexpected": whole() | {"confg": {}},
    "'aws:region' do": {"config": whole()["config"] | {"aws:region": "x"}},
    "'gpu-fleet:cloud' is a required property": {"config": {}},
}


def test_the_schema_refuses_a_broken_file():
    said = {says: [error.message for error in VALIDATOR.iter_errors(file)] for says, file in BROKEN.items()}

    assert {says: texts for says, texts in said.items() if not any(says in text for text in texts)} == {}


def test_an_editor_takes_a_sum_of_money_in_quotes_as_the_reader_does():
    for price, fits in ((1.5, True), ("1.50", True), ("many", False), (True, False)):
        budget = {"monthly": 5000, "recipients": ["team@example.com"], "assume": {"disk": price}}
        assert VALIDATOR.is_valid(whole(budget=budget)) is fits, price

"""The JSON Schema and the page of keys: current, strict, and no stricter than the reader."""

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from jsonschema import Draft202012Validator

from stacks.settings import namespaces, reference, stack_files, yaml_text
from tests.stacks.examples import pool, stack_file
from tests.stacks.examples import stack_files as sound_files

VALIDATOR = Draft202012Validator(json.loads(reference.FILE.read_text()))


def whole(**changes):
    return {"config": {f"{namespaces.PREFIX}{key}": value for key, value in stack_file(**changes).items()}}


def test_the_command_prints_the_schema():
    assert CliRunner().invoke(reference.command).output == reference.FILE.read_text()


def test_the_schema_is_one():
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


@pytest.mark.parametrize("name", stack_files.names())
def test_a_shipped_file_names_the_schema_and_keeps_to_it(name):
    text = stack_files.path_of(name).read_text()
    first, _, _ = text.partition("\n")
    place = stack_files.FOLDER / first.removeprefix("# yaml-language-server: $schema=")

    assert place.resolve() == reference.FILE
    assert list(VALIDATOR.iter_errors(yaml_text.read(text))) == []


@given(sound_files())
def test_the_schema_refuses_no_valid_file(content):
    file = {"config": {f"{namespaces.PREFIX}{key}": value for key, value in content.items()}}

    assert [error.message for error in VALIDATOR.iter_errors(file)] == []


def test_the_schema_takes_an_owner_in_any_script():
    assert VALIDATOR.is_valid(whole(owner="Команда зрения"))


BROKEN = {
    "a misspelt key": (whole(pools=[pool(sise={})]), "'sise' was unexpected"),
    "a misspelt section": (whole(netwrok={}), "gpu-fleet:netwrok"),
    "a value out of range": (
        whole(pools=[pool(idle={"after_hours": 400})]),
        "400 is greater than the maximum",
    ),
    "a value that is none of the choices": (whole(pools=[pool(market="spott")]), "'spott' is not one of"),
    "a type that nobody sells": (whole(pools=[pool(types=["g5.xlagre"])]), "'g5.xlagre' is not one of"),
    "a number for a text": (whole(account_id=123456789012), "is not of type 'string'"),
    "a name that no resource takes": (whole(pools=[pool(name="Dev_1")]), "'Dev_1' does not match"),
    "no pools": (whole(pools=[]), "[] should be non-empty"),
    "a key of nobody": (whole() | {"confg": {}}, "'confg' was unexpected"),
    "a key of a provider": ({"config": whole()["config"] | {"aws:region": "x"}}, "'aws:region' do"),
    "nothing that is required": ({"config": {}}, "'gpu-fleet:cloud' is a required property"),
}


@pytest.mark.parametrize(("file", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_the_schema_refuses_a_broken_file(file, says):
    assert any(says in error.message for error in VALIDATOR.iter_errors(file))


@pytest.mark.parametrize(("price", "fits"), [(1.5, True), ("1.50", True), ("many", False), (True, False)])
def test_an_editor_takes_a_sum_of_money_in_quotes_as_the_reader_does(price, fits):
    budget = {"monthly": 5000, "recipients": ["team@example.com"], "assume": {"disk": price}}

    assert VALIDATOR.is_valid(whole(budget=budget)) is fits

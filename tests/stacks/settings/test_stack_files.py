"""Unreadable stack files give one sentence each, and no traceback."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_stacks.core.errors import SettingsError, StacksError
from gpu_fleet_stacks.rehearsal.program import run_program
from gpu_fleet_stacks.settings import Stack, stack_files, yaml_text
from tests.stacks.examples import pool, stack_file


def aliases(deep: int) -> bytes:
    """Return a few lines, each a list of nine aliases of the previous one."""
    lines = ["  gpu-fleet:list0: &list0 [a]"]
    for number in range(1, deep + 1):
        inner = ", ".join([f"*list{number - 1}"] * 9)
        lines.append(f"  gpu-fleet:list{number}: &list{number} [{inner}]")
    return "\n".join(["config:", *lines, ""]).encode()


LONGEST = 400  # characters of a line that a user still reads
LATIN = "config:\n  gpu-fleet:owner: Müller\n"
TWICE = b"config:\n  gpu-fleet:region: us-east-1\n  gpu-fleet:region: eu-west-1\n"
DEEP = b"config:\n  gpu-fleet:pools:\n    - name: dev\n      size: {max: 1, max: 8}\n"
BESIDE = b"gpu-fleet:region: us-east-1\nconfig:\n  gpu-fleet:cloud: aws\n"
WIDE = "it is UTF-16 or UTF-32: save it as UTF-8"
TAGS = "tags are not read, so remove a tag"
NO_MAPPING = "expected a mapping node, but found scalar: put quotes around a value that begins with !; tags"
UNREADABLE = {
    b"config:\n  a: " + b"9" * 5000: "9 is no number that Python can read: write a shorter",
    b"config:\n  5: 1\n": "config.5: a key must be text, such as 'gpu-fleet:region'",
    LATIN.encode("latin-1"): "cannot be read",
    TWICE: "key 'gpu-fleet:region' appears twice",
    DEEP: "key 'max' appears twice",
    "config: {}\n".encode("utf-16"): WIDE,
    "config: {}\n".encode("utf-16-le"): WIDE,  # without a mark
    b"config:\n  a: M\xfcller\n": "line 2, column 7: the byte 0xfc is no UTF-8",
    b"config:\n  a: b\x07\n": "line 2, column 7: the character U+0007 is not allowed",
    b"config:\n\ta: b\n": "line 2, column 1: found character '\\t' that cannot start any token: YAML",
    "config:\n\u00a0\u00a0a: b\n  c: d\n".encode(): "not allowed here: replace the no-break space",
    b"config:\n  a:b\n  c: d\n": "end the key of the line above with a colon and a space",
    b"config:\n  a: [b\n  c: d\n": "line 2, column 6: expected ',' or ']'",
    b"config:\n  a: @b\n": "put quotes around the value\n  a: @b",
    b"config:\n  a: b: c\n": "line 2, column 7: mapping values are not allowed here: put",
    b"config:\n  a: *b\n": "found undefined alias 'b': put quotes around",
    b"config:\n  a: !Ref b\n": "put quotes around a value that begins with !; tags are not read",
    b"config:\n  a: 2026-13-45\n": "line 2, column 6: 2026-13-45 is no date: put quotes",
    b"config:\n  a: 0x_\n": "line 2, column 6: 0x_ is no number",
    b"config: {}\n---\nconfig: {}\n": "a stack file is one document",
    b"config: 3\n": "'config' must be a mapping of keys to values",
    b"config: [": "cannot be read",
    b"config: " + b"[" * 3000: "it is nested too deep",
    aliases(9): "its aliases (*NAME) expand to more than 20,000 values",
    b"config: &all [*all]\n": "an alias (*NAME) contains itself",
    b"# later\n": "is empty; `gpu-fleet new` writes a stack file",
    b"aws\n": "must be a mapping with the key 'config'; it is the text 'aws'",
    b"config:\n  - a: b\n": "it is a list: remove the dashes before its keys",
    b"config:\n  a: !!binary aGk=\n": "line 2, column 6: could not determine",
    b"config:\n  a: !!set {b}\n": TAGS,
    b"config:\n  a: !!omap [b: c]\n": TAGS,
    b"[config]\na = 1\n": "and what is above config:",
    b"config:\n  a: !!float b\n": "line 2, column 6: b is no number",
    b"config:\n  a: !!bool b\n": "b is no word for true or false: put",
    b"config:\n  a: !!timestamp b\n": "line 2, column 6: b is no date",
    b'config:\n  a: "\\Uffffffff"\n': "line 2: an escape (\\U) names no character",
    b'config:\n  a: "\\U00110000"\n': "line 2: an escape (\\U) names no character",  # the first too many
    b"config:\n  a: !!map b\n": NO_MAPPING,
    b"config:\n  a: !x!y b\n": "undefined tag handle '!x!': put quotes around",
    b"config:\n  a: =\n": "'tag:yaml.org,2002:value': put quotes around the value",  # a word of YAML 1.1
    b"...\nconfig: {}\n": "remove lines that begin with % or ...",
    b'config:\n  a: "C:\\q"\n': "character 'q': write \\\\ for a backslash",
    b"config:\n  a: {{ b }}\n": "found unhashable key: put quotes around a value that begins with {",
    b"%YAML 3.0\n---\nconfig: {}\n": "remove lines that begin with % or ...",
    b"config: {<<: [1]}\n": "write the keys out",
    b"config:\n<<<<<<< HEAD\n  a: b\n": "that conflicted: keep one side\n  <<<<<<< HEAD",
    b"config:\n": "'config:' is missing or empty; every key must be below it",
    BESIDE: "'gpu-fleet:region' is beside 'config:'; must be below it",
}


def test_a_file_that_cannot_be_read_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "Pulumi.odd.yaml"
    for content, says in UNREADABLE.items():
        path.write_bytes(content)
        with pytest.raises(StacksError) as caught:
            stack_files.config_of(path)
        assert says in str(caught.value)
        assert str(path) in str(caught.value)
        assert max(map(len, str(caught.value).splitlines())) < LONGEST


def test_a_line_with_a_secret_is_not_shown(tmp_path):
    path = tmp_path / "Pulumi.odd.yaml"
    path.write_text("config:\n  a: https://hooks.example/secret: x\n")

    with pytest.raises(StacksError, match="line 2, column 34") as caught:
        stack_files.config_of(path)

    assert "hooks.example" not in str(caught.value)


def test_a_key_may_stand_in_two_mappings_and_two_pools_share_what_an_alias_stands_for(tmp_path):
    path = tmp_path / "Pulumi.two.yaml"
    pools = "[{name: dev, idle: &idle {after_hours: 2}}, {name: train, idle: *idle}]"
    path.write_text(f"config:\n  gpu-fleet:pools: {pools}\n", encoding="utf-8")

    both = [{"name": name, "idle": {"after_hours": 2}} for name in ("dev", "train")]
    assert stack_files.config_of(path) == {"gpu-fleet:pools": both}


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Read a stack file as ``check`` does."""

    def reading(text: str) -> Stack:
        (tmp_path / "Pulumi.test.yaml").write_text(text, encoding="utf-8")
        return stack_files.settings_of("test")

    monkeypatch.setenv("GPU_FLEET_DIR", str(tmp_path))
    return reading


def yaml_of(more: str = "", **changes) -> str:
    """Return a valid stack file as text, with further lines of its config at the end."""
    config = {f"gpu-fleet:{key}": value for key, value in stack_file(**changes).items()}
    return yaml.safe_dump({"config": config}) + more


FOREIGN_KEYS = {
    "storage": "has no namespace; did you mean 'gpu-fleet:storage'?",
    "gpu_fleet:storage": "namespace 'gpu_fleet' is read by nothing here; did you mean 'gpu-fleet:storage'?",
    "gpu-fleet:storge": "unknown key; did you mean 'storage'?",
    "gpufleet:xyz": "namespace 'gpufleet' is read by nothing here; keys of this project begin with",
    "aws:assumeRole": "configures the default provider, which is not used: the stack has",
    "alicloud:profile": "configures the default provider, which is not used: the stack has",
    "aws:region": "configures the default provider, which is switched off; use gpu-fleet:region",
}


def test_a_key_that_nothing_reads_is_named_beside_every_other_problem(read):
    for key, says in FOREIGN_KEYS.items():
        with pytest.raises(SettingsError) as caught:
            read(yaml_of(f"  {key}: {{}}\n", owner="Research (EMEA)"))
        assert f"- {key.removeprefix('gpu-fleet:')} = {{}}: {says}" in str(caught.value)
        assert "owner = 'Research (EMEA)'" in str(caught.value)


def test_the_engines_own_keys_are_left_to_it(read):
    assert read(yaml_of("  pulumi:disable-default-providers: ['*']\n  pulumi:tags: {a: b}\n")).name == "test"


def test_the_program_refuses_a_key_that_nothing_reads_as_check_does(tmp_path):
    path = tmp_path / "Pulumi.test.yaml"
    path.write_text(yaml_of("  gpu_fleet:storage: {home: true}\n"), encoding="utf-8")

    with pytest.raises(Exception, match=r"gpu_fleet:storage = .* did you mean 'gpu-fleet:storage'"):
        run_program("test", path)


def test_a_time_of_day_needs_no_quotes(read):
    quiet = "{start: 22:00, end: 06:30}"
    text = yaml_of(pools=[pool(idle={"quiet_hours": ["HOURS"]})]).replace("HOURS", quiet)

    (hours,) = read(text).pools[0].idle.quiet_hours

    assert (hours.start, hours.end) == ("22:00", "06:30")


def test_a_word_that_yaml_1_1_took_for_true_or_false_is_text(read):
    for word in ("no", "on", "off", "yes"):
        assert read(yaml_of(owner="WORD").replace("WORD", word)).owner == word


def test_digits_that_begin_with_0_and_lack_quotes_are_refused_where_text_is_meant(read):
    for digits in ("012345678901", "012345670123"):
        with pytest.raises(SettingsError) as caught:
            read(yaml_of(account_id="DIGITS").replace("DIGITS", digits))
        assert f"account_id = {digits}: must be text" in str(caught.value)
        assert str(caught.value).endswith(f'write "{digits}"')


def test_digits_that_begin_with_0_are_refused_where_a_number_is_meant(read):
    text = yaml_of(pools=[pool(size={"min": 0, "desired": 0, "max": "MOST"})]).replace("MOST", "010")

    with pytest.raises(SettingsError, match=r"max = 010: is octal to one YAML reader and .*: drop the 0$"):
        read(text)


@given(st.text("0189e.+-_:xbyno#'\"[ ", max_size=12), st.booleans())
def test_a_text_that_is_written_is_read_as_the_same_text(text, flow):
    content = {"account_id": text, "types": [text], "slots": {text: 0}}

    assert yaml_text.read(yaml_text.written(content, flow=flow)) == content


def test_numbers_and_booleans_are_still_read_as_such(tmp_path):
    written = {"0": 0, "-7": -7, "1_000": 1000, "0x1f": 31, "1.5": 1.5, "1e3": 1000.0, "true": True}
    path = tmp_path / "Pulumi.test.yaml"
    path.write_text(f"config: {{gpu-fleet:x: [{', '.join(written)}]}}", encoding="utf-8")

    read = stack_files.config_of(path)["gpu-fleet:x"]

    assert [(value, type(value)) for value in read] == [(value, type(value)) for value in written.values()]

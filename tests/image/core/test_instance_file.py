"""instance.toml is read as the stack writes it, and errors name each wrong key."""

import pytest

from gpu_fleet_image.core.errors import InstanceFileError
from gpu_fleet_image.core.instance_file import Expected, load
from tests.image.instance_toml import INSTANCE_TOML


@pytest.fixture
def loaded(tmp_path):
    """Return a function that writes and reads a file."""

    def load_text(text):
        path = tmp_path / "instance.toml"
        path.write_text(text)
        return load(path)

    return load_text


def refusal(loaded, old, new):
    assert old in INSTANCE_TOML
    with pytest.raises(InstanceFileError) as caught:
        loaded(INSTANCE_TOML.replace(old, new))
    return str(caught.value)


def test_a_file_of_the_stack_is_read_with_what_is_expected_of_a_type(loaded):
    """An unknown type has the least of each value; a pool without types expects nothing."""
    instance = loaded(INSTANCE_TOML + '[expected."g5.48xlarge"]\ngpus = 8\nefa_interfaces = 1\n')

    assert (instance.stack, instance.pool, instance.region) == ("aws-dev", "dev", "us-east-1")
    assert instance.expected_of("g5.48xlarge") == Expected(gpus=8, efa_interfaces=1)
    assert instance.expected_of(None) == instance.expected_of("p9.huge") == Expected(gpus=1)
    assert loaded(INSTANCE_TOML.partition("[expected")[0]).expected_of("g5.xlarge") == Expected()


WRONG = [
    ("schema_version = 1", "schema_version = 2", "schema_version = 2; allowed: 1"),
    ('pool = "dev"', 'pol = "dev"', "pool is missing; allowed: a text (nearest: pol)"),
    ('cloud = "aws"', 'cloud = "awz"', "cloud = 'awz'; allowed: aws, alicloud (nearest: aws)"),
    ("gpus = 1", 'gpus = "1"', "expected.g5.xlarge.gpus = '1'; allowed: a whole number"),
    (
        "efa_interfaces = 0",
        'efa_interfaces = "0"',
        "expected.g5.xlarge.efa_interfaces = '0'; allowed: a whole number",
    ),
    ("gpu_memory_gib = 24", "gpu_memory_gib = nan", "expected.g5.xlarge.gpu_memory_gib = nan; allowed: a"),
    ("schema_version = 1", "schema_version 1", "not TOML"),
]


def test_a_wrong_key_is_named_with_its_value_and_what_is_allowed(loaded):
    said = [(refusal(loaded, old, new), words) for old, new, words in WRONG]

    assert [row for row in said if row[1] not in row[0]] == []


def test_every_problem_is_reported_at_once(loaded):
    both = refusal(loaded, 'cloud = "aws"\nregion = "us-east-1"', 'cloud = "x"')

    assert len(both.splitlines()) == 2


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InstanceFileError, match=r"gone\.toml: No such file"):
        load(tmp_path / "gone.toml")

"""instance.toml is read as the stack writes it, and refused key by key."""

import pytest

from image.instance.errors import InstanceFileError
from image.instance.instance_file import Expected, load
from tests.reaper.instance_toml import INSTANCE_TOML


@pytest.fixture
def refused(tmp_path):
    def message(old, new):
        assert old in INSTANCE_TOML
        path = tmp_path / "instance.toml"
        path.write_text(INSTANCE_TOML.replace(old, new))
        with pytest.raises(InstanceFileError) as caught:
            load(path)
        return str(caught.value)

    return message


def test_a_file_of_the_stack_is_read(tmp_path):
    path = tmp_path / "instance.toml"
    path.write_text(INSTANCE_TOML + '[expected."g5.48xlarge"]\ngpus = 8\n')

    instance = load(path)

    assert (instance.stack, instance.pool, instance.region) == ("aws-dev", "dev", "us-east-1")
    assert instance.expected_of("g5.48xlarge") == Expected(gpus=8)


@pytest.mark.parametrize("instance_type", [None, "p9.huge"])
def test_of_an_unknown_type_the_least_of_each_is_expected(tmp_path, instance_type):
    path = tmp_path / "instance.toml"
    path.write_text(INSTANCE_TOML + '[expected."g5.48xlarge"]\ngpus = 8\nefa_interfaces = 1\n')

    assert load(path).expected_of(instance_type) == Expected(gpus=1)


def test_of_a_pool_without_types_nothing_is_expected(tmp_path):
    path = tmp_path / "instance.toml"
    path.write_text(INSTANCE_TOML.partition("[expected")[0])

    assert load(path).expected_of("g5.xlarge") == Expected()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version = 2; allowed: 1"),
        ('pool = "dev"', 'pol = "dev"', "pool = None; allowed: a text (nearest: pol)"),
        ('cloud = "aws"', 'cloud = "awz"', "cloud = 'awz'; allowed: aws, alicloud (nearest: aws)"),
        ("gpus = 1", 'gpus = "1"', "expected.g5.xlarge.gpus = '1'; allowed: a whole number"),
        (
            "efa_interfaces = 0",
            'efa_interfaces = "0"',
            "expected.g5.xlarge.efa_interfaces = '0'; allowed: a number",
        ),
        (
            "gpu_memory_gib = 24",
            "gpu_memory_gib = nan",
            "expected.g5.xlarge.gpu_memory_gib = nan; allowed: a",
        ),
    ],
)
def test_a_wrong_key_is_named_with_its_value_and_what_is_allowed(refused, old, new, said):
    assert said in refused(old, new)


def test_every_problem_is_reported_at_once(refused):
    assert len(refused('cloud = "aws"\nregion = "us-east-1"', 'cloud = "x"').splitlines()) == 2


def test_what_is_not_toml_is_refused(refused):
    assert "not TOML" in refused("schema_version = 1", "schema_version 1")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InstanceFileError, match=r"gone\.toml: No such file"):
        load(tmp_path / "gone.toml")

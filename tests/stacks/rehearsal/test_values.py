"""Values between Pulumi's wire format, boto3 and Python."""

from hypothesis import given
from hypothesis import strategies as st
from pulumi.runtime import rpc

from gpu_fleet_stacks.rehearsal import values

PLAIN = st.recursive(
    st.text() | st.booleans() | st.integers(-(2**40), 2**40),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def on_the_wire(value):
    """The same value as the wire has it: every number a float."""
    if isinstance(value, dict):
        return {key: on_the_wire(item) for key, item in value.items()}
    if isinstance(value, list):
        return [on_the_wire(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(PLAIN)
def test_plain_values_survive_the_wire(value):
    assert values.plain(on_the_wire(value)) == value


@given(PLAIN)
def test_secrets_are_unwrapped_wherever_they_stand(value):
    wrapped = {"deep": [{"secret": rpc.wrap_rpc_secret(value)}]}

    assert values.plain(wrapped) == {"deep": [{"secret": value}]}


def test_secret_keys_are_those_of_the_top_and_a_fraction_stays_a_fraction():
    assert values.secret_keys({"a": rpc.wrap_rpc_secret("x"), "b": "y"}) == {"a"}
    assert values.plain({"threshold": 0.5}) == {"threshold": 0.5}


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_without_a_physical_one_follow_from_the_logical_name(first, second):
    same = values.physical_name(first, {}) == values.physical_name(second, {})

    assert same == (first == second)
    assert values.physical_name("it", {"name": "mine"}) == "mine"
    assert values.physical_name("it", {"namePrefix": "mine-"}).startswith("mine-")


def test_inputs_that_are_there_are_picked_and_first_letters_become_capital_all_the_way_down():
    assert values.picked({"minSize": 0}, {"MinSize": "minSize", "MaxSize": "maxSize"}) == {"MinSize": 0}
    assert values.pascal({"ebs": [{"volumeSize": 1}]}) == {"Ebs": [{"VolumeSize": 1}]}

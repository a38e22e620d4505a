"""The engine's rules of deletion, on graphs small enough to see."""

from dataclasses import replace

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_stacks.rehearsal.aws_resources import CREATORS
from tests.stacks.rehearsal.deletions import DELETERS
from tests.stacks.rehearsal.destroy import closure, destroy, layers, needs
from tests.stacks.rehearsal.examples import registered

TYPE = "aws:sns/topic:Topic"


def resource(name, *dependencies, **options):
    return replace(registered(TYPE, name, parent=""), urn=name, dependencies=dependencies, **options)


class Provider:
    """Notes what it is asked to delete, and refuses some."""

    def __init__(self, *refused):
        self.asked = []
        self._refused = refused

    def __call__(self, _, resource):
        if resource.urn in self._refused:
            raise ClientError({"Error": {"Code": "InUse"}}, "Delete")
        self.asked.append(resource.urn)


def destroyed(state, *refused, **options):
    return destroy(state, None, {TYPE: Provider(*refused)}, **options)


def test_a_resource_is_deleted_before_those_it_depends_on_and_a_failure_keeps_these():
    state = [resource("key"), resource("bucket", "key"), resource("policy", "bucket")]

    failing = destroyed(state, "bucket")

    assert destroyed(state).asked == ("policy", "bucket", "key")
    assert failing.failed == {"bucket": "Delete: InUse"}
    assert [resource.urn for resource in failing.left] == ["key", "bucket"]


def test_layers_count_from_the_roots_so_an_unrelated_deep_resource_is_deleted_early():
    """Why a key that waits for its role went before buckets that named no key."""
    state = [resource("role"), resource("key", "role"), resource("bucket")]

    assert [[resource.urn for resource in layer] for layer in layers(state)] == [["key"], ["role", "bucket"]]


def test_what_is_protected_is_refused_before_anything_is_deleted_and_what_is_retained_leaves_the_state():
    refused = destroyed([resource("kept", protected=True), resource("other")])
    retained = destroyed([resource("key", retained=True)])

    assert (refused.asked, refused.refused, len(refused.left)) == ((), ("kept",), 2)
    assert (retained.asked, retained.left) == ((), ())


def test_what_is_deleted_with_another_is_left_to_it_unless_that_one_is_kept():
    """``--exclude`` of a bucket alone would strip it."""
    state = [resource("bucket"), resource("policy", "bucket", deleted_with="bucket")]

    assert destroyed(state).asked == ("bucket",)
    assert destroyed(state, exclude=["bucket"]).asked == ("policy",)


def test_excluding_keeps_what_the_excluded_depends_on():
    state = [resource("key"), resource("bucket", "key"), resource("group", "key")]

    assert destroyed(state, exclude=["bucket"]).asked == ("group",)


def test_resources_in_a_circle_are_named():
    with pytest.raises(ValueError, match="depend on each other"):
        layers([resource("a", "b"), resource("b", "a")])


@st.composite
def graphs(draw):
    names = [f"r{index}" for index in range(draw(st.integers(1, 12)))]
    return [
        resource(name, *draw(st.lists(st.sampled_from(names[:index]), unique=True)) if index else ())
        for index, name in enumerate(names)
    ]


@given(graphs(), st.data())
def test_nothing_left_ever_misses_what_it_depends_on(state, data):
    refused = data.draw(st.lists(st.sampled_from([resource.urn for resource in state]), unique=True))
    excluded = data.draw(st.lists(st.sampled_from([resource.urn for resource in state]), unique=True))

    done = destroyed(state, *refused, exclude=excluded)

    left = {resource.urn for resource in done.left}
    assert all(needs(resource) <= left for resource in done.left)
    assert closure(state, excluded) <= left


def test_every_type_that_stands_in_moto_can_be_deleted_there():
    assert CREATORS.keys() - DELETERS.keys() == set()

"""Two stacks of one account never share a physical name: the names differ, or the pair is refused."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Network

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_stacks.core import naming
from gpu_fleet_stacks.core.errors import SettingsError
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Grouping, Stack, stack_files
from gpu_fleet_stacks.settings.neighbours import clashes, free_network, group_labels, one_group_each
from tests.stacks import alicloud_examples, examples
from tests.stacks.registrations import declared
from tests.stacks.shipped import SHIPPED

# Inputs that fix what a resource is called; everything else gets a random ending from Pulumi, or an id.
NAMES = {
    *("name", "bucket", "dashboardName", "customSuffix", "functionName", "triggerName", "projectName"),
    *("scalingGroupName", "scalingRuleName", "launchTemplateName", "alarmContactGroupName", "aliasName"),
    "accessGroupName",
}
STACK, SINGLE, SPREAD = "stackname", "singlepool", "spreadpool"
POOLS = {"name": SINGLE, "purpose": "serving"}, {"name": SPREAD, "groups": "per_zone", "purpose": "serving"}


def aws_stack() -> Stack:
    return examples.stack(STACK, pools=[examples.pool(**pool) for pool in POOLS], storage={"home": True})


def alicloud_stack() -> Stack:
    pools = [alicloud_examples.pool(**pool) for pool in POOLS]
    return alicloud_examples.stack(STACK, pools=pools)


@pytest.fixture(scope="module", params=[aws_stack, alicloud_stack])
def registered(request) -> tuple[Stack, Rehearsed]:
    """Return a stack with a pool in one group and one with a group for each zone, and its registrations."""
    settings = request.param()
    return settings, declared(settings)


def fixed_names(found: Rehearsed) -> set[tuple[str, str]]:
    """Return type and name of every resource with a fixed name."""
    return {
        (resource.type, value)
        for resource in found.resources
        for key, value in resource.inputs.items()
        if key in NAMES and isinstance(value, str) and STACK in value
    }


def templates(settings: Stack, found: Rehearsed) -> dict[str, set[str]]:
    """Return type -> names, with placeholders for the stack and a pool's group."""
    labels = [label for pool in settings.pools for label in group_labels(settings, pool)]
    made = defaultdict(set)
    for kind, name in fixed_names(found):
        for label in sorted(labels, key=len, reverse=True):
            name = name.replace(label, "{label}")  # noqa: PLW2901 - the same name, further open
        made[kind].add(name.replace(STACK, "{stack}"))
    return made


def test_the_labels_are_those_of_the_registered_groups(registered):
    settings, found = registered
    labels = [label for pool in settings.pools for label in group_labels(settings, pool)]
    wanted = {naming.prefixed(STACK, label) for label in labels}

    groups = {
        resource.inputs.get("name") or resource.inputs.get("scalingGroupName")
        for kind in ("aws:autoscaling/group:Group", "alicloud:ess/scalingGroup:ScalingGroup")
        for resource in found.of_type(kind)
    }
    alarms = {name for kind, name in fixed_names(found) if kind.endswith("Alarm")}

    # on AWS a group's own name gets a random ending
    assert groups <= {*wanted, None}
    assert all(any(name.startswith(f"{label}-") for name in alarms) for label in wanted)


WORDS = st.sampled_from(["aws", "dev", "us", "east", "one", "cpu", "high", "home", "reaper"])
PARTS = st.lists(WORDS, min_size=2, max_size=6).map(lambda words: ["gpu", *words])


@st.composite
def pairs_of(draw: st.DrawFn, like: Stack) -> tuple[Stack, Stack]:
    """Draw two stacks with a pool each, often with the same words, split at different places."""
    words = draw(PARTS)
    first, second = (draw(st.integers(1, len(words) - 1)) for _ in "12")
    others = words if draw(st.booleans()) else draw(PARTS)
    cut = min(second, len(others) - 1)
    return made_of(draw, like, words, first), made_of(draw, like, others, cut)


def made_of(draw: st.DrawFn, like: Stack, words: list[str], cut: int) -> Stack:
    groups = draw(st.sampled_from(Grouping))
    pool = replace(like.pools[0], name="-".join(words[cut:]), groups=groups)
    return replace(like, name="-".join(words[:cut]), pools=(pool,))


@st.composite
def stacks_of(draw: st.DrawFn, like: Stack) -> Stack:
    """Draw a stack with two pools; one often has the name of a group of the other."""
    name, zone = "-".join(draw(PARTS)), draw(st.sampled_from(like.network.zones))
    names = (name, draw(st.sampled_from([f"{name}-{zone}", f"{name}-cpu-high"])))
    groups = st.sampled_from(Grouping)
    pools = (replace(like.pools[0], name=each_name, groups=draw(groups)) for each_name in names)
    return replace(like, pools=tuple(pools))


def names_of(stack: Stack, made: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    for kind, patterns in made.items():
        for pattern in patterns:
            labels = [label for pool in stack.pools for label in group_labels(stack, pool)]
            for label in labels if "{label}" in pattern else [""]:
                yield kind, pattern.format(stack=stack.name, label=label)


@given(st.data())
def test_two_stacks_that_are_accepted_share_no_physical_name(registered, data):
    settings, found = registered
    made = templates(settings, found)
    left, right = data.draw(pairs_of(settings))
    refused = left.name == right.name or list(clashes(left, [right]))

    assert refused or not set(names_of(left, made)) & set(names_of(right, made))


@given(st.data())
def test_two_pools_that_are_accepted_share_no_physical_name(registered, data):
    settings, found = registered
    made = templates(settings, found)
    stack = data.draw(stacks_of(settings))

    for pool in stack.pools:
        alone = replace(stack, pools=(pool,))
        others = replace(stack, pools=tuple(other for other in stack.pools if other != pool))
        of_pools = {kind: {each for each in names if "{label}" in each} for kind, names in made.items()}
        shared = set(names_of(alone, of_pools)) & set(names_of(others, of_pools))
        assert not shared or list(one_group_each(stack))


AWS = examples.stack("aws", pools=[examples.pool(name="dev-dev")])
AWS_DEV = examples.stack("aws-dev", pools=[examples.pool(name="dev")])


def test_the_stacks_of_the_issue_are_refused():
    (problem,) = clashes(AWS, [AWS_DEV])

    assert str(problem) == (
        "pools = 'dev-dev': pool 'dev' of stack 'aws-dev' would be named gpu-fleet-aws-dev-dev as well; "
        "rename the one that is not deployed yet"
    )


def test_a_neighbour_that_shares_nothing_is_left_alone():
    others = [
        replace(AWS_DEV, account_id="210987654321"),
        replace(AWS_DEV, region="eu-west-1"),
        replace(AWS_DEV, pools=(replace(AWS_DEV.pools[0], name="train"),)),
        AWS,
    ]

    assert [clash for other in others for clash in clashes(AWS, [other])] == []


def test_a_pool_named_like_another_pools_group_in_a_zone_is_refused():
    spread = examples.pool(name="dev", groups="per_zone")
    single = examples.pool(name="dev-us-east-1a")

    said = examples.refusal(examples.stack_file(pools=[spread, single]))

    assert "pools = 'dev-us-east-1a': pool dev has a group of the name dev-us-east-1a, too" in said
    assert "has 1 problem:" in said


def test_the_groups_of_an_on_demand_fallback_are_named_like_another_stacks_pool():
    fallback = examples.pool(name="dev", market="spot", on_demand_fallback=True)
    prod = examples.stack("prod", pools=[fallback])
    beside = examples.stack("prod-dev", pools=[examples.pool(name="on-demand")])

    assert [problem.value for problem in clashes(beside, [prod])] == ["on-demand"]
    assert [problem.value for problem in clashes(prod, [beside])] == ["dev"]


def test_the_files_beside_a_stack_are_read(tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_FLEET_DIR", str(tmp_path))
    for name, pool in (("aws", "dev-dev"), ("aws-dev", "dev")):
        content = examples.stack_file(pools=[examples.pool(name=pool)])
        text = yaml.safe_dump({"config": {f"gpu-fleet:{key}": value for key, value in content.items()}})
        (tmp_path / f"Pulumi.{name}.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "Pulumi.broken.yaml").write_text("config: [", encoding="utf-8")

    with pytest.raises(SettingsError, match="pool 'dev-dev' of stack 'aws' would be named"):
        stack_files.alone_of("aws-dev")


NETWORKS = st.builds(
    lambda number, prefix: IPv4Network((10 << 24 | number << 16, prefix), strict=False),
    st.integers(0, 255),
    st.integers(12, 23),
)


def test_behind_the_last_network_the_proposals_begin_again():
    taken = [IPv4Network(f"10.{number}.0.0/16") for number in (*range(3), *range(20, 256))]

    assert free_network(taken) == IPv4Network("10.3.0.0/16")


@given(st.lists(NETWORKS, max_size=12))
def test_a_proposed_network_overlaps_none_that_is_taken(taken):
    assert not any(free_network(taken).overlaps(network) for network in taken)


def test_no_shipped_stack_shares_a_name_with_another():
    assert [name for name in SHIPPED if stack_files.alone_of(name).name != name] == []

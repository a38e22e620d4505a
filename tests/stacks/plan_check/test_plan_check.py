"""No edit of a stack file loses data: what the plan check lets pass, what it refuses, and in whose words."""

import json
import re
import sys
from contextlib import suppress
from dataclasses import is_dataclass, replace
from functools import cache
from itertools import combinations
from types import SimpleNamespace
from typing import get_type_hints
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpu_fleet_stacks.core.errors import SettingsError
from gpu_fleet_stacks.plan_check.deploy import Deployment, up
from gpu_fleet_stacks.plan_check.errors import PlanError, ReplacementError
from gpu_fleet_stacks.plan_check.losses import hold, losses
from gpu_fleet_stacks.plan_check.plan import parse
from gpu_fleet_stacks.plan_check.types_with_data import FOLLOWS, HOLDINGS
from gpu_fleet_stacks.rehearsal import monitor, program
from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.program import run_program
from gpu_fleet_stacks.settings import Pool, Stack
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.ran import executable
from tests.stacks import plans
from tests.stacks.alicloud_examples import assumptions
from tests.stacks.alicloud_examples import stack_file as alicloud_file
from tests.stacks.edits import BOTH, EXISTING, EXISTING_VSWITCHES, Edit, applied, base, edits
from tests.stacks.examples import stack_file as aws_file
from tests.stacks.existing import alicloud_answering, answering
from tests.stacks.replacement_table import FILES, PUBLISHED, input_names, published

FILE = {"aws": aws_file, "alicloud": alicloud_file}
# What holds data is declared by both programs; on AWS nothing of it need stand in moto for a plan.
CLOUDS = pytest.mark.parametrize("cloud", BOTH)


EDITED_VPC = {"aws": (EXISTING, answering), "alicloud": (EXISTING_VSWITCHES, alicloud_answering)}


def file_of(cloud, *chosen):
    """Return a valid file, with assumed prices on Alibaba Cloud where no list has one."""
    trains = Edit("pools[].purpose", "training")  # or nothing could freeze
    content = applied(FILE[cloud](**base(cloud)), (trains, *chosen))
    if cloud == "alicloud":
        content["budget"] = content["budget"] | {"assume": assumptions(content)}
    return content


@cache
def registered(text):
    stack = from_mapping("test", json.loads(text))
    build = __import__(f"gpu_fleet_stacks.{stack.cloud}.stack", fromlist=["build"]).build
    vpc, lookups = EDITED_VPC[stack.cloud]
    found = lookups(vpc["vpc_id"], vpc["subnets"])
    with patch.object(program, "CREATORS", {}), patch.object(monitor, "answer", found):
        return run_program("test", program=lambda: build(stack), config={}, clients=clients_of_nobody())


@cache
def clients_of_nobody():
    """Return clients that make no call, since nothing is created; they are made once."""
    return RegionClients("us-east-1")


def plan_of(before, after):
    """Return Pulumi's plan between two files."""
    return plans.digest(registered(json.dumps(before)), registered(json.dumps(after)))


def steps_between(cloud, *chosen):
    return parse(plan_of(file_of(cloud), file_of(cloud, *chosen)))


def refusal_of(steps):
    with pytest.raises(ReplacementError) as caught:
        hold(steps)
    return str(caught.value)


def edit_of(cloud, key, number=0):
    return [edit for edit in edits(cloud) if edit.key == key][number]


def pairs(cloud):
    """Return every pair of edits without a common key."""
    return [each for each in combinations(edits(cloud), 2) if parts(each[0]).isdisjoint(parts(each[1]))]


def parts(edit):
    """Return each key of an edit by its full path."""
    section, dot, joined = edit.key.partition(".")
    return {f"{section}.{key}" for key in joined.split("+")} if dot else {*section.split("+")}


def is_sound(cloud, chosen):
    """Return whether the settings accept these edits together."""
    try:
        from_mapping("test", file_of(cloud, *chosen))
    except SettingsError:
        return False
    return True


def is_refused(steps):
    with suppress(ReplacementError):
        hold(steps)
        return False
    return True


def lost_as_expected(cloud, chosen):
    """Check that harmless edits lose nothing together, and that a losing edit is refused beside any other."""
    steps = steps_between(cloud, *chosen)
    lost = losses(steps)
    if not any(cloud in edit.loses for edit in chosen):
        return lost == ()
    return is_refused(steps) and bool(lost)


TOGETHER = 12  # few enough that none hides what another does


def harmless_groups(cloud):
    """Return groups of edits that look harmless; a program runs for each group, not for each edit."""
    groups = []
    for edit in (edit for edit in edits(cloud) if cloud not in edit.loses):
        group = next((group for group in groups if fits(cloud, edit, group)), None)
        if group is None:
            groups.append([edit])
        else:
            group.append(edit)
    return groups


def fits(cloud, edit, group):
    """Return whether an edit is independent of a group; an edit of `pools` changes the first pool."""
    keys = {key for item in group for key in parts(item)}
    lists = "pools" in keys | parts(edit) and any(key.startswith("pools") for key in keys)
    room = len(group) < TOGETHER and not keys & parts(edit) and not lists
    return room and is_sound(cloud, (*group, edit))


@CLOUDS
def test_an_edit_of_one_key_is_refused_where_it_loses_data(cloud):
    losing = [edit for edit in edits(cloud) if cloud in edit.loses]

    assert losing
    assert [edit for edit in losing if not is_refused(steps_between(cloud, edit))] == []


@CLOUDS
def test_edits_that_look_harmless_pass(cloud):
    """They are tested in a few groups; `make prove` tests each alone."""
    for group in harmless_groups(cloud):
        steps = steps_between(cloud, *group)

        assert losses(steps) == ()
        hold(steps)


@CLOUDS
@given(data=st.data())
@settings(max_examples=1, deadline=None)
def test_edits_together_lose_what_one_of_them_loses_and_no_more(cloud, data):
    """One of the pairs; `make prove` tries each (``tests/bench/bench_plan_check.py``)."""
    chosen = data.draw(st.sampled_from(pairs(cloud)))
    assume(is_sound(cloud, chosen))

    assert lost_as_expected(cloud, chosen)


@CLOUDS
def test_a_first_deployment_loses_nothing(cloud):
    hold(parse(plans.digest(None, registered(json.dumps(file_of(cloud))))))


def leaf_keys():
    """Return every key of a stack file, except those below size, idle and the like of a pool."""
    for name, kind in get_type_hints(Stack).items():
        if name == "pools":
            yield from (f"pools[].{key}" for key in get_type_hints(Pool))
        elif is_dataclass(kind):
            yield from (f"{name}.{key}" for key in get_type_hints(kind))
        else:
            yield name


# Another name, cloud or region is another stack, and so is the emulator. The version, prices that are
# assumed, their currency, and whether more may be planned than is budgeted declare nothing. Images are made
# beside all data.
NOT_EDITED = {
    *("name", "cloud", "region", "endpoint_url", "version"),
    *("budget.assume", "budget.currency", "budget.allow_overcommit"),
    *("image.bundled", "image.base_id", "image.payload", "image.canary", "image.scan", "image.disk"),
}


def test_every_key_of_a_stack_file_has_an_edit_here():
    """A new key of the settings needs a decision whether its change loses data."""
    edited = {key for cloud in BOTH for edit in edits(cloud) for key in parts(edit)}

    assert sorted(set(leaf_keys()) - edited - NOT_EDITED) == []


@CLOUDS
def test_every_edit_changes_what_the_settings_say(cloud):
    """An edit that the reader takes as no change proves nothing."""
    before = from_mapping("test", file_of(cloud))

    assert [edit for edit in edits(cloud) if from_mapping("test", file_of(cloud, edit)) == before] == []


@CLOUDS
def test_everything_that_holds_data_is_in_both_tables_and_registered_by_the_program(cloud):
    found = {resource.type for resource in registered(json.dumps(file_of(cloud))).resources}
    held = {token for token in HOLDINGS if token.startswith(f"{cloud}:")}

    assert held <= plans.TABLE.keys()
    assert held <= FILES.keys()
    assert held <= found


@CLOUDS
def test_whatever_may_replace_what_holds_data_is_in_the_table_too(cloud):
    """A replaced security group also replaces the file system that names it."""
    found = registered(json.dumps(file_of(cloud))).resources
    followed = {kind for kinds in FOLLOWS.values() for kind in kinds}
    for held in (resource for resource in found if resource.type in HOLDINGS):
        for key in set(plans.TABLE[held.type]["forces"]) & held.inputs.keys():
            values = held.inputs[key] if isinstance(held.inputs[key], list) else [held.inputs[key]]
            for value in filter(None, values):
                # what is only recorded may share its made-up id with a neighbour of the same name
                leaders = {other.type for other in found if value in (other.id, other.outputs.get("arn"))}
                known = followed & plans.TABLE.keys() | {held.type}
                assert not leaders or leaders & known, (held.type, key, leaders)


def test_the_table_has_what_aws_publishes_as_unchangeable():
    """A newer cfn-lint may differ: `python -m tests.stacks.replacement_table` renews it."""
    assert {token for token in HOLDINGS if token.startswith("aws:")} <= PUBLISHED.keys()
    known = {token: plans.TABLE[token]["published"] for token in PUBLISHED}
    assert known == {token: published(token) for token in PUBLISHED}


def test_what_forces_a_replacement_is_an_input_of_the_installed_sdk():
    gone = {token: set(row["forces"]) - input_names(token) for token, row in plans.TABLE.items()}

    assert {token: names for token, names in gone.items() if names} == {}


def test_a_replaced_security_group_is_reported_with_the_file_system_that_it_takes():
    before, group = registered(json.dumps(file_of("aws"))), "aws:ec2/securityGroup:SecurityGroup"
    other = {"description": "another"}
    after = tuple(
        replace(made, inputs=made.inputs | other) if made.type == group else made for made in before.resources
    )

    said = refusal_of(parse(plans.digest(before, SimpleNamespace(resources=after))))

    lustre = "aws:fsx/lustreFileSystem:LustreFileSystem) would be replaced, and all of the shared scratch"
    assert lustre in said
    assert "securityGroupIds follows gpu-fleet-test-" in said
    assert "-> 'another')" in said


# what it says


def test_a_refusal_names_the_setting_what_is_lost_and_the_way_through():
    said = refusal_of(steps_between("alicloud", edit_of("alicloud", "storage.kms_instance_id")))
    left_out = refusal_of(steps_between("aws", edit_of("aws", "storage.home")))

    for words in (
        "refused, and nothing was touched: this change would lose data",
        "gpu-fleet-test-key (alicloud:kms/key:Key) would be replaced, and whatever it encrypts lost",
        "from storage.kms_instance_id",
        "kmsKeyId follows gpu-fleet-test-key",
        "--replace gpu-fleet-test-key",
    ):
        assert words in said
    assert re.search(r"gpu-fleet-test-home.*left out by storage.home", left_out)


@CLOUDS
def test_moved_subnets_are_refused_with_the_slots_that_keep_them(cloud):
    """A stack that was deployed without slots gets them from its own subnets."""
    network = base(cloud)["network"]
    bare = {**network, "slots": None}
    before = file_of(cloud) | {"network": bare}
    after = before | {"network": {**bare, "zones": [*reversed(bare["zones"])]}}

    moved = refusal_of(steps_between(cloud, edit_of(cloud, "network.slots")))
    reordered = refusal_of(parse(plan_of(before, after)))

    for said, (first, second) in ((moved, network["slots"]), (reordered, network["zones"])):
        assert f"network.slots: {{{first}: 0, {second}: 1}}" in said


def test_only_what_a_user_names_may_go():
    steps = steps_between("alicloud", edit_of("alicloud", "storage.kms_instance_id"))
    names = {loss.step.name for loss in losses(steps)}

    hold(steps, names)
    with pytest.raises(ReplacementError, match="gpu-fleet-test-home"):
        hold(steps, names - {"gpu-fleet-test-home"})
    with pytest.raises(ReplacementError, match="--replace gpu-fleet-test-typo: the plan would lose"):
        hold(steps, [*names, "gpu-fleet-test-typo"])


def test_a_replacement_that_only_the_detailed_difference_shows_is_seen():
    replaced = {"kind": "update-replace", "inputDiff": True}
    step = {
        "op": "replace",
        "urn": "urn:pulumi:t::gpu-fleet::gpu-fleet:aws:Keys$aws:kms/key:Key::gpu-fleet-t-key",
        "oldState": {"inputs": {"multiRegion": False}},
        "newState": {"inputs": {"multiRegion": True}},
        "detailedDiff": {"multiRegion": replaced, "tags.x": {"kind": "add"}},
    }

    (found,) = parse(json.dumps({"steps": [step]}))

    assert (found.type, found.name, found.causes) == ("aws:kms/key:Key", "gpu-fleet-t-key", ("multiRegion",))


def test_what_is_no_plan_is_refused():
    for text in ("", "[1]", '{"steps": [{"op": "same"}]}', '{"steps": [{"op": "x", "urn": "y"}]}'):
        with pytest.raises(PlanError, match="printed no plan that can be read"):
            parse(text)


# at the CLI

CLI = """
import json, os, sys
log = os.environ["LOG"]
words = sys.argv[1:]
with open(log, "a") as file:
    file.write(json.dumps([words, json.loads(os.environ.get("GPU_FLEET_FIRST_PASS") or "{}")]) + "\\n")
if words[0] == "preview" and "--json" in words:
    print(open(os.environ["PLAN"]).read())
    sys.exit(int(os.environ.get("PLAN_FAILS", "0")))
if words[:2] == ["stack", "output"]:
    print(json.dumps("4711"))
if words[0] == "up":
    sys.exit(int(os.environ.get("UP_FAILS", "0")))
"""


@pytest.fixture
def at_cli(tmp_path):
    """Install a fake of the Pulumi CLI that prints a plan and records its arguments."""
    executable(tmp_path / "pulumi", f"#!{sys.executable}\n{CLI}")

    def deployment(cloud, plan, *arguments, **environ):
        (tmp_path / "plan.json").write_text(plan)
        paths = {"LOG": str(tmp_path / "log"), "PLAN": str(tmp_path / "plan.json")}
        stack = from_mapping("test", file_of(cloud))
        return Deployment(str(tmp_path / "pulumi"), stack, tmp_path, paths | environ, arguments)

    def asked():
        log = tmp_path / "log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    deployment.asked = asked
    return deployment


def test_the_plan_is_made_with_the_flags_of_the_change_and_without_those_of_its_output(at_cli):
    quiet = plan_of(file_of("aws"), file_of("aws"))

    up(at_cli("aws", quiet, "--yes", "--refresh", "--target=urn", "--diff", "-yr", "-f", "-ymyes"))

    (plan, _), (change, _) = at_cli.asked()
    assert plan == ["preview", "--stack", "test", "--json", "--refresh", "--target=urn", "-r", "-myes"]
    assert " ".join(change) == "up --stack test --yes --refresh --target=urn --diff -yr -f -ymyes"


def test_a_plan_that_fails_is_reported_in_pulumis_words_and_nothing_is_touched(at_cli):
    plan = json.dumps({"diagnostics": [{"severity": "error", "message": "no such zone"}]})

    with pytest.raises(PlanError, match="nothing was touched:\nno such zone"):
        up(at_cli("aws", plan, PLAN_FAILS="255"))

    assert [words[0] for words, _ in at_cli.asked()] == ["preview"]

"""The order and the refusals of `gpu-fleet destroy`, with a small fake of cloud and engine."""

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.providers.aws import session
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.teardown import engine, page, state
from gpu_fleet_stacks.teardown.errors import StillThereError, TeardownError
from gpu_fleet_stacks.teardown.holdings import DataStore, HeldInstance, Holdings, Remnant, hold_of
from gpu_fleet_stacks.teardown.plan import KINDS, Wishes, plan
from gpu_fleet_stacks.teardown.run import Teardown
from gpu_fleet_stacks.teardown.state import StateResource
from tests.ran import executable
from tests.stacks.examples import stack

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
STACK = stack()
KEY, ALIAS, VPC, GROUP = "urn::key", "urn::alias", "urn::vpc", "urn::group"
BUCKETS = {kind: f"urn::gpu-fleet-test-{kind}" for kind in ("data", "checkpoints", "records")}
POLICIES = {kind: f"urn::policy-{kind}" for kind in BUCKETS}
BUCKET_TYPE = "aws:s3/bucket:Bucket"


def resources() -> tuple[StateResource, ...]:
    """Return a small stack: key and alias, three buckets with a policy each, a network, a group."""
    group_needs = frozenset({VPC, *BUCKETS.values()})
    buckets = [StateResource(urn, BUCKET_TYPE, kind, needs=frozenset({KEY})) for kind, urn in BUCKETS.items()]
    policies = [
        StateResource(POLICIES[kind], "aws:s3/bucketPolicy:BucketPolicy", kind, needs=frozenset({urn}))
        for kind, urn in BUCKETS.items()
    ]
    return (
        StateResource(KEY, "aws:kms/key:Key", "key-1"),
        StateResource(ALIAS, "aws:kms/alias:Alias", "alias/it", needs=frozenset({KEY})),
        StateResource(VPC, "aws:ec2/vpc:Vpc", "vpc-1", needs=frozenset({KEY})),
        StateResource(GROUP, "aws:autoscaling/group:Group", "dev", needs=group_needs),
        *(each for pair in zip(buckets, policies, strict=True) for each in pair),
    )


@dataclass
class World:
    """Fake of cloud and engine, with a clock that a sleep advances.

    Attributes:
        state: resources of the engine.
        fleet: existing instances.
        objects: bucket -> number of versions.
        remnants: resources under the key that are in no state.
        drains: a drained group terminates its instances.
        fails: number of next destroys that fail.
        did: every action, in order.
    """

    state: tuple[StateResource, ...] = field(default_factory=resources)
    fleet: list[HeldInstance] = field(default_factory=list)
    objects: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BUCKETS, 2))
    remnants: tuple[Remnant, ...] = ()
    drains: bool = True
    fails: int = 0
    did: list[str] = field(default_factory=list)
    time: datetime = NOW

    def teardown(self, **wishes) -> Teardown:
        return Teardown(STACK, self, self, Wishes(**wishes), self.did.append, self.clock, self.sleep)

    def clock(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def resources(self) -> tuple[StateResource, ...]:
        return self.state

    def look(self, found, now) -> Holdings:
        stores = tuple(
            DataStore(
                resource.id,
                resource.urn,
                resource.id,
                "some",
                self.objects[resource.id] == 0,
                resource.protected,
            )
            for resource in state.of(found, {BUCKET_TYPE})
        )
        return Holdings(tuple(self.fleet), stores, self.remnants)

    def instances(self, found, now) -> tuple[HeldInstance, ...]:
        return tuple(self.fleet)

    def drain(self, group) -> None:
        self.did.append(f"drain {group.id}")
        if self.drains:
            self.fleet = [instance for instance in self.fleet if instance.group != group.id]

    def terminate(self, ids) -> None:
        self.did.append(f"terminate {' '.join(ids)}")
        self.fleet = [instance for instance in self.fleet if instance.id not in ids]

    def empty(self, bucket, note) -> None:
        assert GROUP not in {resource.urn for resource in self.state}, "somebody still writes"
        self.did.append(f"empty {bucket}")
        self.objects[bucket] = 0

    def schedule_key_deletion(self, key, days) -> None:
        assert not state.of(self.state, {BUCKET_TYPE}), "data would outlive its key"
        assert not self.remnants, "data would outlive its key"
        self.did.append(f"key in {days}")

    def destroy(self, exclude) -> None:
        """Destroy as the engine does: refuse protected resources, and fail at a bucket with objects."""
        self.did.append("destroy")
        if self.fails:
            self.fails -= 1
            raise TeardownError("`pulumi destroy` ended with exit code 255")
        kept = state.closure(self.state, exclude)
        going = [resource for resource in self.state if resource.urn not in kept]
        assert not [resource for resource in going if resource.protected]
        assert not [
            resource for resource in going if resource.type == BUCKET_TYPE and self.objects[resource.id]
        ]
        self.state = tuple(resource for resource in self.state if resource.urn in kept)

    def run(self, **wishes):
        teardown = self.teardown(**wishes)
        found, decided = teardown.look()
        assert decided.refusals == ()
        return teardown.run(found, decided)

    @property
    def left(self) -> set[str]:
        return {resource.urn for resource in self.state}


BUSY = HeldInstance("i-1", "g5.xlarge", "running", "dev", "dev")


def test_the_fleet_is_drained_then_its_data_emptied_and_then_the_key_deleted():
    world = World(fleet=[BUSY])

    world.run(delete_data=frozenset(KINDS))

    acts = [act for act in world.did if act.startswith(("drain", "destroy", "empty ", "key in"))]
    emptied = [f"empty {kind}" for kind in BUCKETS]
    assert acts == ["drain dev", "destroy", *emptied, "destroy", "key in 7", "destroy"]
    assert world.left == set()


def test_what_is_kept_keeps_its_settings_its_key_and_the_keys_alias():
    world = World()

    world.run(delete_data=frozenset({"data", "records"}))

    assert world.left == {KEY, ALIAS, BUCKETS["checkpoints"], POLICIES["checkpoints"]}


def test_a_snapshot_keeps_the_key_and_a_second_run_after_its_deletion_lets_it_go():
    world = World(remnants=(Remnant("snapshot", "snap-1"),))
    world.run(delete_data=frozenset(KINDS))
    assert world.left == {KEY, ALIAS}

    world.remnants = ()
    world.run()

    assert world.left == set()
    assert "key in 7" in world.did


def test_the_key_of_a_replica_is_left_to_the_engine_which_knows_its_region():
    world = World()
    world.state += (StateResource("urn::gpu-fleet-test-replica-key", "aws:kms/key:Key", "key-2"),)

    world.run(delete_data=frozenset(KINDS))

    assert [did for did in world.did if did.startswith("key in")] == ["key in 7"]


def test_instances_that_do_not_leave_end_the_wait_and_nothing_else_is_touched():
    world = World(fleet=[BUSY], drains=False)

    with pytest.raises(StillThereError, match=r"i-1 still there after 30 minutes.*destroy test` again"):
        world.run()

    assert "destroy" not in world.did
    assert world.time - NOW == timedelta(minutes=30)


def test_a_stack_with_nothing_but_what_it_keeps_asks_nothing_of_the_engine():
    """Pulumi would fail on protected resources."""
    world = World()
    world.run()
    world.did.clear()

    world.run()

    assert "destroy" not in world.did


@st.composite
def worlds(draw):
    """Draw any mix of protection, objects and remnants."""
    protected = draw(st.booleans())
    parts = tuple(
        replace(
            resource,
            protected=protected and resource.type not in ("aws:ec2/vpc:Vpc", "aws:autoscaling/group:Group"),
        )
        for resource in resources()
    )
    objects = {kind: draw(st.integers(0, 2)) for kind in BUCKETS}
    remnants = (Remnant("image", "ami-1"),) if draw(st.booleans()) else ()
    return World(parts, objects=objects, remnants=remnants)


@given(worlds(), st.frozensets(st.sampled_from(KINDS)) | st.just(frozenset(KINDS)), st.integers(0, 3))
def test_nothing_kept_is_ever_without_its_key(world, given_up, fails):
    """After any interruption the world refuses to delete a key before the resources that it encrypts."""
    world.fails = fails
    before = dict(world.objects)
    for _ in range(fails + 1):
        teardown = world.teardown(delete_data=given_up)
        found, decided = teardown.look()
        if decided.refusals:
            assert world.did == []
            return
        with suppress(TeardownError):
            teardown.run(found, decided)

    assert GROUP not in world.left
    for kind, urn in BUCKETS.items():
        if before[kind] and kind not in given_up:
            assert {urn, POLICIES[kind], KEY, ALIAS} <= world.left
            assert world.objects[kind] == before[kind]
    if world.remnants:
        assert KEY in world.left
    elif given_up == set(KINDS):
        assert world.left == set()


def test_a_hold_counts_unless_it_is_surely_over():
    table = {"2026-11-22T00:00:00+00:00": True, "2026-11-20T00:00:00": True, "soon": True}
    table["2026-11-20T00:00:00+00:00"] = False

    assert {text: bool(hold_of({"gpu-fleet:keep-until": text}, NOW)) for text in table} == table
    assert hold_of({"gpu-fleet:protected": ""}, NOW)
    assert not hold_of({}, NOW)


def test_a_running_instance_in_no_group_is_named_since_no_drain_reaches_it():
    loose = replace(BUSY, group="")

    decided = plan(STACK, resources(), Holdings((loose,)), Wishes(terminate_stopped=True))

    assert [reason.split(":")[0] for reason in decided.refusals] == ["i-1"]


def test_the_page_says_why_each_store_stays_and_how_to_go_on():
    text = "\n".join(page.afterwards(STACK, World().run()))

    assert "checkpoints: checkpoints, some (not named by --delete-data checkpoints)" in text
    assert "`gpu-fleet up test` manages it again" in text


def test_flags_that_would_undo_what_was_looked_at_are_refused_and_others_handed_on():
    refused = {
        "--target=urn": "destroyed whole",
        "-yt": "destroyed whole",
        "-xurn": "--delete-data",
        "--exclude-protected": "kept anyway",
        "--remove": "pulumi stack rm",
        "--ignore-protect": "gpu-fleet:protected",
        "--stack=other": "argument STACK",
    }
    for argument, instead in refused.items():
        with pytest.raises(StacksError, match=instead):
            engine.refuse([argument])
    for argument in ("--diff", "-y", "--parallel=4", "--refresh"):
        engine.refuse([argument])


def test_what_is_no_state_is_said_and_a_stack_that_was_never_up_has_no_resources():
    for text in ("", "[]", '{"deployment": {"resources": [{}]}}', "not json"):
        with pytest.raises(TeardownError, match="printed no state"):
            state.read(text)
    assert state.read('{"version": 3, "deployment": null}') == ()


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a function that runs `gpu-fleet destroy` with nobody's credentials and an empty PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    session._session.cache_clear()  # it has the keys of earlier tests
    return lambda *arguments: CliRunner().invoke(main, ["destroy", "aws-dev", *arguments])


def test_what_keeps_it_from_destroying_is_one_message(run, tmp_path, monkeypatch):
    without = run("--yes")
    unknown = run("--delete-data", "homes")
    monkeypatch.setattr("gpu_fleet_stacks.teardown.command.cloud_of", lambda _: World())
    no_cli = run("--yes")
    executable(
        tmp_path / "pulumi", "#!/bin/sh\necho \"error: no stack named 'aws-dev' found\" >&2\nexit 255\n"
    )
    unread = run("--yes")

    assert [done.exit_code for done in (without, unknown, no_cli, unread)] == [1, 2, 1, 1]
    assert "error: AWS cannot be asked what aws-dev holds: Unable to locate credentials" in without.output
    assert ", ".join(map(repr, (*KINDS, "all"))) in unknown.output
    assert "https://www.pulumi.com/docs/iac/download-install/" in no_cli.output
    assert "the state of aws-dev cannot be read: error: no stack named 'aws-dev' found" in unread.output

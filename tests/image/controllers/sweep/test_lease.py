"""The lease between sweeps, and the data of one sweep for the next in it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_fleet_image.controllers.sweep.lease import KEY, Lease, SweepMemory, remembered
from gpu_fleet_image.controllers.sweep.releases import AgentReleases
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.model import Decision, Verdict
from gpu_fleet_image.core.reaper_errors import LeaseError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time
from tests.image.situations import make_instance
from tests.image.world import World
from tests.image.world_clients import clients

OF_BEFORE = AgentReleases(newest="")  # of a lease that says nothing of them


@pytest.fixture
def world():
    return World()


@pytest.fixture
def store(world):
    return Store(clients(world).s3, Calls(world.clock), "s3://records/reaper")


def test_the_next_sweep_remembers_what_the_one_before_did(world, store):
    assert remembered(store) == SweepMemory()
    lease = Lease(store, "first", world.clock)
    lease.acquire()
    at = world.now.replace(microsecond=0)
    lease.memory.notified_at["i-1 KEEP_UNKNOWN"] = lease.memory.leftovers_at = at
    lease.memory.replaced["i-2"] = lease.memory.ended["i-2"] = ("dev", at)
    lease.memory.note_idle("dev", world.now, ["i-3", "i-4"])
    lease.release()

    following = Lease(store, "second", world.clock)
    following.acquire()

    assert following.memory == lease.memory == remembered(store)
    assert following.memory.usual(world.now).idle == {"dev": {f"{world.now:%Y-%m-%d}": 2}}


def test_a_sweep_that_died_holds_its_lease_for_as_long_as_a_function_may_run_and_no_longer(world, store):
    Lease(store, "first", world.clock).acquire()

    world.pass_minutes(14)
    with pytest.raises(LeaseError, match=r"another sweep \(first\) holds the lease until 2026-03-02"):
        Lease(store, "second", world.clock).acquire()
    world.pass_minutes(2)

    Lease(store, "second", world.clock).acquire()


@pytest.mark.parametrize(
    "memory",
    [
        *(None, "text", {"leftovers_at": 7}, {"confirmed_idle": [3]}, {"confirmed_idle": {"dev": 3}}),
        *({"told": ["i-1"]}, {"told": {"i-1": 5, "i-2": "yesterday"}}, {"stopped": ["i-1"]}),
        {"replaced": ["i-1"], "ended": {"i-1": "dev", "i-2": ["dev", "never"], "i-3": ["dev"]}},
        {"stopped": {"i-1": "ledger/key", "i-2": ["ledger/key", "never"], "i-3": ["ledger/key"]}},
    ],
)
def test_what_cannot_be_read_is_forgotten(store, memory):
    store.create(KEY, {"holder": None, "memory": memory})

    assert remembered(store) == SweepMemory(agents=OF_BEFORE)


def test_of_small_pools_together_the_day_with_most_idle_is_usual(world):
    memory = SweepMemory()
    for names in (["i-1"], ["i-1"], ["i-2", "i-1"]):  # one that is used again and idle again counts once
        memory.note_idle("dev", world.now, names)
    memory.note_idle("train", world.now, ["i-3"])
    memory.note_idle("train", world.now + timedelta(days=1), ["i-3", "i-4"])

    usual = memory.usual(world.now)
    assert usual.most(["dev", "train"]) == 3
    assert (usual.most(["dev"]), usual.most(["train"]), usual.most(["other"])) == (2, 2, 0)


def test_a_lease_of_before_is_read_and_what_blind_sensors_may_have_taught_is_forgotten(world, store):
    at = world.now.replace(microsecond=0)
    idle = {
        "dev": {"2026-02-28": 6, "2026-03-01": ["i-1", 7], "2026-03-02": ["i-1"]},
        "train": {"2026-03-02": 2},
    }
    memory = {"told": {"i-1": format_time(at)}, "ended": {"i-2": ["dev", format_time(at)]}}
    memory |= {"idle": {"dev": {"2026-03-01": ["i-1", "i-2"]}}, "confirmed_idle": idle}
    store.create(KEY, {"holder": None, "memory": memory})

    assert remembered(store) == SweepMemory(
        notified_at={"i-1": at},
        ended={"i-2": ("dev", at)},
        idle={"dev": {"2026-03-02": {"i-1"}}},
        agents=OF_BEFORE,
    )


@pytest.mark.parametrize(("idle_since_minutes", "count"), [(-60, 2), (0, 2), (30, 1), (None, 1)])
def test_withdrawn_marks_count_together_as_long_as_one_idle_time_lasts(world, idle_since_minutes, count):
    memory, later = SweepMemory(), world.now + timedelta(hours=1)
    idle = Decision(make_instance(), Verdict.UNMARK, "", idle_since=world.now - timedelta(hours=2))
    memory.note_withdrawn(idle, world.now)
    since = None if idle_since_minutes is None else world.now + timedelta(minutes=idle_since_minutes)

    memory.note_withdrawn(replace(idle, idle_since=since), later)

    assert memory.withdrawn["i-1"].count == count


def test_what_was_usual_is_forgotten_after_two_weeks(world):
    memory = SweepMemory()
    memory.note_idle("dev", world.now, ["i-1"])

    memory.forget(world.now + timedelta(days=14))
    assert memory.idle == {"dev": {f"{world.now:%Y-%m-%d}": {"i-1"}}}
    memory.forget(world.now + timedelta(days=15))
    assert memory.idle == {}


@pytest.mark.parametrize("expires", ["soon", None, 5])
def test_a_lease_with_an_unknown_end_holds(world, store, expires):
    store.create(KEY, {"holder": "another", "expires": expires})

    with pytest.raises(LeaseError, match=r"until nobody knows when; to free it delete .*lease\.json"):
        Lease(store, "this", world.clock).acquire()

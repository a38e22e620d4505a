"""Invariants of a whole sweep: notices, dry runs, no repetition, isolation, any order, records."""

import contextlib
import json
from decimal import Decimal
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.model import Verdict
from gpu_fleet_image.core.reaper_errors import CloudError
from tests.image.situations import make_instance
from tests.image.sweeping import policy, sweep_world
from tests.image.world import World

WORLD_POLICY = policy(idle_after_hours=1, grace_minutes=20, min_uptime_minutes=30)
READS = ("Describe", "Get")


def forgotten_world(count: int, grouped: int = 0, seed: int = 0) -> World:
    """Create instances whose owners left 80 minutes ago, some of them in a group."""
    world = World(seed)
    world.group("pool", 0)
    tags = make_instance(marked_minutes_ago=None).tags
    for number in range(count):
        _ = world.join("pool", tags) if number < grouped else world.start(tags)
    world.pass_minutes(5)
    for instance in world.instances.values():
        instance.busy = False
    world.pass_minutes(80)
    return world


def verdicts(result) -> list[tuple[str, Verdict]]:
    return [(decision.instance.id, decision.verdict) for decision in result.plan.decisions]


@given(count=st.integers(0, 6), grouped=st.integers(0, 6), marked=st.booleans())
def test_a_dry_run_makes_no_changing_call_and_plans_the_same(count, grouped, marked):
    world = forgotten_world(count, grouped)
    if marked:
        sweep_world(world, WORLD_POLICY, override_breaker=True)
        world.pass_minutes(21)
    world.calls.clear()

    dry = sweep_world(world, WORLD_POLICY, dry_run=True)

    assert [call for call in world.calls if not call.startswith(READS)] == []
    assert dry.write_calls == 0
    wet = sweep_world(world, WORLD_POLICY)
    assert verdicts(dry) == verdicts(wet)


@given(count=st.integers(1, 6), grouped=st.integers(0, 6))
def test_a_second_sweep_at_the_same_moment_does_nothing_more(count, grouped):
    world = forgotten_world(count, grouped)
    sweep_world(world, WORLD_POLICY, override_breaker=True)
    world.pass_minutes(21)
    sweep_world(world, WORLD_POLICY)
    before = (list(world.ends), len(world.messages))

    again = sweep_world(world, WORLD_POLICY)

    assert again.done.ended == []
    assert (world.ends, len(world.messages)) == before


@given(
    count=st.integers(1, 6),
    page=st.integers(1, 6),
    offset=st.integers(-12, 12),
    order=st.randoms(use_true_random=False),
)
def test_a_plan_does_not_depend_on_order_pages_or_time_zone(count, page, offset, order):
    plain, other = forgotten_world(count), forgotten_world(count)
    other.page = page
    shuffled = list(other.instances.items())
    order.shuffle(shuffled)
    other.instances = dict(shuffled)
    zone = ZoneInfo(f"Etc/GMT{offset:+d}")

    expected = sweep_world(plain, WORLD_POLICY, dry_run=True)
    other_clock = other.clock
    other.clock = lambda: other_clock().astimezone(zone)
    found = sweep_world(other, WORLD_POLICY, dry_run=True)

    assert verdicts(found) == verdicts(expected)


@given(count=st.integers(1, 6), throttled=st.sampled_from([0.0, 0.2]), seed=st.integers(0, 50))
def test_every_end_has_one_record_and_saves_something(count, throttled, seed):
    world = forgotten_world(count, seed=seed)
    sweep_world(world, WORLD_POLICY, override_breaker=True)
    world.pass_minutes(21)
    world.faults.throttled = throttled
    for _ in range(3):
        with contextlib.suppress(CloudError):  # throttled too much to list the fleet
            sweep_world(world, WORLD_POLICY)
        world.objects.pop("reaper/lease.json", None)

    found = [body for key, (body, _) in world.objects.items() if key.endswith("-terminate.json")]
    records = [json.loads(body) for body in found]
    recorded = sorted(record["instance_id"] for record in records)
    assert {end.id for _, end, _ in world.ends} <= set(recorded)
    assert len(recorded) == len(set(recorded))
    assert all(Decimal(record["saved_per_month"]) > 0 for record in records)

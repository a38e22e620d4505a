"""Invariants of a whole sweep: notices, dry runs, no repetition, isolation, any order, records."""

import contextlib
import json
from decimal import Decimal
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core.model import Verdict
from gpu_fleet_image.core.reaper_errors import CloudError
from tests.image.controllers.sweep.custodian_cases import POLICY, forgotten, marked
from tests.image.sweeping import sweep_world

READS = ("Describe", "Get")


def verdicts(result) -> list[tuple[str, Verdict]]:
    return [(decision.instance.id, decision.verdict) for decision in result.plan.decisions]


@given(count=st.integers(0, 6), grouped=st.integers(0, 6), due=st.booleans())
def test_a_dry_run_makes_no_changing_call_and_plans_the_same(count, grouped, due):
    world = (marked if due else forgotten)(count, grouped=grouped)
    world.calls.clear()

    dry = sweep_world(world, POLICY, dry_run=True)

    assert [call for call in world.calls if not call.startswith(READS)] == []
    assert dry.write_calls == 0
    wet = sweep_world(world, POLICY)
    assert verdicts(dry) == verdicts(wet)


@given(count=st.integers(1, 6), grouped=st.integers(0, 6))
def test_a_second_sweep_at_the_same_moment_does_nothing_more(count, grouped):
    world = marked(count, grouped=grouped)
    sweep_world(world, POLICY)
    before = (list(world.ends), len(world.messages))

    again = sweep_world(world, POLICY)

    assert again.done.ended == []
    assert (world.ends, len(world.messages)) == before


@given(
    count=st.integers(1, 6),
    page=st.integers(1, 6),
    offset=st.integers(-12, 12),
    order=st.randoms(use_true_random=False),
)
def test_a_plan_does_not_depend_on_order_pages_or_time_zone(count, page, offset, order):
    plain, other = forgotten(count), forgotten(count)
    other.page = page
    shuffled = list(other.instances.items())
    order.shuffle(shuffled)
    other.instances = dict(shuffled)
    zone = ZoneInfo(f"Etc/GMT{offset:+d}")

    expected = sweep_world(plain, POLICY, dry_run=True)
    other_clock = other.clock
    other.clock = lambda: other_clock().astimezone(zone)
    found = sweep_world(other, POLICY, dry_run=True)

    assert verdicts(found) == verdicts(expected)


@given(count=st.integers(1, 6), throttled=st.sampled_from([0.0, 0.2]), seed=st.integers(0, 50))
def test_every_end_has_one_record_and_saves_something(count, throttled, seed):
    world = marked(count, seed=seed)
    world.faults.throttled = throttled
    for _ in range(3):
        with contextlib.suppress(CloudError):  # throttled too much to list the fleet
            sweep_world(world, POLICY)
        world.objects.pop("reaper/lease.json", None)

    found = [body for key, (body, _) in world.objects.items() if key.endswith("-terminate.json")]
    records = [json.loads(body) for body in found]
    recorded = sorted(record["instance_id"] for record in records)
    assert {end.id for _, end, _ in world.ends} <= set(recorded)
    assert len(recorded) == len(set(recorded))
    assert all(Decimal(record["saved_per_month"]) > 0 for record in records)

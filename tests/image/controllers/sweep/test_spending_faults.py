"""With any fault, no money is lost or counted twice, and no limit falls below the running instances."""

import contextlib
import json
from datetime import timedelta
from decimal import Decimal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_fleet_image.controllers.sweep.handler import conclude
from gpu_fleet_image.controllers.sweep.sweep import SweepOptions, sweep
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.model import TAG_POOL
from tests.image.moto_fleet import TAGS, budget_json
from tests.image.sweeping import connect_world, policy
from tests.image.world import Faults, World

AN_HOUR = Decimal("1.026")
# A budget that half a day of a few instances spends: capped first, closed a little later.
POLICY = policy(top={"budget": budget_json(monthly="20", percents=[50, 100])}, idle_after_hours=2)

FAULTS = st.builds(
    Faults,
    throttled=st.sampled_from([0.0, 0.1, 0.4]),
    denied=st.sampled_from([0.0, 0.2]),
    after_commit=st.sampled_from([0.0, 0.3]),
    partial=st.just(0.0),
    duplicated=st.sampled_from([0.0, 0.5]),
    deaf=st.sampled_from([0.0, 0.5]),
)
EVENTS = st.sampled_from(["start", "leave", "end", "faults", "sweep", "sweep", "sweep", "gap"])


def swept(world):
    """Sweep, with all actions after it; ignore its error."""
    with contextlib.suppress(InstanceError):
        cloud = connect_world(world, POLICY)
        result = sweep(cloud, POLICY, SweepOptions(clock=world.clock, holder=f"at {world.now}"))
        conclude(cloud, POLICY, result)


def truth(world, until):
    """Return the true cost of the instances up to a moment."""
    ends = [(instance, min(until, instance.stopped_at or until)) for instance in world.instances.values()]
    seconds = sum(max(0.0, (end - each_end.launched_at).total_seconds()) for each_end, end in ends)
    return Decimal(seconds) * AN_HOUR / 3600


def running_in_group(world):
    return sum(world.instances[key].state == "running" for key in world.groups["pool"]["members"])


@given(st.integers(0, 2**16), st.lists(st.tuples(EVENTS, FAULTS, st.integers(0, 5)), min_size=5, max_size=25))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_meter_ends_where_the_truth_does_and_limits_hold_what_runs(seed, story):
    world = World(seed)
    world.group("pool", min_size=0, max_size=10, **{TAG_POOL: "dev"})
    world.join("pool", TAGS)
    for event, faults, number in story:
        alive = [instance for instance in world.instances.values() if instance.state == "running"]
        if event == "start" and world.groups["pool"]["desired"] < world.groups["pool"]["max"]:
            world.join("pool", TAGS)
        elif event == "leave" and alive:
            alive[number % len(alive)].busy = False
        elif event == "end" and alive:
            world.gone(alive[number % len(alive)], "terminated")
        elif event == "faults":
            world.faults = faults
        elif event == "gap":
            world.pass_minutes(40 * number)
        else:
            swept(world)
            world.pass_minutes(10)
        assert world.groups["pool"]["max"] >= running_in_group(world)
    world.faults = Faults()
    world.pass_minutes(20)  # a lease that was lost runs out
    swept(world)

    reading = json.loads(world.objects["reaper/meter.json"][0])
    metered = Decimal(reading["month"]["dev"])
    exact = truth(world, world.now - timedelta(seconds=1))
    assert abs(metered - exact) <= AN_HOUR * (len(world.instances) + 1) * 4 / 3600

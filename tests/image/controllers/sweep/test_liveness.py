"""After any killed sweeps and failed calls, each forgotten instance is ended in time."""

import contextlib
import random
from datetime import timedelta

import pytest

from gpu_fleet_image.core.errors import InstanceError
from tests.image.controllers.sweep.fault_state_machine import COVERED, EVERY_MINUTES, GRACE, POOL, TAGS
from tests.image.plays import CLOUDS
from tests.image.sweeping import policy, sweep_world
from tests.image.world import Faults, World

BADLY = 24  # sweeps while things go wrong
MOST_LOOKS = 60  # at its clock, before a sweep is killed; one that ends instances takes more
# At most an hour behind a door that nobody came through, then a mark, a grace, and a sweep for each step.
CALM = COVERED + timedelta(hours=1) + 2 * GRACE + timedelta(minutes=6 * EVERY_MINUTES)


class KilledError(BaseException):
    """End of the function in the middle."""


class KillingWorld(World):
    """A world whose sweeps are killed at any moment.

    Attributes:
        killed_after: number of further reads of its clock by a sweep; None for any number.
    """

    killed_after: int | None = None

    def clock(self):
        """Return the time of the sweep's clock, which it reads before and after each call."""
        if self.killed_after is not None:
            self.killed_after -= 1
            if self.killed_after < 0:
                raise KilledError
        return super().clock()


def sweep(world, checked):
    """Sweep once; the next sweep continues after a kill or a failure."""
    with contextlib.suppress(KilledError, InstanceError):
        sweep_world(world, checked)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.prove) for seed in (1, 2))])
@pytest.mark.parametrize("cloud", CLOUDS)
def test_each_forgotten_instance_is_terminated_in_time_once_sweeps_live_again(cloud, seed):
    world, chance = KillingWorld(seed), random.Random(seed)
    world.group("pool", min_size=0)
    checked = policy(top=CLOUDS[cloud], **POOL)
    forgotten = [world.join("pool", TAGS), world.join("pool", TAGS), world.start(TAGS), world.start(TAGS)]
    for instance in forgotten:
        instance.leave()
    world.pass_minutes(80)
    for _ in range(BADLY):
        world.faults = Faults(
            throttled=chance.choice([0.0, 0.1, 0.3]), after_commit=chance.choice([0.0, 0.3])
        )
        world.killed_after = chance.randrange(MOST_LOOKS)
        sweep(world, checked)
        world.killed_after = None
        world.pass_minutes(EVERY_MINUTES)

    world.faults, calm_at = Faults(), world.now
    while world.now < calm_at + CALM:
        sweep(world, checked)
        world.pass_minutes(EVERY_MINUTES)

    assert world.wrongs + world.floors() == []
    assert [item.id for item in forgotten if item.state == "running"] == []

"""The drain of an instance: stop, save, release, in this order; the test controls the time."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent.drain import Drain, Steps
from gpu_fleet_image.instance.agent.kept_files import Saved
from gpu_fleet_image.instance.agent.notices import Notice
from tests.image.samples import NOON

LEAVING = Notice("the scaling group terminates this instance")
SPOT = Notice("spot interruption of this instance: terminate", NOON + timedelta(minutes=2))


@dataclass
class World:
    """Record of a drain's actions in order; the test decides when the trainer ends and saving works."""

    trainer_ends_s: float = 0.0
    saving_takes_s: float = 0.0
    saving_fails: int = 0
    hook_fails: bool = False
    now: datetime = NOON
    events: list[str] = field(default_factory=list)

    def steps(self, hook=True):
        ends = NOON + timedelta(seconds=self.trainer_ends_s)
        return Steps(
            notify=lambda message: self.events.append(f"notify {message}"),
            trainers=lambda: ["torchrun (7, bob)"] if self.now < ends else [],
            save=self.save,
            hook=self if hook else None,
            now=lambda: self.now,
            wait=self.wait,
        )

    def wait(self, seconds):
        self.now += timedelta(seconds=seconds)

    def save(self, progress):
        for _ in range(int(self.saving_takes_s / 10)):
            self.wait(10)
            progress()
        if self.saving_fails:
            self.saving_fails -= 1
            self.events.append("save failed")
            raise CloudError("AccessDenied")
        self.events.append("save")
        return Saved(3, 2**20, 0)

    def heartbeat(self, action="heartbeat"):
        self.events.append(action)
        if self.hook_fails:
            raise CloudError("No active Lifecycle Action found")

    def complete(self):
        self.heartbeat("complete")

    def done(self):
        return [event.split()[0] if event.startswith("notify") else event for event in self.events]


@pytest.fixture
def stop_file(tmp_path):
    return tmp_path / "stop"


HALF_AN_HOUR = ["notify", *["heartbeat"] * 30, "save", "complete"]
# what the world does; what happens, within how many seconds, and what is logged
STORIES = {
    "nothing runs": ({}, ["notify", "save", "complete"], 0, ""),
    # each minute the hook is asked for time, while a trainer or the copy takes it
    "a trainer ends": ({"trainer_ends_s": 200}, ["notify", *["heartbeat"] * 3, "save", "complete"], 200, ""),
    "a long copy": ({"saving_takes_s": 1200}, ["notify", *["heartbeat"] * 20, "save", "complete"], 1200, ""),
    "a copy fails": ({"saving_fails": 2}, ["notify", *["save failed"] * 2, "save", "complete"], 200, ""),
    "a hook that fails stops nothing": (
        *({"trainer_ends_s": 70, "hook_fails": True}, ["notify", "heartbeat", "save", "complete"]),
        *(70, "event=hook-failed action=complete"),
    ),
    "a trainer that never stops is left after half an hour": (
        *({"trainer_ends_s": 10**6}, HALF_AN_HOUR),
        *(1859, "event=trainer-does-not-stop processes='torchrun (7, bob)'"),
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_trainer_ends_then_all_is_saved_then_the_instance_is_let_go(stop_file, story, caplog):
    of_world, happens, within_s, logged = STORIES[story]
    world = World(**of_world)

    assert Drain(LEAVING, world.steps(), stop_file).run()

    assert world.done() == happens
    assert world.now - NOON <= timedelta(seconds=within_s)
    assert logged in caplog.text


def test_a_stop_file_that_cannot_be_written_keeps_nothing_from_being_saved(tmp_path, caplog):
    world = World()

    assert Drain(LEAVING, world.steps(), tmp_path / "gone/stop").run()

    assert world.done() == ["notify", "save", "complete"]
    assert "event=no-stop-file" in caplog.text


def test_what_cannot_be_saved_is_reported_and_the_instance_is_not_let_go(stop_file):
    world = World(saving_fails=10**6)

    assert not Drain(LEAVING, world.steps(), stop_file).run()

    assert "complete" not in world.events
    assert world.events[-1] == "notify /scratch/keep could not be saved: AccessDenied"


def test_a_spot_notice_leaves_time_to_save_even_if_the_trainer_runs_on(stop_file):
    world = World(trainer_ends_s=10**6)

    assert Drain(SPOT, world.steps(hook=False), stop_file).run()

    assert world.done() == ["notify", "save"]
    assert world.now <= SPOT.ends_at - timedelta(seconds=40)


def test_the_spot_market_may_cut_short_what_the_group_began(stop_file):
    """A group replaces a spot instance at risk; the market may reclaim it while its trainer still saves."""
    world = World(trainer_ends_s=10**6)
    taken_at = NOON + timedelta(minutes=10)
    taken = Notice(SPOT.reason, taken_at + timedelta(minutes=2))

    assert Drain(LEAVING, world.steps(), stop_file).run(lambda: taken if world.now >= taken_at else LEAVING)

    assert "save" in world.events
    assert world.now <= taken.ends_at - timedelta(seconds=40)


def test_a_copy_that_fails_is_tried_until_the_spot_market_takes_the_instance_and_no_longer(stop_file):
    world = World(saving_fails=10**6)

    assert not Drain(LEAVING, world.steps(), stop_file).run(lambda: SPOT)

    assert SPOT.ends_at <= world.now < SPOT.ends_at + timedelta(minutes=1)


def test_no_word_of_the_spot_market_leaves_the_drain_as_it_is(stop_file):
    world = World(trainer_ends_s=200)

    def silent():
        raise CloudError("metadata service: timed out")

    assert Drain(LEAVING, world.steps(), stop_file).run(silent)
    assert world.now - NOON == timedelta(seconds=200)

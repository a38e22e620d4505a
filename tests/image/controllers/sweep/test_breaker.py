"""The mass-idle breaker over hours and days: blind sensors, a large job that ends, nights."""

from datetime import timedelta

import pytest

from gpu_fleet_image.controllers.sweep.releases import AgentReleases
from gpu_fleet_image.core.model import TAG_GIVE_BACK, Instance
from gpu_fleet_image.core.times import format_time
from tests.image.moto_fleet import TAGS
from tests.image.samples import NOON
from tests.image.sweeping import TERMS, policy, sweep_world
from tests.image.world import World

# As the stacks are shipped: a tenth of the fleet and five instances at most in one sweep.
TOP = {"max_actions": 5, "max_percent": 10}
POOL = TERMS | {"max_lifetime_hours": None}
POLICY = policy(top=TOP, **POOL)


def fleet(count, idle=0):
    """Create instances that are in use for an hour, some of which are left then."""
    world = World()
    made = [world.start(TAGS) for _ in range(count)]
    world.pass_minutes(60)
    for instance in made[:idle]:
        instance.leave()
    return world, made


def sweeps(world, hours, every_minutes=10, checked=POLICY, **options):
    """Sweep on schedule; return whether each found the breaker tripped."""
    tripped = []
    for _ in range(int(hours * 60 / every_minutes)):
        tripped.append(sweep_world(world, checked, **options).plan.breaker)
        world.pass_minutes(every_minutes)
    return tripped


def test_sensors_that_go_blind_so_slowly_that_none_waits_beside_another_cost_one_instance_a_day():
    world, made = fleet(20)

    for instance in made[:11]:
        instance.agent = "sightless"
        sweeps(world, 2)

    assert len(world.ends) <= 1


def test_a_pool_that_is_idle_every_night_is_known_once_an_operator_looked():
    world, made = fleet(10)

    def a_night(**options):
        for instance in made[:8]:
            instance.leave()
        tripped = sweeps(world, 2, every_minutes=30, **options)
        tripped += sweeps(world, 4, every_minutes=30)
        for instance in made[:8]:
            instance.busy = True
        world.pass_minutes(30)
        sweep_world(world, POLICY)
        world.pass_minutes(600)
        return any(tripped), len(world.ends)

    assert a_night() == (True, 0)
    assert a_night() == (True, 0)
    looked, ended_at_once = a_night(override_breaker=True)
    assert looked is False
    assert ended_at_once > 0


def test_an_operator_s_word_holds_until_those_that_it_is_about_are_terminated():
    world, _ = fleet(8, idle=8)
    sweeps(world, 1.5)

    sweep_world(world, POLICY, override_breaker=True)
    tripped = sweeps(world, 3)

    assert not any(tripped)
    assert len(world.ends) == 8


def test_many_that_were_given_back_lately_hold_up_no_other_instance():
    """A user's request is no sign of blind sensors."""
    world, made = fleet(11, idle=5)
    for instance in made[:5]:
        instance.tags[TAG_GIVE_BACK] = f"{format_time(world.now)} ada"
    world.pass_minutes(10)
    sweeps(world, 1)
    given_back = len(world.ends)
    made[5].leave()

    tripped = sweeps(world, 2)

    assert (given_back, len(world.ends)) == (5, 6)
    assert not any(tripped)


def test_it_alarms_in_the_very_sweep_in_which_it_trips():
    world, _ = fleet(8, idle=8)
    world.pass_minutes(70)

    result = sweep_world(world, POLICY)

    figures = {metric.name: metric.value for metric in result.metrics()}
    said = [text for at, text in world.messages if at >= result.now - timedelta(minutes=1)]
    assert (figures["SweepBreakerTrips"], result.failed) == (1, True)
    assert any("mass-idle breaker" in text for text in said)


def released(release, **more):
    return policy(top=TOP | {"agents": release, **more}, **POOL)


def updated_fleet(release="second"):
    """Create ten instances before an update of the agent and ten after it, all left by their users."""
    world, before = fleet(10)
    sweeps(world, 1 / 6, checked=released("first"))
    sweeps(world, 1 / 6, checked=released(release))
    after = [world.start(TAGS) for _ in range(10)]
    world.pass_minutes(60)
    for instance in (*before, *after):
        instance.leave()
    return world, {instance.id for instance in after}


def test_agents_of_a_new_release_end_nothing_more_until_an_operator_looked():
    """A blind release is still blind after a day; the former one is known to see."""
    world, after = updated_fleet()

    sweeps(world, 48, every_minutes=30, checked=released("second"))
    ended_alone = {instance.id for _, instance, _ in world.ends}
    waits = sweep_world(world, released("second")).plan.decisions
    sweeps(world, 1, checked=released("second"), override_breaker=True)
    sweeps(world, 12, every_minutes=30, checked=released("second"))

    assert len(ended_alone) == 10
    assert ended_alone.isdisjoint(after)
    assert all("sweep --live --override-breaker`: its agent or image is new" in each.reason for each in waits)
    assert len(world.ends) == 20


def test_once_an_operator_looked_a_day_is_enough_for_that_release():
    world, _ = updated_fleet()
    sweeps(world, 2, every_minutes=30, checked=released("second"), override_breaker=True)
    later = [world.start(TAGS) for _ in range(20)]
    world.pass_minutes(60)
    for instance in later:
        instance.leave()

    sweeps(world, 60, every_minutes=60, checked=released("second"))

    assert len(world.ends) == 40


@pytest.mark.parametrize(
    ("release", "chosen", "ends"),
    [
        ("first", {}, 20),
        ("second", {"breaker_release": "after-a-day"}, 20),
        ("second", {"breaker_release": "by-operator"}, 0),
    ],
)
def test_a_stack_chooses_who_releases_the_breaker_and_the_same_agent_is_no_new_release(release, chosen, ends):
    world, _ = updated_fleet(release)
    sweeps(world, 60, every_minutes=30, checked=released(release, **chosen))

    assert len(world.ends) == ends


def test_an_image_that_is_new_is_a_new_release_and_the_first_one_is_none():
    seen, now = AgentReleases(), NOON
    one, other = (Instance(f"i-{image}", "", "running", now, image=image) for image in ("ami-1", "ami-2"))

    seen.note("a", [one], now)
    assert seen.unseen([one]) == frozenset()
    seen.note("a", [one, other], now)
    assert seen.unseen([one, other]) == {"i-ami-2"}
    seen.note("b", [one, other], now)
    assert seen.unseen([one]) == {"i-ami-1"}
    seen.confirm()
    assert AgentReleases.of(seen.to_json()).unseen([one, other]) == frozenset()


@pytest.mark.parametrize("raw", [None, {}, {"newest": 7}, [], {"newest": "a", "since": "soon", "images": {}}])
def test_where_no_sweep_of_before_knew_of_releases_what_starts_from_now_on_is_new(raw):
    instance = Instance("i-1", "", "running", NOON)
    seen = AgentReleases.of(raw)

    seen.note("b", [], NOON)

    assert seen.unseen([instance]) == {"i-1"}


def test_an_update_is_new_from_shortly_before_the_sweep_that_first_knows_of_it_and_a_second_one_too():
    launched = [Instance(f"i-{ago}", "", "running", NOON - timedelta(minutes=ago)) for ago in (10, 20)]
    seen = AgentReleases("a")
    seen.note("b", [], NOON)
    seen.note("c", [], NOON + timedelta(days=1))

    assert seen.unseen(launched) == {"i-10"}


def test_where_the_time_of_an_update_cannot_be_read_every_agent_is_new():
    seen = AgentReleases.of({"newest": "a", "since": "soon", "images": {}})

    assert seen.unseen([Instance("i-1", "", "running", NOON)]) == {"i-1"}

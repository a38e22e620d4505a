"""Plays of the fleet's limits, of its breaker, and of the order of sweeps."""

from datetime import timedelta

from gpu_fleet_image.core.model import TAG_GIVE_BACK, TAG_POOL
from gpu_fleet_image.core.times import format_time
from tests.image.moto_fleet import pool_policy
from tests.image.plays.stage import CLOUDS, POOL, Stage, plays
from tests.image.sweeping import policy


@plays
class Bounds(Stage):
    """Limits of the fleet."""

    def the_pool_keeps_its_minimum(self) -> None:
        self.terms(min_size=2)
        made = self.marked(3)
        self.sweep_for(60, override_breaker=True)
        marks = [one for one in made if one.state == "running" and "gpu-fleet:reap-after" in one.tags]
        assert len(self.ended) == 1, f"{len(self.ended)} of 3 ended, 2 must stay"
        assert not marks, "who stays keeps its mark"

    def who_is_marked_leaves_a_small_pool_before_others(self) -> None:
        self.terms(min_size=2)
        held, _, other = self.start(3)
        held.keep(self.world.now + timedelta(hours=3))
        self.forget([held], 60)
        self.forget([other])
        self.sweep()
        held.release()
        self.sweep()
        assert self.notices() == 1, "another was marked in its place"
        assert "gpu-fleet:reap-after" in other.tags, "its mark is gone"

    def the_group_keeps_its_minimum(self) -> None:
        self.world.group("pool", min_size=2)
        self.marked(3, "pool")
        self.sweep_for(60, override_breaker=True)
        assert len(self.ended) == 1, f"{len(self.ended)} of 3 ended, 2 must stay"
        assert not self.failures, "the group had to refuse"

    def the_group_of_an_instance_has_no_tag_of_the_stack(self) -> None:
        """It is found by its name; otherwise it would replace the terminated instance."""
        self.world.group("pool", min_size=0)
        self.world.groups["pool"]["untagged"] = True
        (instance,) = self.marked(1, "pool")
        self.sweep()
        members = self.world.groups["pool"]["members"]
        assert self.ended == [instance.id], "it was not terminated"
        assert members == [], f"its group still has {members}"

    def the_group_s_minimum_is_raised_between_plan_and_second_look(self) -> None:
        self.marked(1, "pool")
        self.before_second_look(lambda: self.world.groups["pool"].update(min=1))
        self.sweep()
        assert not self.ended, "it was terminated"
        assert not self.failures, "the group had to refuse"

    def every_page_comes_twice(self) -> None:
        self.terms(min_size=1)
        self.world.faults.duplicated = 1.0
        self.marked(1)
        self.sweep_for(60, override_breaker=True)
        assert self.notices() == 0, "the last of its pool was marked"

    def more_members_are_due_than_one_call_takes(self) -> None:
        self.terms(top={"max_actions": 100, "max_percent": 100})
        self.world.group("pool", min_size=0, max_size=30)
        self.marked(25, "pool")
        self.sweep(override_breaker=True)
        ends = {"TerminateInstances", "DeleteInstances"}
        order = [call in ends for call in self.world.calls if call in {"DetachInstances", *ends}]
        assert len(self.ended) == 25, f"{len(self.ended)} of 25 ended"
        assert order == [False, True] * 2, "a batch is ended once it is detached"

    def too_many_are_due_at_once(self) -> None:
        self.terms(top={"max_actions": 2})
        self.marked(6)
        notices = self.notices()
        self.sweep(override_breaker=True)
        assert len(self.ended) == 2, f"{len(self.ended)} ended in a sweep, 2 are allowed"
        assert notices == 6, f"{notices} of 6 were told: more may be marked in a sweep than ended"

    def who_waits_behind_a_shut_door_is_terminated_first(self) -> None:
        self.terms(top={"max_actions": 1}, require_acknowledgement=True)
        first, second = self.start(2)
        self.forget([second], 10)
        self.forget([first])
        self.sweep(override_breaker=True)
        second.agent = "sightless"  # and says nothing
        self.world.pass_minutes(21)
        first.stubborn = True
        self.sweep(override_breaker=True)
        shut, first.stubborn, second.agent = first.door.is_shut, False, "alive"
        self.world.pass_seconds(20)
        self.sweep(override_breaker=True)
        assert shut, "its door is open"
        assert self.ended == [first.id], "it waits behind a shut door"

    def a_share_of_the_fleet_is_due_at_once(self) -> None:
        self.terms(top={"max_percent": 34})
        self.marked(6)
        self.sweep(override_breaker=True)
        assert len(self.ended) == 3, f"{len(self.ended)} ended in a sweep, 3 are allowed"


@plays
class Breaker(Stage):
    """Most of a fleet idle at once: the breaker holds it for a day, until that is usual."""

    def most_of_the_fleet_falls_idle_at_once(self) -> None:
        made = self.start(8)
        self.forget(made)
        assert self.report().failed, "nobody is alarmed"
        self.world.pass_minutes(21)
        self.sweep()
        assert self.ended == [], "they were ended within a day"

    def instances_fall_idle_one_after_another(self) -> None:
        """Blind sensors would look the same."""
        made = self.start(8)
        for instance in made:
            instance.leave()
            self.sweep_for(40)
        self.sweep_for(4 * 60)
        assert len(self.ended) <= 1, f"{len(self.ended)} of 8 ended within half a day"

    def instances_of_small_pools_fall_idle_one_after_another(self) -> None:
        """No pool is large enough for its own breaker."""
        names = ("a", "b", "c")
        self.policy = policy({name: pool_policy(**POOL) for name in names}, CLOUDS[self.cloud])
        made = [self.start(tags={TAG_POOL: names[number % 3]})[0] for number in range(6)]
        for instance in made:
            instance.leave()
            self.sweep_for(40)
        self.sweep_for(3 * 60)
        assert len(self.ended) <= 1, f"{len(self.ended)} of 6 ended within half a day"

    def one_user_comes_and_goes_before_others_fall_idle(self) -> None:
        """An operator may find one instance idle any number of times; only one counts as usual."""
        made = self.start(8)
        for _ in range(3):
            made[0].leave()
            self.sweep_for(80, override_breaker=True)
            made[0].busy = True
            self.world.pass_minutes(5)
            self.sweep()
        self.forget(made[1:4], 60)
        self.sweep_for(3 * 60)
        assert self.notices() >= 6, "the user was never told"
        assert self.ended == [], f"{len(self.ended)} ended within half a day"

    def sensors_are_blind_for_a_day_and_see_and_are_blind_again(self) -> None:
        """Idleness by blind sensors is never usual, whatever they reply to their marks."""
        self.terms(require_acknowledgement=True)
        made = self.start(5)
        for _ in range(2):
            for instance in made:
                instance.agent = "deluded"
            self.world.pass_minutes(70)
            self.sweep()
            self.world.pass_minutes(30)
            self.sweep()
            for instance in made:
                instance.agent = "alive"
            self.world.pass_minutes(5)
            self.sweep()
        assert self.notices() == 10, f"{self.notices()} notices, 10 were due"
        assert self.ended == [], f"{len(self.ended)} ended"

    def a_fleet_that_is_truly_idle_is_gone_after_a_day(self) -> None:
        self.forget(self.start(8))
        self.sweep_for(60)
        self.world.pass_minutes(24 * 60)
        self.sweep_for(60)
        assert len(self.ended) == 8, f"{len(self.ended)} of 8 ended"

    def _all_are_ended_after_a_day(self, tags: dict[str, str], then: int) -> None:
        """Mark five of the second pool; they do not reply for a day, and then reply that they are idle.

        Args:
            tags: more tags of theirs.
            then: number of those that end of five others, which fall idle two days later.
        """
        asking = pool_policy(**POOL, require_acknowledgement=True)
        self.policy = policy({"another": asking, "dev": asking}, CLOUDS[self.cloud])
        made = self.start(5)
        self.forget(made)
        for instance in made:
            instance.tags |= tags
        self.sweep()
        for instance in made:
            instance.agent = "sightless"
        self.world.pass_minutes(24 * 60 + 20)
        for instance in made:
            instance.agent = "alive"
        self.world.pass_minutes(1)
        self.sweep()
        first = len(self.ended)
        self.world.pass_minutes(24 * 60)
        self.forget(self.start(5))
        self.sweep_for(40)
        assert first == 5, f"{first} of 5 ended after a day"
        assert len(self.ended) == 5 + then, f"{len(self.ended) - 5} of 5 ended two days later"

    def a_fleet_that_was_given_back_makes_nothing_usual(self) -> None:
        """Its users reported it, not the sensors."""
        wish = {TAG_GIVE_BACK: f"{format_time(self.world.now + timedelta(minutes=85))} ada"}
        self._all_are_ended_after_a_day(wish, then=0)

    def low_load_asks_in_the_first_week(self) -> None:
        """Low load asks for a mark, and nothing is marked in that week."""
        self.terms(top={"watch_days": 7}, scale_in_alarm="low")
        made = self.start(4)
        self.world.pass_minutes(60)
        self.world.alarms = {"low"}
        self.forget(made, 40)
        self.sweep()
        marked = [resource.id for resource in made if "gpu-fleet:reap-after" in resource.tags]
        assert not marked, f"{marked} marked"
        assert self.notices() == 0, "somebody was notified of an end"

    def a_fleet_that_was_idle_lately_by_its_own_word_is_not_held_again(self) -> None:
        self._all_are_ended_after_a_day({}, then=5)

    def a_fleet_that_was_not_asked_is_held_again(self) -> None:
        """No agent confirmed that it was idle."""
        self.a_fleet_that_is_truly_idle_is_gone_after_a_day()
        self.world.pass_minutes(24 * 60)
        self.forget(self.start(8))
        self.sweep_for(60)
        assert len(self.ended) == 8, f"{len(self.ended) - 8} of 8 ended two days later"

    def a_few_more_are_idle_each_day(self) -> None:
        """Ends without a day's wait are not usual; otherwise blind sensors would end more each day."""
        self.terms(require_acknowledgement=True)
        made = self.start(12)
        self.forget(made[:4])
        self.sweep(override_breaker=True)
        for instance in made[:4]:
            self.use(instance, 5)
        self.sweep()
        self.forget(made[:5])
        self.sweep_for(40)
        first = len(self.ended)
        self.world.pass_minutes(24 * 60)
        self.forget(made[5:11])
        self.sweep_for(40)
        assert first == 5, f"{first} of 5 ended, a quarter more than usual"
        assert len(self.ended) == 5, f"{len(self.ended) - 5} more ended on the next day"


@plays
class Load(Stage):
    """Requests by low load and by a lifetime."""

    def low_load_asks_for_one_at_a_time(self) -> None:
        self.terms(scale_in_alarm="low")
        made = self.start(4)
        self.world.pass_minutes(60)
        self.world.alarms = {"low"}
        self.forget(made, 40)
        self.sweep(override_breaker=True)
        first = self.notices()
        self.sweep_for(20, override_breaker=True)
        assert first == 1, f"{first} were marked at once"
        assert self.notices() <= 2, "too fast"

    def low_load_of_one_pool_asks_for_none_of_another(self) -> None:
        self.terms()
        pools = {"dev": pool_policy(**POOL, scale_in_alarm="low"), "prod": pool_policy(**POOL)}
        self.policy = policy(pools, CLOUDS[self.cloud])
        dev, prod = self.start(2), self.start(2, tags={TAG_POOL: "prod"})
        self.world.alarms = {"low"}
        self.forget(prod[:1], 90)
        self.sweep()
        self.forget([*dev, prod[1]], 40)
        self.sweep()
        notices = [len(instance.line.notices) for instance in (*dev, *prod)]
        assert sorted(notices[:2]) == [0, 1], f"{notices[:2]} of the pool with low load"
        assert notices[2:] == [1, 0], f"{notices[2:]} of the other pool"

    def no_load_asks_and_it_is_not_old(self) -> None:
        self.terms(max_lifetime_hours=24)
        made = self.start(2)
        self.world.pass_minutes(60)
        self.forget(made, 45)
        self.sweep()
        assert self.notices() == 0, "it was marked after less idle time than was promised"

    def failed_boot_checks_are_not_replaced_for_ever(self) -> None:
        self.world.unfit_at_start = True
        self.start(6, "pool", busy=False)
        self.world.pass_minutes(60)
        self.sweep_for(180, override_breaker=True)
        assert len(self.ended) == 3, f"{len(self.ended)} were replaced within a day, 3 are allowed"
        assert self.heard("look at image and type"), "nobody is notified of the image"


@plays
class Sweeps(Stage):
    """Leases, clocks and order of sweeps."""

    def another_sweep_holds_the_lease(self) -> None:
        self.marked()
        body = b'{"holder": "another", "expires": "2100-01-01T00:00:00+00:00"}'
        self.world.objects[self.lease()] = (body, '"theirs"')
        self.sweep()
        assert not self.ended, "two sweeps at once"

    def _take(self) -> None:
        """Take the lease, as another sweep does."""
        newest = self.lease()
        name, _, number = newest.rpartition(".")
        # a store without conditions on a version keeps each state under a number, which falls
        taken = f"{name}.{int(number) - 1:012d}" if number.isdecimal() else newest
        self.world.objects[taken] = (b'{"holder": "another"}', '"theirs"')

    def two_sweeps_take_the_lease_at_once(self) -> None:
        self.marked()
        self.world.on_call("PutObject", self._take, number=1)
        self.sweep()
        assert not self.ended, "two sweeps at once"

    def the_lease_is_lost_half_way(self) -> None:
        self.marked()
        self.world.on_call("DescribeInstances", self._take)
        self.sweep()
        assert not self.ended, "two sweeps at once"

    def a_record_cannot_be_written(self) -> None:
        self.marked()
        self.world.deny("PutObject", 3)  # the lease and its renewal come before
        self.sweep()
        assert not self.ended, "an end without a record"

    def the_sweeps_clock_is_wrong(self) -> None:
        self.marked(due=False)
        self.world.skew = timedelta(minutes=3)
        self.sweep()

    def the_sweeps_clock_is_behind_as_it_would_mark(self) -> None:
        """The next sweep's clock would be right, and the grace shorter than the notice says."""
        self.forget(self.start())
        self.world.skew = timedelta(seconds=-90)
        self.sweep()
        assert self.notices() == 0 or self.cloud != "aws", "it marked by a clock that is wrong"

    def a_dry_run_changes_nothing(self) -> None:
        made = self.marked(2) + self.start(1)
        self.forget(made)

        def picture() -> tuple[object, ...]:
            tags = [dict(resource.tags) for resource in made]
            return dict(self.world.objects), list(self.world.messages), tags, list(self.ended)

        before = picture()
        self.report(dry_run=True)
        assert picture() == before, "a dry run writes, or ends instances"

"""Each guard of the reaper is broken, one at a time: a play must detect it.

``make test`` checks that no play fails on the whole product, and that one broken guard is detected.
``python -m tests.bench.bench_reaper_mutants`` negates every operator of the sweep's decisions as well.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.image.controllers.sweep.findings import FINDINGS
from tests.image.controllers.sweep.mutants import (
    broken,
    entries,
    explained,
    functions_of,
    gives,
    home,
    negations,
    rebuilt,
)
from tests.image.plays import CLOUDS, PLAYS, perform

ROOT = Path(__file__).parents[4]

# A play, and below it what it sees broken, each as of ``mutants.broken``. Where one cloud alone is named,
# another guard holds on the other: the fence on AWS, windows that are not even read on Alibaba Cloud.
GUARDS = """
an_instance_works_for_hours
    [aws] _busy: None
a_user_types_now_and_then
    [aws] _busy: None
the_agent_dies_as_a_job_begins
    _fresh: None
an_agent_whose_clock_is_ahead_dies_as_a_job_begins
    _fresh: age < -NEWEST_HEARTBEAT -> False
the_agent_hangs_as_a_job_begins
    _consistent: None
a_sensor_fails_as_a_job_begins
    _sensors: None
the_agent_sleeps_through_a_job
    _coverage: None
the_newest_heartbeats_never_arrive
    [aws] _answered: not case.activity.complete -> False
a_job_begins_seconds_before_the_sweep
    agent:seen(reading, mark, limits, *, unfit=False): Seen()
it_turns_unfit_between_plan_and_second_look
    _still: before.get(decision.instance.id) is decision.verdict -> decision.instance.id in before
the_cloud_shows_late_that_it_was_used_before_its_mark_was_due
    _unreported: None
its_files_change_while_it_waits_behind_the_shut_door
    _behind_the_door: view.now >= talk.saved_at + view.save_again_after -> False
a_job_is_over_while_its_agent_saves_behind_the_shut_door
    NoticeListener._withdraw: decided is Winner.END and view.hold -> decided is Winner.END
a_loop_was_left_in_a_pane
    Habits._is_known: False
a_job_looks_like_one_more_run_of_a_loop
    Habits._is_known: run.age_s <= TIMES_MORE * age_s + MORE_S -> True
its_mark_is_withdrawn_again_and_again
    _knows: False
    SweepMemory.note_withdrawn: None
a_job_comes_as_the_end_is_called
    is_asked: False
a_closed_instance_is_not_ended_and_its_agent_dies
    MarkReplies.reply: self.ages.get(Reply.CLOSED, timedelta.max) <= CLOSED_LASTS -> Reply.CLOSED in self.ages
a_word_is_lost_and_a_job_begins_behind_the_door
    [aws] aws:AgentCloud.__init__: _ONCE -> None
    [alicloud] alicloud:AgentCloud.store: True -> False
the_answer_of_the_last_list_is_long_on_its_way
    [alicloud] _Batch._in_use_again: took <= LAST_LOOK_TAKES -> True
the_agent_dies_behind_the_shut_door
    MarkReplies.reply: self.ages.get(Reply.CLOSED, timedelta.max) <= CLOSED_LASTS ->
        self.ages.get(Reply.CLOSED, timedelta.max) <= IDLE_LASTS
an_agent_restarts_after_it_refused
    NoticeListener._ask: self._exchange().is_refused() -> False
its_user_starts_it_while_the_mark_that_led_to_its_stop_stands
    NoticeListener.poll: mark > self._booted_at() -> True
a_stopped_instance_is_started_as_its_end_is_recorded
    [aws] _Batch._changed: []
a_stopped_instance_is_started_as_its_end_is_called
    [alicloud] alicloud:Instances.terminate: not stopped -> True
a_stopped_instance_is_kept_as_its_end_is_decided
    _Batch._not_kept(self, decisions, done): list(decisions)
nobody_can_say_what_is_decided_of_a_stopped_instance
    _Batch._not_kept: winners[decision.instance.id] is Winner.END -> winners[decision.instance.id] is
        not Winner.WITHDRAWN
a_stopped_instance_carries_the_tag_that_denies_its_end
    stopped: TAG_WITHDRAWN in case.instance.tags -> False
its_mark_is_deleted_behind_the_shut_door
    _Batch._changed: []
its_mark_is_replaced_by_a_later_one_behind_the_shut_door
    _Batch._changed: _as_checked(now.get(decision.instance.id)) != _as_checked(decision.instance) ->
        TAG_REAP_AFTER not in now[decision.instance.id].tags
its_mark_is_deleted_after_the_last_look_at_it
    [aws] NoticeListener._answer: self.talk.closed_at is not None -> False
its_mark_is_deleted_as_its_end_is_called
    [aws] NoticeListener._fence: None
its_mark_is_replaced_as_its_end_is_called
    [aws] NoticeListener._take_up: self._now() + CLOSED_FORGOTTEN -> self._now()
it_refused_and_its_mark_is_gone
    [aws] next_act: Act.LOWER -> Act.NOTHING
a_job_begins_behind_the_door_before_the_last_word
    [alicloud] _Batch._opened: []
    _behind_a_door_of_no_use: Act.OPEN -> Act.NOTHING
a_job_begins_behind_the_door_while_another_cannot_be_ended
    [alicloud] _Batch._act_on: next(calls) -> False
a_job_begins_behind_the_door_after_the_last_word
    [aws] NoticeListener._fence: None
a_silent_agent_is_waited_for
    MarkReplies.reply: Reply.CLOSED
it_refused_once_and_is_idle_again
    mark_name: 'any'
its_owner_asks_to_keep_it_as_the_end_is_called
    Exchange.claim(self, wanted, reason, now): self.store.put(self._decision_key, {'winner': wanted}) or
        wanted
an_instance_that_answers_is_terminated
    agent:_behind_the_door: talk.saved_at is None or talk.saved_at < closed_at -> False
it_is_used_between_plan_and_second_look
    _Sweep._observe_again(self, situation, chosen): situation
it_is_used_while_the_cloud_is_slow
    _Batch._refuse_late: None
it_is_used_while_no_sweep_runs
    Mark.still_holds: True
its_grace_is_not_over
    _next_step: case.now < mark.reap_after -> False
the_owner_cannot_be_notified
    Notifier.announce(self, stack, decisions): Announced(list(decisions))
its_owner_keeps_it
    sweep:_hold: None
its_owner_keeps_it_by_its_tag_behind_the_shut_door
    _Batch._changed: []
a_hold_of_many_years_is_over_after_two_weeks
    sweep:_hold: case.far_for >= KEEP_AT_MOST -> False
    held_until: hold and (not hold.is_far) -> hold
an_administrator_protects_it
    _licence: TAG_PROTECTED in tags -> False
its_termination_is_locked
    [aws] FleetReader.with_lock(self, instance, activity): instance
    _next_step: case.instance.locked -> False
it_just_booted
    _young: None
quiet_hours_are_kept
    is_quiet: False
a_spot_instance_is_not_stopped
    [aws] _end: case.instance.spot or case.pool.instance_store_scratch -> False
a_stopped_instance_gets_a_notice_of_its_own
    stopped: mark.reap_after <= since or not mark.still_holds(since) or mark.idle_since < since -> False
the_pool_keeps_its_minimum
    kept_by_minimum: {}
the_group_keeps_its_minimum
    _spare_of: 100
too_many_are_due_at_once
    action_limit: 1000
a_share_of_the_fleet_is_due_at_once
    action_limit(policy, instances): policy.max_actions
most_of_the_fleet_falls_idle_at_once
    _is_tripped: False
instances_of_small_pools_fall_idle_one_after_another
    _judged_together(situation, plan): [[pool] for pool in situation.policy.pools]
one_user_comes_and_goes_before_others_fall_idle
    SweepMemory.note_idle(self, pool, at, ids): self.idle.setdefault(pool, {}).setdefault('a day',
        set()).update(f'{one} {at}' for one in ids)
a_fleet_that_was_not_asked_is_held_again
    _Sweep._learn: is_asked(self._policy, decision.instance) -> True
a_few_more_are_idle_each_day
    _was_held_for_a_day: True
sensors_are_blind_for_a_day_and_see_and_are_blind_again
    _Sweep._learn: decision.withdrawn and decision.instance.id in self.done.unmarked ->
        memory.note_idle(decision.instance.pool, situation.now, [decision.instance.id])
a_fleet_that_was_given_back_makes_nothing_usual
    _Sweep._learn: not is_given_back(decision.instance) -> True
a_fleet_that_was_idle_lately_by_its_own_word_is_not_held_again
    _Sweep._learn: decision.instance.pool -> min(self._policy.pools)
low_load_asks_in_the_first_week
    decide: situation.watching -> False
    Watch.until: self.began + timedelta(days=policy.watch_days) -> self.began
instances_fall_idle_one_after_another
    idle_within_a_day: usual.ended.items() -> {}.items()
a_fleet_that_is_truly_idle_is_gone_after_a_day
    held_by_breaker: situation.now >= until -> False
low_load_asks_for_one_at_a_time
    _scale_in: willing[:1] -> willing
no_load_asks_and_it_is_not_old
    past_lifetime: True
an_unfit_instance_is_used
    unfit: active > case.now - IDLE_ON_REQUEST -> False
an_unfit_instance_is_used_after_its_mark_while_no_sweep_runs
    unfit: not mark.still_holds(active) -> False
the_group_of_an_unfit_instance_is_frozen_after_its_mark
    _nothing_takes_its_place: ''
failed_boot_checks_are_not_replaced_for_ever
    few_replaced(replaced, decisions): tuple(decisions)
another_sweep_holds_the_lease
    Lease._refuse_if_held: None
the_lease_is_lost_half_way
    Lease.renew: None
two_sweeps_take_the_lease_at_once
    [aws] Store.replace(self, key, content, version): self._put(key, content)['ETag']
    [alicloud] OssStore._claim(self, key, content): self._put(key, content) is not None
forgotten_instances_are_terminated
    Inventory.group_of: None
    [aws] aws:Instances.detach: not replaced -> False
    [alicloud] alicloud:Instances.detach: not replaced -> False
every_page_comes_twice
    [aws] aws:Instances.fleet: listed.values() -> [*listed.values()] * 2
    [alicloud] alicloud:Instances._instances: tuple(listed.values()) -> tuple(listed.values()) * 2
the_sweeps_clock_is_wrong
    [aws] _Sweep._check_clock: None
a_dry_run_changes_nothing
    sweep.sweep:sweep: options.dry_run -> False
"""


class Guard(NamedTuple):
    """A mutant, and the play and the clouds that detect it."""

    text: str
    play: str
    clouds: tuple[str, ...]


def guards() -> Iterator[Guard]:
    """Return each guard of the table."""
    for play, lines in entries(GUARDS).items():
        for cloud, text in (re.fullmatch(r"(?:\[(\w+)\] )?(.*)", line).groups() for line in lines):
            yield Guard(text, play, (cloud,) if cloud else tuple(CLOUDS))


NAMED = tuple(guards())
CASES = [(guard, cloud) for guard in NAMED for cloud in guard.clouds]


@pytest.mark.parametrize("name", PLAYS)
def test_no_play_fails_while_every_guard_stands(name):
    assert {cloud: wrongs for cloud in CLOUDS if (wrongs := perform(name, cloud))} == {}


@pytest.mark.prove
@pytest.mark.parametrize(("guard", "cloud"), CASES, ids=lambda part: getattr(part, "text", part))
def test_a_broken_guard_is_seen(guard, cloud):
    with broken(guard.text).alive():
        assert perform(guard.play, cloud) != [], f"{guard.play} looks right without the guard"


def test_the_product_is_whole_again_after_a_mutant():
    with gives("_busy", "None").alive():
        assert perform("an_instance_works_for_hours") != []

    assert perform("an_instance_works_for_hours") == []


def test_what_was_found_once_can_still_be_broken_and_its_test_is_there():
    """The bench applies it and runs that test; here a mutant whose target has moved is named."""
    assert [broken(guard.text).name for guard in NAMED]
    for finding in FINDINGS:
        file, _, name = finding.node.partition("::")
        assert [broken(text).name for text in finding.broken], finding.was
        assert name.partition("[")[2].rstrip("]") in ("", *PLAYS), finding.was
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), finding.was


def test_what_no_test_can_detect_is_a_negation_that_there_is():
    modules = {importlib.import_module(f"gpu_fleet_image.{name.partition(':')[0]}") for name in explained()}

    assert explained().keys() <= {negation.name for module in modules for negation in negations(module)}


@pytest.mark.parametrize("module", ["decide", "aws:Instances.fleet"])
def test_every_operator_is_negated_once_and_every_function_can_take_its_own_place(module):
    """This includes a function that calls ``super()``, as one of the second module does."""
    names = [negation.name for negation in negations(home(module))]

    assert len(names) == len(set(names))
    assert all(rebuilt(function) for function in functions_of(home(module)))

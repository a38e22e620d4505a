"""Each guard of the reaper broken on purpose, one at a time: a play must see it.

``make test`` holds that no play fails on the whole product, and that one broken guard is seen.
``python -m tests.bench.bench_reaper_mutants`` negates every operator of the sweep's decisions as well.
"""

import builtins
import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.reaper.findings import FINDINGS
from tests.reaper.mutants import PROBE, Mutant, TargetError, becomes, gives, negations, probe, swaps
from tests.reaper.plays import CLOUDS, PLAYS, perform

Maker = Callable[[], Mutant]
BOTH = tuple(CLOUDS)
ROOT = Path(__file__).parents[2]

# what is broken: how, the play that sees it, on which clouds
NAMED: dict[str, tuple[Maker, str, tuple[str, ...]]] = {
    # on Alibaba Cloud the windows of a busy instance are not even read, which protects it once more
    "work": (lambda: gives("_busy", "None"), "an_instance_works_for_hours", ("aws",)),
    "typing": (lambda: gives("_busy", "None"), "a_user_types_now_and_then", ("aws",)),
    "freshness": (lambda: gives("_fresh", "None"), "the_agent_dies_as_a_job_begins", BOTH),
    "future timestamp": (
        lambda: swaps("_fresh", "age < -NEWEST_HEARTBEAT", "False"),
        "an_agent_whose_clock_is_ahead_dies_as_a_job_begins",
        BOTH,
    ),
    "stale heartbeat": (lambda: gives("_consistent", "None"), "the_agent_hangs_as_a_job_begins", BOTH),
    "failed sensor": (lambda: gives("_sensors", "None"), "a_sensor_fails_as_a_job_begins", BOTH),
    "coverage": (lambda: gives("_coverage", "None"), "the_agent_sleeps_through_a_job", BOTH),
    "partial data": (
        lambda: swaps("_answered", "not case.activity.complete", "False"),
        "the_newest_heartbeats_never_arrive",
        ("aws",),
    ),
    "look before an answer": (
        lambda: becomes("agent:seen", "reading, mark, limits, *, unfit=False", "Seen()"),
        "a_job_begins_seconds_before_the_sweep",
        BOTH,
    ),
    "verdict of the first look": (
        lambda: swaps(
            "_still", "before.get(decision.instance.id) is decision.verdict", "decision.instance.id in before"
        ),
        "it_turns_unfit_between_plan_and_second_look",
        BOTH,
    ),
    "heartbeat of when the mark was due": (
        lambda: gives("_untold", "None"),
        "the_cloud_shows_late_that_it_was_used_before_its_mark_was_due",
        BOTH,
    ),
    "files behind a shut door": (
        lambda: swaps("_behind_the_door", "view.now >= talk.saved_at + view.save_again_after", "False"),
        "its_files_change_while_it_waits_behind_the_shut_door",
        BOTH,
    ),
    "what was seen too late to withdraw": (
        lambda: swaps(
            "NoticeListener._withdraw", "decided is Winner.END and view.hold", "decided is Winner.END"
        ),
        "a_job_is_over_while_its_agent_saves_behind_the_shut_door",
        BOTH,
    ),
    "habits": (lambda: gives("Habits._is_known", "False"), "a_loop_was_left_in_a_pane", BOTH),
    "length of a habit": (
        lambda: swaps("Habits._is_known", "run.age_s <= TIMES_MORE * age_s + MORE_S", "True"),
        "a_job_looks_like_one_more_run_of_a_loop",
        BOTH,
    ),
    "one notice a day": (lambda: gives("_knows", "False"), "its_mark_is_withdrawn_again_and_again", BOTH),
    "alert of what never ends": (
        lambda: gives("SweepMemory.note_withdrawn", "None"),
        "its_mark_is_withdrawn_again_and_again",
        BOTH,
    ),
    "shut door": (lambda: gives("is_asked", "False"), "a_job_comes_as_the_end_is_called", BOTH),
    "age of an answer": (
        lambda: swaps(
            "Said.reply",
            "self.ages.get(Reply.CLOSED, timedelta.max) <= CLOSED_LASTS",
            "Reply.CLOSED in self.ages",
        ),
        "a_closed_instance_is_not_ended_and_its_agent_dies",
        BOTH,
    ),
    "word that is sent once on AWS": (
        lambda: swaps("aws:AgentCloud.__init__", "_ONCE", "None"),
        "a_word_is_lost_and_a_job_begins_behind_the_door",
        ("aws",),
    ),
    "word that is sent once on Alibaba Cloud": (
        lambda: swaps("alicloud:AgentCloud.store", "True", "False"),
        "a_word_is_lost_and_a_job_begins_behind_the_door",
        ("alicloud",),
    ),
    # on AWS the fence holds here, too
    "last look that takes long": (
        lambda: swaps("_Batch._in_use_again", "took <= LAST_LOOK_TAKES", "True"),
        "the_answer_of_the_last_list_is_long_on_its_way",
        ("alicloud",),
    ),
    "half a minute": (
        lambda: swaps(
            "Said.reply",
            "self.ages.get(Reply.CLOSED, timedelta.max) <= CLOSED_LASTS",
            "self.ages.get(Reply.CLOSED, timedelta.max) <= IDLE_LASTS",
        ),
        "the_agent_dies_behind_the_shut_door",
        BOTH,
    ),
    "refusal of the agent before": (
        lambda: swaps("NoticeListener._ask", "self._exchange().is_refused()", "False"),
        "an_agent_restarts_after_it_refused",
        BOTH,
    ),
    "mark from before a boot": (
        lambda: swaps("NoticeListener.look", "mark > self._booted_at()", "True"),
        "its_user_starts_it_while_the_mark_that_led_to_its_stop_stands",
        BOTH,
    ),
    # on Alibaba Cloud the call itself refuses what runs
    "state of a stopped instance": (
        lambda: gives("_Batch._changed", "[]"),
        "a_stopped_instance_is_started_as_its_end_is_recorded",
        ("aws",),
    ),
    "state in the call itself": (
        lambda: swaps("alicloud:Instances.terminate", "not stopped", "True"),
        "a_stopped_instance_is_started_as_its_end_is_called",
        ("alicloud",),
    ),
    "hold on a stopped instance": (
        lambda: becomes("_Batch._not_kept", "self, decisions, done", "list(decisions)"),
        "a_stopped_instance_is_kept_as_its_end_is_decided",
        BOTH,
    ),
    "decision on a stopped instance that cannot be written": (
        lambda: swaps(
            "_Batch._not_kept",
            "winners[decision.instance.id] is Winner.END",
            "winners[decision.instance.id] is not Winner.WITHDRAWN",
        ),
        "nobody_can_say_what_is_decided_of_a_stopped_instance",
        BOTH,
    ),
    "fence of a stopped instance": (
        lambda: swaps("stopped", "TAG_WITHDRAWN in case.instance.tags", "False"),
        "a_stopped_instance_carries_the_tag_that_denies_its_end",
        BOTH,
    ),
    "mark at the last look": (
        lambda: gives("_Batch._changed", "[]"),
        "its_mark_is_deleted_behind_the_shut_door",
        BOTH,
    ),
    "another mark at the last look": (
        lambda: swaps(
            "_Batch._changed",
            "_as_checked(now.get(decision.instance.id)) != _as_checked(decision.instance)",
            "TAG_REAP_AFTER not in now[decision.instance.id].tags",
        ),
        "its_mark_is_replaced_by_a_later_one_behind_the_shut_door",
        BOTH,
    ),
    # on Alibaba Cloud an agent sees the tag two minutes later, and no sweep goes by so old a look
    "word for a mark that is removed": (
        lambda: swaps("NoticeListener._answer", "self.talk.closed_at is not None", "False"),
        "its_mark_is_deleted_after_the_last_look_at_it",
        ("aws",),
    ),
    "fence for a mark that is removed": (
        lambda: gives("NoticeListener._fence", "None"),
        "its_mark_is_deleted_as_its_end_is_called",
        ("aws",),
    ),
    "fence for a mark that is replaced": (
        lambda: swaps("NoticeListener._take_up", "self._now() + CLOSED_FORGOTTEN", "self._now()"),
        "its_mark_is_replaced_as_its_end_is_called",
        ("aws",),
    ),
    "fence after the mark": (
        lambda: swaps("next_act", "Act.LOWER", "Act.NOTHING"),
        "it_refused_and_its_mark_is_gone",
        ("aws",),
    ),
    # on AWS the fence holds here, too
    "last word": (
        lambda: gives("_Batch._opened", "[]"),
        "a_job_begins_behind_the_door_before_the_last_word",
        ("alicloud",),
    ),
    "last word before each further call": (
        lambda: swaps("_Batch._act_on", "next(calls)", "False"),
        "a_job_begins_behind_the_door_while_another_cannot_be_ended",
        ("alicloud",),
    ),
    "fence": (
        lambda: gives("NoticeListener._fence", "None"),
        "a_job_begins_behind_the_door_after_the_last_word",
        ("aws",),
    ),
    "silence": (lambda: gives("Said.reply", "Reply.CLOSED"), "a_silent_agent_is_waited_for", BOTH),
    "word for its own mark": (
        lambda: gives("mark_name", "'any'"),
        "it_refused_once_and_is_idle_again",
        BOTH,
    ),
    "race for the decision": (
        lambda: becomes(
            "Exchange.claim",
            "self, wanted, reason, now",
            "self.store.put(self._decision_key, {'winner': wanted}) or wanted",
        ),
        "its_owner_asks_to_keep_it_as_the_end_is_called",
        BOTH,
    ),
    "save behind the shut door": (
        lambda: swaps(
            "agent:_behind_the_door", "talk.saved_at is None or talk.saved_at < closed_at", "False"
        ),
        "an_instance_that_answers_is_terminated",
        BOTH,
    ),
    "door that opens again": (
        lambda: swaps("_behind_a_door_of_no_use", "Act.OPEN", "Act.NOTHING"),
        "a_job_begins_behind_the_door_before_the_last_word",
        BOTH,
    ),
    "second look": (
        lambda: becomes("_Sweep._look_again", "self, situation, chosen", "situation"),
        "it_is_used_between_plan_and_second_look",
        BOTH,
    ),
    "age of the second look": (
        lambda: gives("_Batch._refuse_late", "None"),
        "it_is_used_while_the_cloud_is_slow",
        BOTH,
    ),
    "bound mark": (lambda: gives("Mark.still_holds", "True"), "it_is_used_while_no_sweep_runs", BOTH),
    "grace": (
        lambda: swaps("_next_step", "case.now < mark.reap_after", "False"),
        "its_grace_is_not_over",
        BOTH,
    ),
    "notice": (
        lambda: becomes("Notifier.announce", "self, stack, decisions", "Announced(list(decisions))"),
        "the_owner_cannot_be_notified",
        BOTH,
    ),
    "hold": (lambda: gives("sweep:_hold", "None"), "its_owner_keeps_it", BOTH),
    "hold at the last look": (
        lambda: gives("_Batch._changed", "[]"),
        "its_owner_keeps_it_by_its_tag_behind_the_shut_door",
        BOTH,
    ),
    "end of a hold that is too far": (
        lambda: swaps("sweep:_hold", "case.far_for >= KEEP_AT_MOST", "False"),
        "a_hold_of_many_years_is_over_after_two_weeks",
        BOTH,
    ),
    "agent's part in that": (
        lambda: swaps("held_until", "hold and (not hold.is_far)", "hold"),
        "a_hold_of_many_years_is_over_after_two_weeks",
        BOTH,
    ),
    "protection": (
        lambda: swaps("_licence", "TAG_PROTECTED in tags", "False"),
        "an_administrator_protects_it",
        BOTH,
    ),
    "lock on AWS": (
        lambda: becomes("_Sweep._with_lock", "self, instance, activity", "instance"),
        "its_termination_is_locked",
        ("aws",),
    ),
    "lock": (
        lambda: swaps("_next_step", "case.instance.locked", "False"),
        "its_termination_is_locked",
        BOTH,
    ),
    "youth": (lambda: gives("_young", "None"), "it_just_booted", BOTH),
    "quiet hours": (lambda: gives("is_quiet", "False"), "quiet_hours_are_kept", BOTH),
    "stop of a spot instance": (
        lambda: swaps("_end", "case.instance.spot or case.pool.instance_store_scratch", "False"),
        "a_spot_instance_is_not_stopped",
        ("aws",),
    ),
    "notice after a stop": (
        lambda: swaps(
            "stopped",
            "mark.reap_after <= since or not mark.still_holds(since) or mark.idle_since < since",
            "False",
        ),
        "a_stopped_instance_gets_a_notice_of_its_own",
        BOTH,
    ),
    "pool's floor": (lambda: gives("_floors", "{}"), "the_pool_keeps_its_minimum", BOTH),
    "group's floor": (lambda: gives("_spare_of", "100"), "the_group_keeps_its_minimum", BOTH),
    "cap": (lambda: gives("action_limit", "1000"), "too_many_are_due_at_once", BOTH),
    "cap by share": (
        lambda: becomes("action_limit", "policy, instances", "policy.max_actions"),
        "a_share_of_the_fleet_is_due_at_once",
        BOTH,
    ),
    "breaker": (lambda: gives("_breaker", "False"), "most_of_the_fleet_falls_idle_at_once", BOTH),
    "breaker over small pools": (
        lambda: becomes("_judged_together", "situation, plan", "[[pool] for pool in situation.policy.pools]"),
        "instances_of_small_pools_fall_idle_one_after_another",
        BOTH,
    ),
    "instances, not events": (
        lambda: becomes(
            "SweepMemory.note_idle",
            "self, pool, at, ids",
            "self.idle.setdefault(pool, {}).setdefault('a day', set()).update(f'{one} {at}' for one in ids)",
        ),
        "one_user_comes_and_goes_before_others_fall_idle",
        BOTH,
    ),
    "word of what was idle": (
        lambda: swaps("_Sweep._learn", "is_asked(self._policy, decision.instance)", "True"),
        "a_fleet_that_was_not_asked_is_held_again",
        BOTH,
    ),
    "a day before it is usual": (
        lambda: gives("_was_held_for_a_day", "True"),
        "a_few_more_are_idle_each_day",
        BOTH,
    ),
    "use after a mark teaches nothing": (
        lambda: swaps(
            "_Sweep._learn",
            "decision.withdrawn and decision.instance.id in self.done.unmarked",
            "memory.note_idle(decision.instance.pool, situation.now, [decision.instance.id])",
        ),
        "sensors_are_blind_for_a_day_and_see_and_are_blind_again",
        BOTH,
    ),
    "no lesson from what was given back": (
        lambda: swaps("_Sweep._learn", "not is_given_back(decision.instance)", "True"),
        "a_fleet_that_was_given_back_makes_nothing_usual",
        BOTH,
    ),
    "pool that a lesson is of": (
        lambda: swaps("_Sweep._learn", "decision.instance.pool", "min(self._policy.pools)"),
        "a_fleet_that_was_idle_lately_by_its_own_word_is_not_held_again",
        BOTH,
    ),
    "low load in the first week": (
        lambda: swaps("decide", "situation.watching", "False"),
        "low_load_asks_in_the_first_week",
        BOTH,
    ),
    "breaker over a day": (
        lambda: swaps("idle_within_a_day", "usual.ended.items()", "{}.items()"),
        "instances_fall_idle_one_after_another",
        BOTH,
    ),
    "end of the breaker": (
        lambda: swaps("_held_by_breaker", "situation.now >= until", "False"),
        "a_fleet_that_is_truly_idle_is_gone_after_a_day",
        BOTH,
    ),
    "cooldown": (
        lambda: swaps("_scale_in", "willing[:1]", "willing"),
        "low_load_asks_for_one_at_a_time",
        BOTH,
    ),
    "lifetime": (lambda: gives("past_lifetime", "True"), "no_load_asks_and_it_is_not_old", BOTH),
    "use of an unfit instance": (
        lambda: swaps("unfit", "active > case.now - IDLE_ON_REQUEST", "False"),
        "an_unfit_instance_is_used",
        BOTH,
    ),
    "bound mark of an unfit instance": (
        lambda: swaps("unfit", "not mark.still_holds(active)", "False"),
        "an_unfit_instance_is_used_after_its_mark_while_no_sweep_runs",
        BOTH,
    ),
    "replacement": (
        lambda: gives("_nothing_takes_its_place", "''"),
        "the_group_of_an_unfit_instance_is_frozen_after_its_mark",
        BOTH,
    ),
    "replacements in a day": (
        lambda: becomes("_few_replaced", "replaced, decisions", "tuple(decisions)"),
        "failed_boot_checks_are_not_replaced_for_ever",
        BOTH,
    ),
    "lease": (lambda: gives("Lease._refuse_if_held", "None"), "another_sweep_holds_the_lease", BOTH),
    "lease's renewal": (lambda: gives("Lease.renew", "None"), "the_lease_is_lost_half_way", BOTH),
    "condition of a write": (
        lambda: becomes("Store.replace", "self, key, content, version", "self._put(key, content)['ETag']"),
        "two_sweeps_take_the_lease_at_once",
        ("aws",),
    ),
    "first of two writers": (
        lambda: becomes("OssStore._claim", "self, key, content", "self._put(key, content) is not None"),
        "two_sweeps_take_the_lease_at_once",
        ("alicloud",),
    ),
    "member through its group": (
        lambda: gives("Inventory.group_of", "None"),
        "forgotten_instances_are_terminated",
        BOTH,
    ),
    "smaller group on AWS": (
        lambda: swaps("aws:Instances.detach", "not replaced", "False"),
        "forgotten_instances_are_terminated",
        ("aws",),
    ),
    "smaller group on Alibaba Cloud": (
        lambda: swaps("alicloud:Instances.detach", "not replaced", "False"),
        "forgotten_instances_are_terminated",
        ("alicloud",),
    ),
    "duplicate pages on AWS": (
        lambda: swaps("aws:Instances.fleet", "listed.values()", "[*listed.values()] * 2"),
        "every_page_comes_twice",
        ("aws",),
    ),
    "duplicate pages on Alibaba Cloud": (
        lambda: swaps(
            "alicloud:Instances._instances", "tuple(listed.values())", "tuple(listed.values()) * 2"
        ),
        "every_page_comes_twice",
        ("alicloud",),
    ),
    "clock": (lambda: gives("_Sweep._check_clock", "None"), "the_sweeps_clock_is_wrong", ("aws",)),
    "dry run": (lambda: swaps("sweep", "options.dry_run", "False"), "a_dry_run_changes_nothing", BOTH),
}
CASES = [(name, cloud) for name, (_, _, clouds) in NAMED.items() for cloud in clouds]


@pytest.mark.parametrize("name", PLAYS)
def test_no_play_fails_while_every_guard_stands(name):
    assert {cloud: wrongs for cloud in CLOUDS if (wrongs := perform(name, cloud))} == {}


@pytest.mark.prove
@pytest.mark.parametrize(("name", "cloud"), CASES)
def test_a_broken_guard_is_seen(name, cloud):
    make, seen_in, _ = NAMED[name]

    with make().alive():
        wrongs = perform(seen_in, cloud)

    assert wrongs != [], f"{seen_in} looks right without the guard"


def test_the_product_is_whole_again_after_a_mutant():
    with gives("_busy", "None").alive():
        assert perform("an_instance_works_for_hours") != []

    assert perform("an_instance_works_for_hours") == []


def test_a_guard_that_went_elsewhere_is_named():
    with pytest.raises(
        TargetError, match="_no_such_rule: 0 functions of this name in image/reaper; 1 is needed"
    ):
        gives("_no_such_rule", "None")
    with pytest.raises(TargetError, match=r"_fresh: there is no age < 0 in it"):
        swaps("_fresh", "age < 0", "False")


@pytest.mark.prove
def test_what_was_found_once_can_still_be_broken_and_its_test_is_there():
    """The bench breaks it and runs that test."""
    for finding in FINDINGS:
        file, _, name = finding.node.partition("::")
        assert [make().name for make in finding.broken], finding.was
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), finding.was


def test_every_operator_is_negated_once():
    import image.reaper.sweep.verdict as module  # noqa: PLC0415

    names = [negation.name for negation in negations(module)]

    assert len(names) == len(set(names))


def test_a_condition_that_is_evaluated_is_known_by_the_names_of_its_negations(tmp_path, monkeypatch):
    monkeypatch.setitem(vars(builtins), PROBE, None)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_made_up_module.py").write_text("def both(a, b):\n    return a > 1 and b > 2\n")
    module, negated = importlib.import_module("a_made_up_module"), set()
    probe([module], negated.update)

    assert module.both(0, 3) is False

    where = "a_made_up_module: both"
    assert negated == {f"{where}: a > 1 becomes a <= 1", f"{where}: a > 1 and b > 2 becomes a > 1 or b > 2"}
    assert module.both(2, 3) is True
    assert f"{where}: b > 2 becomes b <= 2" in negated

"""Faults that an independent harness found in the reaper, and the tests that would detect them today.

Each line breaks the product in the former way. ``python -m tests.bench.bench_reaper_mutants`` does so and
requires that its test fails. The tests that start a whole notebook or launcher are in
``test_real_programs.py``.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.image.controllers.sweep.mutants import TESTS, entries

ROOT = Path(__file__).parents[4]
MODULES = {path.stem: path.relative_to(ROOT) for room in TESTS for path in (ROOT / room).rglob("test_*.py")}

# The number in its report, and what went wrong; the test or the play that sees it; the product as it was.
TABLE = """
1 instances at work are terminated, and the suite stays green
    test_faults: test_no_instance_at_work_is_terminated_whatever_fails
    _busy: None
    agent:seen(reading, mark, limits, *, unfit=False): Seen()
2 sensors go blind one after another, and all instances are terminated
    play: instances_fall_idle_one_after_another
    idle_within_a_day(usual, plan, pool): frozenset(one.instance.id for one in
        plan.with_verdict(Verdict.MARK))
2 a job of 16 nodes ends on Friday, and the breaker keeps them until a person comes
    play: a_fleet_that_is_truly_idle_is_gone_after_a_day
    held_by_breaker: situation.now >= until -> False
2 what its owner gave back waits a day for the breaker, and trips it for others
    test_give_back: test_while_many_are_idle_what_its_owner_gave_back_is_terminated_and_the_others_wait
    held_by_breaker: is_given_back(decision.instance) -> False
2 what its owner gave back counts as what sensors found idle
    test_give_back: test_what_its_owner_gives_back_waits_for_no_breaker_and_trips_none
    idle_within_a_day: is_given_back(decision.instance) -> False
2 what its owner gave back in the first week costs until its end
    test_give_back: test_in_the_first_week_only_what_its_owner_gave_back_is_terminated
    _only_watched: is_given_back(decision.instance) -> False
2 a day of blind sensors that see again makes the next blind day usual
    play: sensors_are_blind_for_a_day_and_see_and_are_blind_again
    _Sweep._learn: decision.withdrawn and decision.instance.id in self.done.unmarked ->
        memory.note_idle(decision.instance.pool, situation.now, [decision.instance.id])
2 agents of a new release see nothing, and a day later all instances are terminated by their word
    test_breaker: test_agents_of_a_new_release_end_nothing_more_until_an_operator_looked
    AgentReleases.unseen: frozenset()
2 agents that start minutes before the first sweep that knows of their release are none of it
    test_breaker:
        test_an_update_is_new_from_shortly_before_the_sweep_that_first_knows_of_it_and_a_second_one_too
    AgentReleases.note: now - _NOTED_LATE -> now
3 a job that begins seconds before the sweep is killed
    test_handshake: test_no_job_that_begins_within_ninety_seconds_before_the_sweep_is_killed
    agent:seen(reading, mark, limits, *, unfit=False): Seen()
3 the agent dies as a job begins, and the job is killed
    test_handshake: test_no_job_is_killed_whose_agent_dies_as_it_begins
    is_closed: True
3 a job that begins before the first answer is forgotten after a quarter of an hour
    test_handshake: test_a_job_that_begins_between_the_due_mark_and_the_first_answer_is_never_forgotten
    agent:seen: (*lately, *presence.older) -> lately
    _answering: seen.is_new or talk.reply is Reply.IDLE -> talk.reply is Reply.IDLE
3 a job that begins just before the mark is due is killed before anything shows it
    test_handshake:
        test_a_job_that_began_seconds_before_the_mark_was_due_has_a_quarter_of_an_hour_to_show_itself
    agent:seen: (*failed, *not_judged) -> tuple(failed)
3 an agent that starts again and again never opens the door that it shut
    test_handshake: test_a_door_without_a_termination_opens_after_an_hour_however_often_its_agent_starts
    agent:_closing: (talk.closed_at, talk.decided_at) -> (view.now,)
3 an agent shuts a door again that was opened because it could not start
    test_handshake:
        test_a_door_whose_agent_cannot_start_is_opened_and_an_agent_that_starts_later_shuts_it_no_more
    agent:_closing: (talk.closed_at, talk.decided_at) -> (talk.closed_at,)
3 an agent opens the door while a sweep goes by what the agent before it said
    test_handshake:
        test_an_agent_that_starts_behind_the_shut_door_opens_it_not_while_a_sweep_may_go_by_the_word_before
    _is_stale: True
3 a word that the network held up for a minute is as fresh as its arrival
    test_session: test_a_reply_that_the_network_holds_up_is_given_up_within_seconds
    aws:AgentCloud.__init__: _ONCE -> None
    alicloud:AgentCloud.store: True -> False
3 the answer of the last list was half a minute on its way, and the end is called
    play: the_answer_of_the_last_list_is_long_on_its_way
    _Batch._in_use_again: took <= LAST_LOOK_TAKES -> True
3 keep says that the instance is kept, and it is terminated
    test_handshake: test_a_hold_typed_after_the_last_look_holds
    Exchange.claim(self, wanted, reason, now): self.store.put(self._decision_key, {'winner': wanted})
        or wanted
3 an administrator takes the mark away behind the shut door, and the instance is terminated
    test_handshake: test_an_instance_whose_mark_is_taken_away_behind_the_shut_door_stays_and_is_open_at_once
    _Batch._changed: []
    NoticeListener._answer: self.talk.closed_at is not None -> False
4 typing in a web terminal counts as nothing
    test_sensors: test_a_terminal_counts_from_its_last_input
    ProcessTable._terminals: iter(())
4 a notebook's cell that computes counts as nothing
    test_jupyter: test_a_busy_kernel_is_in_use_however_long_it_is_silent
    _sessions: iter(())
4 a process that was root when it was first seen is never a user's
    test_habits: test_a_process_of_root_that_becomes_a_user_s_counts_as_that_user_s
    ProcessTable._is_a_users: process.uid >= FIRST_PERSON -> False
4 the first account of an image is no user
    test_habits: test_the_first_account_of_an_image_is_a_user_s_and_a_daemon_s_is_not
    ProcessTable._is_a_users: process.uid >= FIRST_PERSON -> process.uid > FIRST_PERSON
4 nothing that root runs at a terminal is a user's
    test_sensors: test_at_a_terminal_whatever_root_runs_is_a_user_s_but_the_prompt_that_waits_for_one
    ProcessTable._is_a_users: process.name not in LOG_IN_PROMPTS -> False
4 what was taken long ago is idle since then, however it is used
    test_give_back: test_an_instance_that_was_taken_is_idle_since_the_later_of_its_use_and_that
    Case._idle: min(idle_s, max(0.0, (known_until - taken).total_seconds())) -> max(0.0, (known_until
        - taken).total_seconds())
4 launchers that wait count as nothing
    test_processes: test_work_is_known_by_its_command
    is_launcher: False
4 a rank that waits for a peer elsewhere counts as nothing
    test_sensors: test_a_rank_that_waits_for_a_peer_elsewhere_differs_from_one_that_stands_alone
    _peers: 0
4 what is just below each limit counts as nothing
    test_judge: test_half_of_two_limits_is_as_much_as_the_whole_of_one
    _rate_reasons: load(rates, limits) >= 1 -> False
4 a spare is marked as soon as a user takes it, for it was idle since its boot
    test_give_back: test_a_spare_that_a_user_takes_is_idle_from_then_on_and_not_since_its_boot
    taken_at: None
5 a live sweep at another time moves the meter
    test_sweep_on_moto: test_a_live_sweep_takes_no_time_but_the_present_and_does_nothing
    operators:sweep: now is not None and not dry_run -> False
6 an end that never came about counts as savings
    test_acting: test_a_sweep_cut_off_before_the_end_saves_nothing_when_the_user_returns
    read_ends: [key.removesuffix(ENDED) for key in keys if key.endswith(ENDED)]
        -> [key.removesuffix(JSON) for key in keys if key.endswith('-terminate.json')]
6 a stopped instance that its user started again counts as saved to the end of the month
    test_acting: test_a_stop_saves_until_its_user_starts_the_instance_again_whoever_ends_it_then
    _Sweep._note_starts: None
    _saving: end.started_at is not None -> False
7 an instance with termination protection is detached, refused and attached again and again
    test_sweep_on_moto: test_termination_protection_is_a_lock_that_status_shows
    _next_step: case.instance.locked -> False
8 the user on an instance is not notified
    test_sweep_on_moto: test_the_user_seen_on_an_instance_is_mailed_and_the_grace_begins
    _Round._users_of: ()
8 a user gives another's instance back, and what waits there is terminated within minutes
    test_give_back: test_a_give_back_terminates_no_work_of_others
    _others_on: ()
    GiveBack.is_the_owners: True
8 who kept an instance is not notified when somebody gives it back
    test_give_back: test_who_kept_an_instance_is_notified_anew_when_another_gives_it_back
    _knows: given > at -> False
8 a give-back that a keep took back is in force again once the instance is released
    test_keep: test_what_was_given_back_and_kept_after_all_stays_kept_from_the_give_back_when_released
    give_back_of: TAG_KEEP_UNTIL in instance.tags -> False
8 another user who alone was seen on an instance is nobody else
    test_give_back: test_a_give_back_terminates_no_work_of_others
    _others_on: seen[0] in EVERYBODYS -> True
8 an instance that was given back and taken again ends after five idle minutes
    test_give_back: test_a_give_back_ends_when_somebody_takes_the_instance_even_the_same_user
    give_back_of: at <= taken -> False
8 who gives back an instance without an owner, or one of a name that begins alike, ends it
    test_give_back: test_whose_word_alone_is_enough
    GiveBack.is_the_owners: self.by == self.owner -> self.by == self.owner or not self.owner
    _others_on: user.partition('@')[0] != name.partition('@')[0] -> not user.startswith(name)
8 the owner is not notified who gave the instance back
    test_give_back: test_the_owner_is_notified_of_who_gave_it_back_before_its_grace
    given_back_note: ''
8 a grace period begins though nobody was notified
    test_notify: test_a_grace_period_does_not_begin_while_no_recipient_listens
    _Round._note_notified(self, decisions, listening): self._notified.update(one.instance.id for one
        in decisions)
"""


@dataclass(frozen=True)
class Finding:
    """One way in which the promise was broken."""

    was: str
    test: str  # that detects it, as a file and a name
    broken: tuple[str, ...]  # the product as it was

    @property
    def node(self) -> str:
        """Name of the test for pytest, without parameters unless it is a play."""
        file, _, name = self.test.partition(": ")
        if file == "play":
            return f"{MODULES['test_mutants']}::test_no_play_fails_while_every_guard_stands[{name}]"
        return f"{MODULES[file]}::{name}"

    def is_seen_by(self, test: str) -> bool:
        """Return whether a test's id is that of the detecting test."""
        return self.node in (test, test.partition("[")[0])


FINDINGS = tuple(
    Finding(was.partition(" ")[2], test, tuple(broken)) for was, (test, *broken) in entries(TABLE).items()
)

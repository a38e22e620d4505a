"""Next action of an agent about a mark, for each state, and the result of one poll of all sensors."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpu_fleet_image.core.handshake import Reply, Winner
from gpu_fleet_image.instance.agent.answers import Act, Seen, Talk, View, asks, next_act, seen
from gpu_fleet_image.instance.agent.idle_detection import Limits
from gpu_fleet_image.instance.agent.sensors.reading import Presence, Rates, Reading, Session, Started

MARK = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOW = MARK + timedelta(minutes=10)
CLEAN, BUSY, UNKNOWN = Seen(), Seen(signs=("cpu",)), Seen(unknown=("gpu: lost",))
NEW = Seen(signs=("process: wait.py",), is_new=True)
END, WITHDRAWN = Winner.END, Winner.WITHDRAWN


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


IDLE = {"reply": Reply.IDLE, "said_at": ago(30), "saved_at": ago(60)}
SHUT = {"decision": END, "closed_at": ago(30), "saved_at": ago(40)}
WAITING = {"decision": END, "closed_at": ago(400), "saved_at": ago(300), "reply": Reply.CLOSED}
CLOSED = {**SHUT, "saved_at": ago(20), "reply": Reply.CLOSED, "said_at": ago(9)}


# of a mark that is due: (talk, look, the next act)
STATES = [
    ({"notified": False}, None, Act.NOTIFY),
    ({}, None, Act.SAVE),
    ({"saved_at": ago(299)}, None, Act.LOOK),
    ({"saved_at": ago(300)}, None, Act.SAVE),
    ({"saved_at": ago(60)}, CLEAN, Act.SAY_IDLE),
    ({"saved_at": ago(60)}, BUSY, Act.NOTHING),
    ({"saved_at": ago(60)}, UNKNOWN, Act.NOTHING),
    ({"saved_at": ago(60), "busy_looks": 2}, BUSY, Act.NOTHING),
    # heartbeats show other use; what began since the mark was due they may never show
    ({"saved_at": ago(60), "busy_looks": 2}, NEW, Act.WITHDRAW),
    ({"saved_at": ago(60), "busy_looks": 1}, NEW, Act.NOTHING),
    (IDLE, CLEAN, Act.NOTHING),
    ({**IDLE, "said_at": ago(60)}, CLEAN, Act.SAY_IDLE),
    ({**IDLE, "busy_looks": 1}, BUSY, Act.NOTHING),
    ({**IDLE, "busy_looks": 2}, BUSY, Act.WITHDRAW),
    ({**IDLE, "busy_looks": 2}, UNKNOWN, Act.NOTHING),
    ({**IDLE, "decision": WITHDRAWN}, CLEAN, Act.WITHDRAW),
    ({**IDLE, "over": True}, CLEAN, Act.NOTHING),
    ({**IDLE, "decision": END}, None, Act.CLOSE),
    (SHUT, None, Act.SAVE),
    ({**SHUT, "saved_at": None}, None, Act.SAVE),
    ({**SHUT, "saved_at": ago(30)}, None, Act.LOOK),
    ({**SHUT, "saved_at": ago(20)}, CLEAN, Act.SAY_CLOSED),
    ({**IDLE, **SHUT, "saved_at": ago(20), "said_at": ago(3)}, CLEAN, Act.SAY_CLOSED),
    ({**SHUT, "saved_at": ago(20), "busy_looks": 1}, BUSY, Act.NOTHING),
    ({**SHUT, "saved_at": ago(20), "busy_looks": 2}, BUSY, Act.REFUSE),
    (CLOSED, CLEAN, Act.NOTHING),
    ({**CLOSED, "said_at": ago(10)}, CLEAN, Act.SAY_CLOSED),
    ({**CLOSED, "busy_looks": 1}, BUSY, Act.REFUSE),
    ({**CLOSED, "busy_looks": 1}, UNKNOWN, Act.REFUSE),
    # files are saved again, once no sweep goes by what was said
    ({**WAITING, "said_at": ago(120)}, CLEAN, Act.NOTHING),
    ({**WAITING, "said_at": ago(121)}, CLEAN, Act.SAVE),
    ({**WAITING, "said_at": ago(121)}, None, Act.LOOK),
    ({**WAITING, "said_at": ago(121), "busy_looks": 1}, BUSY, Act.REFUSE),
    ({**WAITING, "said_at": ago(121), "saved_at": ago(299)}, CLEAN, Act.SAY_CLOSED),
    ({**CLOSED, "closed_at": ago(3599)}, None, Act.LOOK),
    ({**CLOSED, "closed_at": ago(3600)}, None, Act.REFUSE),
    ({**CLOSED, "decided_at": ago(3599)}, None, Act.LOOK),
    ({**CLOSED, "decided_at": ago(3600)}, None, Act.REFUSE),
    ({**IDLE, "decision": END, "decided_at": ago(3599)}, None, Act.CLOSE),
    ({**IDLE, "decision": END, "decided_at": ago(3600)}, None, Act.REFUSE),
    ({**CLOSED, "refusing": "used"}, None, Act.REFUSE),
    ({**CLOSED, "refusing": "used", "said_at": ago(120)}, None, Act.REFUSE),
    # no sweep goes by what was said then
    ({**CLOSED, "refusing": "used", "said_at": ago(121)}, None, Act.OPEN),
    ({**SHUT, "refusing": "used"}, None, Act.OPEN),
    ({**SHUT, "refusing": "used", "reply": Reply.CLOSED}, None, Act.OPEN),
    # its word could not be written: the door is open by then, and it is tried until it is
    ({**IDLE, "refusing": "used"}, CLEAN, Act.REFUSE),
    ({**IDLE, "decision": WITHDRAWN, "refusing": "used"}, None, Act.REFUSE),
    ({**IDLE, "decision": END, "refusing": "used"}, None, Act.REFUSE),
    ({**IDLE, "decision": END, "refusing": "used", "over": True}, None, Act.NOTHING),
    ({**CLOSED, "over": True}, None, Act.OPEN),
    ({**CLOSED, "decision": None}, None, Act.NOTHING),
    ({**CLOSED, "decision": None, "said_at": ago(120)}, None, Act.NOTHING),
    ({**CLOSED, "decision": None, "said_at": ago(121)}, None, Act.OPEN),
    ({**SHUT, "decision": WITHDRAWN}, None, Act.OPEN),
    ({**SHUT, "mark": MARK - timedelta(hours=1)}, None, Act.OPEN),
    ({**IDLE, "mark": MARK - timedelta(hours=1), "decision": END, "saved_at": None}, None, Act.SAVE),
]


def test_each_state_of_a_mark_that_is_due_has_one_next_act():
    def act_of(talk, look):
        return next_act(View(NOW, MARK, "", Talk(**({"mark": MARK, "notified": True} | talk)), look))

    found = [(talk, look, act_of(talk, look)) for talk, look, _ in STATES]

    assert found == STATES


def test_without_a_mark_the_door_is_open_and_a_stop_is_allowed_once_no_sweep_acts_on_an_old_one():
    acts = {
        Talk(lower_at=None): Act.NOTHING,
        Talk(lower_at=ago(-1)): Act.NOTHING,
        Talk(lower_at=ago(0)): Act.LOWER,
        Talk(lower_at=ago(1)): Act.LOWER,
        Talk(closed_at=NOW): Act.OPEN,
    }

    assert {talk: next_act(View(NOW, None, "", talk)) for talk in acts} == acts


def test_what_is_decided_is_read_once_the_mark_is_due_at_once_and_then_every_fifteen_seconds():
    views = {
        View(NOW, MARK, "", Talk(MARK)): True,
        View(NOW, MARK, "", Talk(MARK, asked_at=ago(14))): False,
        View(NOW, MARK, "", Talk(MARK, asked_at=ago(15))): True,
        View(NOW, MARK, "", Talk(MARK, asked_at=ago(-1))): True,  # the clock was set back since
        View(NOW, MARK, "", Talk(MARK, asked_at=ago(15), decision=END)): False,
        View(NOW, MARK, "", Talk(MARK, asked_at=ago(15), over=True)): False,
        # before it nothing is decided that could be read
        View(MARK - timedelta(seconds=1), MARK, "", Talk(MARK)): False,
        View(NOW, None, "", Talk()): False,
        View(MARK, MARK, "", Talk(MARK)): True,
    }

    assert {view: asks(view) for view in views} == views


def test_before_a_mark_is_due_users_are_notified_and_a_kept_instance_takes_back_what_it_said():
    before, notified = MARK - timedelta(seconds=1), Talk(MARK, notified=True)
    acts = {
        View(before, MARK, "", Talk(MARK)): Act.NOTIFY,
        View(before, MARK, "", notified): Act.NOTHING,
        View(MARK, MARK, "", notified): Act.SAVE,
        View(NOW, MARK, "kept", replace(notified, saved_at=ago(60)), CLEAN): Act.NOTHING,
        View(NOW, MARK, "kept", replace(notified, **IDLE), CLEAN): Act.WITHDRAW,
    }

    assert {view: next_act(view) for view in acts} == acts


def look(presence=None, failures=()):
    return Reading(NOW, Rates(), (), presence, failures)


@pytest.mark.parametrize(("age_s", "counts"), [(599.0, True), (600.0, False), (601.0, False)])
def test_whoever_typed_and_whatever_began_since_the_mark_was_due_is_a_sign(age_s, counts):
    typed = Presence(sessions=(Session("terminal", "ada on pts/0", age_s),))
    began = Presence(started=(Started(7, "sleep", "ada", age_s),))
    older = Presence(older=(Started(7, "sleep", "ada", age_s),))

    found = [seen(look(presence), MARK, Limits()) for presence in (typed, began, older)]

    assert [bool(answer.signs) for answer in found] == [counts] * 3
    assert [answer.is_new for answer in found] == [counts] * 3


@pytest.mark.parametrize("repeats", [False, True])
def test_what_began_lately_but_before_the_mark_was_due_is_not_known_to_be_idle_unless_it_repeats(repeats):
    began = Presence(started=(Started(7, "sleep", "ada", 601.0, repeats=repeats),))

    found = seen(look(began), MARK, Limits())

    assert (found.signs, found.unknown == ()) == ((), repeats)


def test_only_what_the_mark_knows_nothing_of_is_new_and_users_who_could_not_be_looked_for_are_no_sign():
    busy = seen(Reading(NOW, Rates(cpu_cores=1.0), (), Presence()), MARK, Limits())

    assert busy.signs
    assert not busy.is_new
    assert seen(look(None), MARK, Limits()).signs == ()


def test_only_of_an_instance_that_failed_its_boot_check_may_gpus_be_silent():
    known = {("gpu: lost", False): False, ("gpu: lost", True): True, ("disk: lost", True): False}

    def is_known(failure, unfit):
        return seen(look(Presence(), (failure,)), MARK, Limits(), unfit=unfit).unknown == ()

    assert {given: is_known(*given) for given in known} == known

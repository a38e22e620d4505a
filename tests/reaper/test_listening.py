"""The thread that listens for the end of the machine, and the metadata that it hears."""

import json
import threading
from datetime import timedelta

import pytest

from image.reaper.agent import notices
from image.reaper.agent.answers import Talk
from image.reaper.agent.listening import Answers, Door, Going
from image.reaper.agent.notices import Notice
from image.reaper.errors import CloudError
from tests.reaper.samples import NOON

MARK = "tags/instance/gpu-fleet:reap-after"


class Told:
    """A metadata service as a table."""

    def __init__(self, **answers):
        self.answers = answers

    def get(self, path):
        return self.answers.get(path)


class Heard:
    """What the instance did about it."""

    def __init__(self, metadata):
        self.events = []
        told_by = notices.FromMetadata(metadata, lambda: NOON)
        withdrawn = lambda: self.events.append("withdrawn")  # noqa: E731 - one expression
        nothing = Answers(self.drain, None, None, None, None, None, None, Door(()), withdrawn)
        self.going = Going(told_by, nothing, lambda: NOON)

    def drain(self, notice):
        self.events.append(notice.reason)
        return self

    def run(self, find):
        self.events.append("drained")


def test_no_word_is_no_notice():
    assert notices.find(Told()) is None


def test_a_machine_in_service_stays():
    assert notices.find(Told(**{notices.LIFECYCLE_STATE: "InService"})) is None


def test_a_machine_that_its_group_takes_away_goes():
    assert notices.find(Told(**{notices.LIFECYCLE_STATE: "Terminated\n"})) == Notice(
        "the scaling group takes this machine away"
    )


def test_a_spot_notice_says_until_when():
    text = json.dumps({"action": "terminate", "time": "2026-11-21T12:02:00Z"})

    notice = notices.find(Told(**{notices.SPOT_ACTION: text, notices.LIFECYCLE_STATE: "Terminated"}))

    assert notice == Notice("the spot market takes this machine: terminate", NOON + timedelta(minutes=2))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"action": "stop", "time": "soon"}'])
def test_a_spot_notice_that_cannot_be_read_is_told(text):
    with pytest.raises(CloudError, match=r"spot/instance-action.*cannot be read"):
        notices.find(Told(**{notices.SPOT_ACTION: text}))


def test_a_notice_drains_and_ends_the_listening():
    heard = Heard(Told(**{notices.LIFECYCLE_STATE: "Terminated"}))

    assert heard.going.look()
    assert heard.events == ["the scaling group takes this machine away", "drained"]


def test_a_mistake_is_told_and_the_next_word_is_heard(caplog, monkeypatch):
    heard = Heard(Told(**{notices.LIFECYCLE_STATE: "Terminated"}))
    drains = iter([ValueError("a mistake"), None])

    def run(find):
        if error := next(drains):
            raise error
        drained.set()

    drained = threading.Event()
    monkeypatch.setattr(heard, "run", run)

    heard.going.start(0.0)

    assert drained.wait(30)
    assert "event=listening-failed" in caplog.text


def test_a_notice_is_withdrawn_with_its_mark_and_once():
    heard = Heard(Told())
    heard.going.talk = Talk(NOON, notified=True)

    heard.going.look()
    heard.going.look()

    assert heard.events == ["withdrawn"]


def test_a_malformed_mark_is_no_mark():
    assert notices.mark(Told(**{MARK: "tomorrow"})) is None


class Waits:
    """Stands in for the wait between two looks: notes each, and ends the listening after so many."""

    def __init__(self, count):
        self.left, self.seconds = count, []

    def wait(self, seconds):
        self.seconds.append(seconds)
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize(("talk", "seconds"), [(Talk(), 5.0), (Talk(NOON, closed_at=NOON), 1.0)])
def test_behind_a_shut_door_it_looks_five_times_as_often(talk, seconds, monkeypatch):
    going, waits = Heard(Told()).going, Waits(1)
    going.talk, going._closed = talk, waits
    monkeypatch.setattr(going, "look", lambda: False)

    going._run(5.0)

    assert waits.seconds == [seconds] * 2


def test_a_silence_is_told_once_and_a_new_one_again(caplog, monkeypatch):
    going, waits = Heard(Told()).going, Waits(5)
    looks = iter([CloudError("no answer"), CloudError("no answer"), None, OSError("no file"), None])
    going._closed = waits

    def look():
        if error := next(looks):
            raise error
        return False

    monkeypatch.setattr(going, "look", look)

    going._run(5.0)

    assert [one.getMessage() for one in caplog.records] == [
        "event=no-word reason='no answer'",
        "event=no-word reason='no file'",
    ]


def test_listening_that_never_began_is_closed_without_waiting():
    Heard(Told()).going.close()

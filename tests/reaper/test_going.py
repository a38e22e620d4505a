"""The thread that listens for the end of the machine, and the metadata that it hears."""

import json
import threading
from datetime import timedelta

import pytest

from image.reaper.agent import notices
from image.reaper.agent.going import Answers, Going, show_all
from image.reaper.agent.keep_folder import Saved
from image.reaper.agent.notices import Notice
from image.reaper.errors import CloudError
from image.reaper.times import format_time
from tests.reaper.samples import NOON

MARK = "tags/instance/gpu-fleet:reap-after"


class Told:
    """A metadata service as a table."""

    def __init__(self, **answers):
        self.answers = answers

    def get(self, path):
        return self.answers.get(path)


class Heard:
    """What the machine did about it."""

    def __init__(self, metadata, saving_fails=False):
        self.now = NOON
        self.events = []
        self.saving_fails = saving_fails
        told_by = notices.FromMetadata(metadata)
        self.going = Going(told_by, Answers(self.drain, self.save, self.tell), lambda: self.now)

    def drain(self, notice):
        self.events.append(notice.reason)
        return self

    def run(self, find):
        self.events.append("drained")

    def save(self):
        if self.saving_fails:
            raise CloudError("AccessDenied")
        self.events.append("saved")
        return Saved(1, 1, 0)

    def tell(self, message):
        self.events.append(message.split(".")[0])


def marked(reap_after):
    return Told(**{MARK: format_time(reap_after)})


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


def test_a_mark_is_told_to_people_once():
    heard = Heard(marked(NOON + timedelta(hours=1)))

    heard.going.look()
    heard.going.look()

    assert heard.events == ["This machine is idle and goes after 2026-11-21 13:00 UTC"]
    assert heard.going.acknowledged_for(heard.now) is None


def test_a_mark_whose_time_has_come_is_acknowledged_once_everything_is_saved():
    heard = Heard(marked(NOON))

    heard.going.look()
    heard.going.look()

    assert heard.events[1:] == ["saved"]
    assert heard.going.acknowledged_for(NOON) == NOON


def test_the_minute_of_the_copy_itself_acknowledges_nothing():
    heard = Heard(marked(NOON))
    heard.going.look()

    assert heard.going.acknowledged_for(NOON - timedelta(seconds=1)) is None


def test_what_cannot_be_saved_is_not_acknowledged_and_tried_again():
    heard = Heard(marked(NOON), saving_fails=True)
    heard.going.look()
    assert heard.going.acknowledged_for(heard.now) is None
    heard.saving_fails = False

    heard.going.look()

    assert heard.going.acknowledged_for(NOON) == NOON


def test_what_is_kept_is_saved_again_while_a_marked_machine_waits_for_its_end():
    """Quiet hours may last a weekend, and a slow log written meanwhile is no sign of use."""
    heard = Heard(marked(NOON))
    heard.going.look()
    heard.now = NOON + timedelta(minutes=5)

    heard.going.look()

    assert heard.events.count("saved") == 2
    assert heard.going.acknowledged_for(NOON + timedelta(minutes=4)) is None
    assert heard.going.acknowledged_for(heard.now) == NOON


def test_what_can_be_saved_no_longer_is_acknowledged_no_longer():
    heard = Heard(marked(NOON))
    heard.going.look()
    heard.now, heard.saving_fails = NOON + timedelta(minutes=5), True

    heard.going.look()

    assert heard.going.acknowledged_for(heard.now) is None


def test_a_mistake_is_told_and_the_next_word_is_heard(caplog, monkeypatch):
    heard = Heard(Told(**{notices.LIFECYCLE_STATE: "Terminated"}))
    drains = iter([OSError("Input/output error"), None])

    def run(find):
        if error := next(drains):
            raise error
        drained.set()

    drained = threading.Event()
    monkeypatch.setattr(heard, "run", run)

    heard.going.start(0.0)

    assert drained.wait(30)
    assert "event=listening-failed" in caplog.text


def test_a_mark_taken_away_takes_the_acknowledgement_with_it():
    metadata = marked(NOON)
    heard = Heard(metadata)
    heard.going.look()
    metadata.answers.clear()

    heard.going.look()

    assert heard.going.acknowledged_for(heard.now) is None


def test_a_newer_mark_is_saved_for_anew():
    metadata = marked(NOON)
    heard = Heard(metadata)
    heard.going.look()
    metadata.answers[MARK] = format_time(NOON + timedelta(hours=2))
    heard.going.look()
    assert heard.going.acknowledged_for(heard.now) is None
    heard.now = NOON + timedelta(hours=2)

    heard.going.look()

    assert heard.events.count("saved") == 2
    assert heard.going.acknowledged_for(heard.now) == heard.now


def test_a_malformed_mark_is_no_mark():
    assert notices.mark(Told(**{MARK: "tomorrow"})) is None


def test_a_message_reaches_the_log_also_where_no_terminal_can_be_written_to(caplog, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")

    show_all("going")

    assert "event=wall message='going'" in caplog.text
    assert "event=wall-failed" in caplog.text

"""The thread that listens for the end of the instance, and the metadata that it hears."""

import errno
import json
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from image.instance import instance_file
from image.reaper.agent import listening, notices
from image.reaper.agent.answers import Act, Seen, Talk, View
from image.reaper.agent.listening import CLOSED, Answers, Door, NoticeListener, Senses, Target, answers
from image.reaper.agent.notices import Notice
from image.reaper.agent.sensors.counters import OwnUse
from image.reaper.errors import CloudError
from image.reaper.handshake import Reply, Winner
from tests.reaper.instance_toml import INSTANCE_TOML
from tests.reaper.samples import NOON

NOWHERE = Path("/nowhere/closed")
MARK = "tags/instance/gpu-fleet:reap-after"


class MetadataOf:
    """A metadata service as a table."""

    def __init__(self, **answers):
        self.answers = answers

    def get(self, path):
        return self.answers.get(path)


class Heard:
    """What the instance did about it."""

    def __init__(self, metadata, door=Door(NOWHERE, NOWHERE)):  # noqa: B008 - it holds nothing
        self.events, self.lowered, self.now = [], [], NOON
        source = notices.FromMetadata(metadata, lambda: self.now)
        withdrawn = lambda: self.events.append("withdrawn")  # noqa: E731 - one expression
        nothing = Answers(self.drain, None, self.events.append, None, self.store, None, self, door, withdrawn)
        self.notice_listener = NoticeListener(source, nothing, lambda: self.now)

    def store(self):
        """The records, which do not answer."""
        raise CloudError("no answer")

    def lower_but(self, mark):
        """As the fence."""
        self.lowered.append(mark)

    def raise_for(self, mark):
        """As the fence."""
        self.events.append("fence")

    def drain(self, notice):
        self.events.append(notice.reason)
        return self

    def run(self, find):
        self.events.append("drained")


def test_no_word_is_no_notice():
    assert notices.find(MetadataOf()) is None


def test_an_instance_in_service_stays():
    assert notices.find(MetadataOf(**{notices.LIFECYCLE_STATE: "InService"})) is None


def test_an_instance_that_its_group_terminates_is_drained():
    assert notices.find(MetadataOf(**{notices.LIFECYCLE_STATE: "Terminated\n"})) == Notice(
        "the scaling group terminates this instance"
    )


def test_a_spot_notice_says_until_when():
    text = json.dumps({"action": "terminate", "time": "2026-11-21T12:02:00Z"})

    notice = notices.find(MetadataOf(**{notices.SPOT_ACTION: text, notices.LIFECYCLE_STATE: "Terminated"}))

    assert notice == Notice("spot interruption of this instance: terminate", NOON + timedelta(minutes=2))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"action": "stop", "time": "soon"}'])
def test_a_spot_notice_that_cannot_be_read_is_reported(text):
    with pytest.raises(CloudError, match=r"spot/instance-action.*cannot be read"):
        notices.find(MetadataOf(**{notices.SPOT_ACTION: text}))


def test_a_notice_drains_and_ends_the_listening():
    heard = Heard(MetadataOf(**{notices.LIFECYCLE_STATE: "Terminated"}))

    assert heard.notice_listener.look()
    assert heard.events == ["the scaling group terminates this instance", "drained"]


def test_what_an_earlier_mark_left_is_lowered_once_and_once_no_sweep_acts_on_that_mark():
    """A sweep that read the mark in time may still be on its way to end the instance."""
    metadata = MetadataOf(**{MARK: (NOON + timedelta(hours=1)).isoformat()})
    heard = Heard(metadata)

    heard.notice_listener.look()
    heard.now += timedelta(seconds=119)
    heard.notice_listener.look()
    assert heard.lowered == []
    heard.now += timedelta(seconds=1)
    heard.notice_listener.look()
    heard.notice_listener.look()
    assert heard.lowered == [NOON + timedelta(hours=1)], "what is this mark's stays"

    del metadata.answers[MARK]
    heard.notice_listener.look()
    assert heard.lowered == [NOON + timedelta(hours=1)], "its mark is gone since a moment"
    heard.now += timedelta(seconds=120)
    heard.notice_listener.look()
    assert heard.lowered == [NOON + timedelta(hours=1), None]


def test_a_mistake_is_reported_and_the_next_word_is_heard(caplog, monkeypatch):
    heard = Heard(MetadataOf(**{notices.LIFECYCLE_STATE: "Terminated"}))
    drains = iter([ValueError("a mistake"), None])

    def run(find):
        if error := next(drains):
            raise error
        drained.set()

    drained = threading.Event()
    monkeypatch.setattr(heard, "run", run)

    heard.notice_listener.start(0.0)

    assert drained.wait(120)
    assert "event=listening-failed" in caplog.text


def test_a_notice_is_withdrawn_with_its_mark_and_once():
    heard = Heard(MetadataOf())
    heard.notice_listener.talk = Talk(NOON, notified=True)

    heard.notice_listener.look()
    heard.notice_listener.look()

    assert heard.events == ["withdrawn"]


def test_a_first_mark_is_shown_and_withdraws_nothing():
    heard = Heard(MetadataOf(**{MARK: (NOON + timedelta(minutes=20)).isoformat()}))

    heard.notice_listener.look()

    (shown,) = heard.events
    assert "is terminated or stopped after 2026-11-21 12:20 UTC" in shown


def test_an_agent_that_starts_behind_a_shut_door_leaves_it_shut_while_there_is_a_mark(tmp_path):
    door = Door(tmp_path / "closed", tmp_path / "nologin")
    door.shut("closing")
    notice_listener = Heard(MetadataOf(), door).notice_listener

    notice_listener._take_up(NOON - timedelta(minutes=1))

    assert door.is_shut
    assert notice_listener.talk.closed_at == NOON


@pytest.mark.parametrize("there", [{}, {MARK: (NOON + timedelta(hours=1)).isoformat()}])
def test_a_door_that_was_shut_for_another_mark_is_opened_before_anything_is_said_behind_it(tmp_path, there):
    door = Door(tmp_path / "closed", tmp_path / "nologin")
    heard = Heard(MetadataOf(**there), door)
    door.shut(CLOSED)
    before = NOON - timedelta(hours=1)
    heard.notice_listener.talk = Talk(before, decision=Winner.END, closed_at=NOON)

    with suppress(CloudError):  # its refusal is tried again
        heard.notice_listener.look()

    assert not door.is_shut
    assert heard.events[:2] == [listening.OPEN_AGAIN, "fence"]


def test_a_mark_that_was_never_shown_is_not_withdrawn():
    heard = Heard(MetadataOf())
    heard.notice_listener.talk = Talk(NOON)

    heard.notice_listener.look()

    assert heard.events == []


def test_use_is_reported_once_for_each_stretch_of_it_and_looks_are_not(caplog, monkeypatch):
    caplog.set_level("INFO")
    notice_listener = Heard(MetadataOf(**{MARK: NOON.isoformat()})).notice_listener
    looks = iter([Seen(("cpu",)), Seen(("cpu",)), Seen((), ("gpu: lost",)), Seen(), Seen(("cpu",))])
    answers = replace(notice_listener._answers, look=lambda _: next(looks))
    monkeypatch.setattr(notice_listener, "_answers", answers)
    notice_listener.talk = Talk(NOON, notified=True)

    in_a_row = []
    for _ in range(5):
        notice_listener._do(Act.LOOK, View(NOON, NOON, "", notice_listener.talk))
        in_a_row.append(notice_listener.talk.busy_looks)

    assert in_a_row == [1, 2, 3, 0, 1]
    assert [record.getMessage() for record in caplog.records] == [
        "event=in-use mark=2026-11-21 12:00:00+00:00 why='cpu'"
    ] * 2


def test_a_malformed_mark_is_no_mark():
    assert notices.mark(MetadataOf(**{MARK: "tomorrow"})) is None


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
    notice_listener, waits = Heard(MetadataOf()).notice_listener, Waits(1)
    notice_listener.talk, notice_listener._closed = talk, waits
    monkeypatch.setattr(notice_listener, "look", lambda: False)

    notice_listener._run(5.0)

    assert waits.seconds == [seconds] * 2


def test_a_silence_is_reported_once_and_a_new_one_again(caplog, monkeypatch):
    notice_listener, waits = Heard(MetadataOf()).notice_listener, Waits(5)
    looks = iter([CloudError("no answer"), CloudError("no answer"), None, OSError("no file"), None])
    notice_listener._closed = waits

    def look():
        if error := next(looks):
            raise error
        return False

    monkeypatch.setattr(notice_listener, "look", look)

    notice_listener._run(5.0)

    assert [record.getMessage() for record in caplog.records] == [
        "event=no-word reason='no answer'",
        "event=no-word reason='no file'",
    ]


def test_listening_that_never_began_is_closed_without_waiting():
    Heard(MetadataOf()).notice_listener.close()


def test_a_refusal_that_cannot_be_written_is_reported_once_and_tried_until_it_is(caplog, monkeypatch):
    notice_listener, said = (
        Heard(MetadataOf()).notice_listener,
        iter([CloudError("no answer"), CloudError("no answer"), None]),
    )
    notice_listener.talk = Talk(NOON, fenced=True)

    def say(reply, **more):
        if error := next(said):
            raise error

    monkeypatch.setattr(notice_listener, "_say", say)

    for over in (False, False, True):
        with suppress(CloudError):
            notice_listener._refuse("in use")
        assert notice_listener.talk.over is over

    assert [record.getMessage() for record in caplog.records] == [
        "event=refused mark=2026-11-21 12:00:00+00:00 reason='in use'"
    ]


@pytest.mark.parametrize(
    ("until", "held"),
    [(None, False), (NOON - timedelta(minutes=1), False), (NOON + timedelta(minutes=1), True)],
)
def test_a_hold_holds_until_it_is_over(until, held):
    tags = {} if until is None else {"tags/instance/gpu-fleet:keep-until": until.isoformat()}

    assert bool(notices.hold(MetadataOf(**tags), NOON)) is held


@pytest.mark.parametrize(
    ("hook", "ends_at", "waits"),
    [("gpu-fleet-drain", None, True), ("", None, False), ("gpu-fleet-drain", NOON, False)],
)
def test_only_the_group_s_hook_is_asked_for_time(hook, ends_at, waits, tmp_path):
    """The spot market waits for nobody, and an instance of no group has no hook."""

    class Cloud:
        """As far as answers are made of it."""

        def hook(self, instance_id):
            return f"hook of {instance_id}"

        def fence(self, instance_id):
            return None

        def store(self):
            return None

        def caller(self, instance_id):
            return instance_id

    (tmp_path / "instance.toml").write_text(INSTANCE_TOML)
    target = Target(replace(instance_file.load(tmp_path / "instance.toml"), lifecycle_hook=hook), "i-1")
    made = answers(Cloud(), target, Path("keep"), Senses(list, OwnUse(), None))

    drain = made.drain(Notice("it goes", ends_at))

    assert drain._steps.hook == ("hook of i-1" if waits else None)


def test_the_copy_of_what_users_keep_is_the_agent_s_own_use_of_the_network(tmp_path):
    """Were it taken for somebody's, no instance with files to keep would ever be terminated."""
    own, copied = OwnUse(), []

    class Cloud:
        """As far as a copy is made with it."""

        def bucket(self):
            copied.append(own.copied_since_asked())
            raise CloudError("no answer")

        def fence(self, instance_id):
            return None

        def store(self):
            return None

        def caller(self, instance_id):
            return instance_id

    (tmp_path / "instance.toml").write_text(INSTANCE_TOML)
    target = Target(instance_file.load(tmp_path / "instance.toml"), "i-1")
    made = answers(Cloud(), target, tmp_path, Senses(list, own, None))

    with pytest.raises(CloudError):
        made.save()

    assert copied == [True]


# the door


@pytest.fixture
def door(tmp_path):
    (tmp_path / "run").mkdir()
    return Door(tmp_path / "run/closed", tmp_path / "nologin")


def test_a_door_shuts_and_opens_both_files(door, tmp_path):
    door.shut("not now")
    assert (tmp_path / "nologin").read_text() == (tmp_path / "run/closed").read_text() == "not now\n"

    door.open()

    assert not door.is_shut
    assert not (tmp_path / "nologin").exists()


@pytest.mark.parametrize("full", ["closed", "nologin"])
def test_a_door_that_shuts_half_way_is_opened_again(door, tmp_path, monkeypatch, full):
    def write(path, text):
        if path.name == full:
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_text(text)

    monkeypatch.setattr(listening, "replace_text", write)

    with pytest.raises(OSError, match="No space left"):
        door.shut("not now")

    assert not door.is_shut
    assert not (tmp_path / "nologin").exists()


def test_a_door_that_opens_half_way_is_known_as_the_agent_s_own(door, tmp_path, monkeypatch):
    """The agent's own file goes last: a ``nologin`` of another version's text would be an administrator's."""
    removed, unlink = [], Path.unlink

    def remove(path, **more):
        removed.append(path.name)
        unlink(path, **more)

    door.shut("another version's text")
    monkeypatch.setattr(Path, "unlink", remove)
    door.open()

    assert removed == ["nologin", "closed"]


@pytest.mark.parametrize("is_shut_before", [False, True])
def test_what_an_administrator_wrote_refuses_no_jobs_and_stays(door, tmp_path, is_shut_before):
    (tmp_path / "nologin").write_text("maintenance until noon\n")
    assert not door.is_shut, "an agent that starts would open it"
    if is_shut_before:
        door.shut("not now")

    door.open()

    assert (tmp_path / "nologin").read_text() == "maintenance until noon\n"


def test_a_door_shut_again_is_whole_again(door, tmp_path):
    (tmp_path / "nologin").write_text("maintenance until noon\n")
    door.shut("not now")
    (tmp_path / "nologin").unlink()

    door.shut("not now")
    door.open()

    assert not door.is_shut
    assert not (tmp_path / "nologin").exists()


def test_a_door_of_which_the_agent_s_own_file_was_removed_is_opened_all_the_same(door, tmp_path):
    """By an administrator who lets jobs in; log-ins would be refused for good."""
    door.shut(CLOSED)
    (tmp_path / "run/closed").unlink()
    assert door.is_shut, "an agent that starts leaves it as it is"

    door.open()

    assert not door.is_shut
    assert not (tmp_path / "nologin").exists()


def test_a_mark_is_refused_by_the_fence_before_it_is_by_a_reply(monkeypatch):
    """The reply takes the mark away, and a sweep that has not heard it may be about to end the instance."""
    heard = Heard(MetadataOf())
    heard.notice_listener.talk = Talk(NOON)

    class Exchange:
        """Where replies go."""

        def say(self, reply, **more):
            heard.events.append(reply)

    monkeypatch.setattr(heard.notice_listener, "_exchange", Exchange)

    heard.notice_listener._refuse("used")

    assert heard.events == ["fence", Reply.REFUSED]


def test_a_door_that_cannot_be_shut_again_ends_the_mark_and_says_nothing_else(door, monkeypatch):
    notice_listener, said = Heard(MetadataOf(), door).notice_listener, []
    notice_listener.talk = Talk(NOON, fenced=True, closed_at=NOON)

    def fail(message):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Exchange:
        """Where words go."""

        def say(self, reply, **more):
            said.append((reply, more))

    monkeypatch.setattr(door, "shut", fail)
    monkeypatch.setattr(notice_listener, "_exchange", Exchange)

    notice_listener._say(Reply.CLOSED)

    reason = "log-ins and jobs cannot be refused: [Errno 28] No space left on device"
    assert said == [(Reply.REFUSED, {"reason": reason})]
    assert notice_listener.talk.over

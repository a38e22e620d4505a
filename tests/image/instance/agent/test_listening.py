"""The thread that listens for the end of the instance, and the metadata that it reads."""

import errno
import json
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpu_fleet_image.core import instance_file
from gpu_fleet_image.core.handshake import Reply, Winner
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent import listening, notices
from gpu_fleet_image.instance.agent.answers import Act, Seen, Talk, View
from gpu_fleet_image.instance.agent.listening import (
    CLOSED,
    Answers,
    Door,
    NoticeListener,
    Senses,
    Target,
    answers,
)
from gpu_fleet_image.instance.agent.notices import Notice
from gpu_fleet_image.instance.agent.sensors.counters import OwnUse
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.samples import NOON

NOWHERE = Path("/nowhere/closed")
MARK = "tags/instance/gpu-fleet:reap-after"


def metadata_of(**answers):
    return Mock(answers=answers, get=answers.get)


class Heard:
    """Record of the instance's actions, as drain, fence and answers."""

    def __init__(self, door=Door(NOWHERE, NOWHERE), talk=None, **metadata):  # noqa: B008 - it holds nothing
        self.metadata, self.events, self.lowered, self.now = metadata_of(**metadata), [], [], NOON
        source = notices.FromMetadata(self.metadata, lambda: self.now)
        withdrawn = partial(self.events.append, "withdrawn")
        nothing = Answers(self.drain, None, self.events.append, None, self.store, None, self, door, withdrawn)
        self.notice_listener = NoticeListener(source, nothing, lambda: self.now)
        if talk is not None:
            self.notice_listener.talk = talk
        self.poll = self.notice_listener.poll

    def store(self):
        raise CloudError("no answer")

    def lower_but(self, mark):
        self.lowered.append(mark)

    def raise_for(self, mark):
        self.events.append("fence")

    def drain(self, notice):
        self.events.append(notice.reason)
        return self

    def run(self, find):
        self.events.append("drained")


@pytest.fixture
def door(tmp_path):
    (tmp_path / "run").mkdir()
    return Door(tmp_path / "run/closed", tmp_path / "nologin")


SPOT = json.dumps({"action": "terminate", "time": "2026-11-21T12:02:00Z"})
LEAVING = {notices.LIFECYCLE_STATE: "Terminated\n"}
BY_GROUP = Notice("the scaling group terminates this instance")


def test_a_notice_is_what_spot_market_or_group_say_of_the_end_the_first_of_them_until_when():
    by_market = Notice("spot interruption of this instance: terminate", NOON + timedelta(minutes=2))
    found = {
        (): None,
        ((notices.LIFECYCLE_STATE, "InService"),): None,
        (*LEAVING.items(),): BY_GROUP,
        ((notices.SPOT_ACTION, SPOT), *LEAVING.items()): by_market,
    }

    assert {said: notices.find(metadata_of(**dict(said))) for said in found} == found
    for text in ("", "{}", "[]", '{"action": "stop", "time": "soon"}'):
        with pytest.raises(CloudError, match=r"spot/instance-action.*cannot be read"):
            notices.find(metadata_of(**{notices.SPOT_ACTION: text}))


def test_a_hold_holds_until_it_is_over_and_a_malformed_mark_is_none():
    def held(until):
        return bool(notices.hold(metadata_of(**{"tags/instance/gpu-fleet:keep-until": until}), NOON))

    ends = (None, (NOON - timedelta(minutes=1)).isoformat(), (NOON + timedelta(minutes=1)).isoformat())
    assert [held(until) for until in ends] == [False, False, True]
    assert notices.mark(metadata_of(**{MARK: "tomorrow"})) is None


def test_a_notice_drains_and_ends_the_listening():
    heard = Heard(**LEAVING)

    assert heard.poll()
    assert heard.events == [BY_GROUP.reason, "drained"]


def test_what_an_earlier_mark_left_is_lowered_once_and_once_no_sweep_acts_on_that_mark():
    """A sweep that read the mark in time may still be about to end the instance."""
    heard = Heard(**{MARK: (NOON + timedelta(hours=1)).isoformat()})

    heard.poll()
    heard.now += timedelta(seconds=119)
    heard.poll()
    assert heard.lowered == []
    heard.now += timedelta(seconds=1)
    heard.poll()
    heard.poll()
    assert heard.lowered == [NOON + timedelta(hours=1)], "what is this mark's stays"

    del heard.metadata.answers[MARK]
    heard.poll()
    assert heard.lowered == [NOON + timedelta(hours=1)], "its mark is gone since a moment"
    heard.now += timedelta(seconds=120)
    heard.poll()
    assert heard.lowered == [NOON + timedelta(hours=1), None]


def test_a_mistake_is_reported_and_the_next_word_is_heard(caplog):
    heard, drained = Heard(**LEAVING), threading.Event()

    def run(_find):
        heard.run = lambda _find: drained.set()
        raise ValueError("a mistake")

    heard.run = run

    heard.notice_listener.start(0.0)

    assert drained.wait(120)
    assert "event=listening-failed" in caplog.text


def test_a_first_mark_is_shown_and_withdrawn_with_it_once_if_it_was_shown():
    shown, never_shown = Heard(**{MARK: (NOON + timedelta(minutes=20)).isoformat()}), Heard(talk=Talk(NOON))

    shown.poll()
    del shown.metadata.answers[MARK]
    for heard in (shown, shown, never_shown):
        heard.poll()

    notice, withdrawn = shown.events
    assert "is terminated or stopped after 2026-11-21 12:20 UTC" in notice
    assert (withdrawn, never_shown.events) == ("withdrawn", [])


@pytest.mark.parametrize("there", [{}, {MARK: (NOON + timedelta(hours=1)).isoformat()}])
def test_a_door_that_was_shut_for_another_mark_is_opened_before_anything_is_said_behind_it(door, there):
    door.shut(CLOSED)
    heard = Heard(door, Talk(NOON - timedelta(hours=1), decision=Winner.END, closed_at=NOON), **there)

    with suppress(CloudError):  # its refusal is tried again
        heard.poll()

    assert not door.is_shut
    assert heard.events[:2] == [listening.OPEN_AGAIN, "fence"]


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def test_use_is_reported_once_for_each_stretch_of_it_and_looks_are_not(caplog, monkeypatch):
    caplog.set_level("INFO")
    notice_listener = Heard(talk=Talk(NOON, notified=True)).notice_listener
    looks = iter([Seen(("cpu",)), Seen(("cpu",)), Seen((), ("gpu: lost",)), Seen(), Seen(("cpu",))])
    answers = replace(notice_listener._answers, poll=lambda _: next(looks))
    monkeypatch.setattr(notice_listener, "_answers", answers)

    in_a_row = []
    for _ in range(5):
        notice_listener._do(Act.LOOK, View(NOON, NOON, "", notice_listener.talk))
        in_a_row.append(notice_listener.talk.busy_looks)

    assert in_a_row == [1, 2, 3, 0, 1]
    assert messages(caplog) == ["event=in-use mark=2026-11-21 12:00:00+00:00 why='cpu'"] * 2


def looked(notice_listener, *looks):
    """Return the waits of a thread that listens for these polls."""
    ends = [False] * len(looks) + [True]
    notice_listener._closed = Mock(wait=Mock(side_effect=ends))
    notice_listener.poll = Mock(side_effect=looks)
    notice_listener._run(5.0)
    return [call.args[0] for call in notice_listener._closed.wait.call_args_list]


def test_behind_a_shut_door_it_looks_five_times_as_often():
    waits = [looked(Heard(talk=talk).notice_listener, False) for talk in (Talk(), Talk(NOON, closed_at=NOON))]

    assert waits == [[5.0] * 2, [1.0] * 2]


def test_a_silence_is_reported_once_and_a_new_one_again(caplog):
    silent = CloudError("no answer")

    looked(Heard().notice_listener, silent, silent, False, OSError("no file"), False)

    assert messages(caplog) == ["event=no-word reason='no answer'", "event=no-word reason='no file'"]


def test_listening_that_never_began_is_closed_without_waiting():
    Heard().notice_listener.close()


@pytest.fixture
def made(tmp_path):
    """Return a function that makes the answers of an instance, with a silent cloud."""

    def make(own=None, bucket=None, **changes):
        cloud = Mock(hook="hook of {}".format, bucket=bucket)
        (tmp_path / "instance.toml").write_text(INSTANCE_TOML)
        target = Target(replace(instance_file.load(tmp_path / "instance.toml"), **changes), "i-1")
        return answers(cloud, target, tmp_path, Senses(list, own or OwnUse(), None))

    return make


def test_only_the_group_s_hook_is_asked_for_time(made):
    """The spot market does not wait, and an instance of no group has no hook."""
    asked = {("gpu-fleet-drain", None): "hook of i-1", ("", None): None, ("gpu-fleet-drain", NOON): None}

    def hook(name, ends_at):
        return made(lifecycle_hook=name).drain(Notice("it goes", ends_at))._steps.hook

    assert {given: hook(*given) for given in asked} == asked


def test_the_copy_of_what_users_keep_is_the_agent_s_own_use_of_the_network(made):
    """Counted as a user's, it would keep every instance with files to keep for ever."""
    own, copied = OwnUse(), []

    def bucket():
        copied.append(own.copied_since_asked())
        raise CloudError("no answer")

    with pytest.raises(CloudError):
        made(own, bucket).save()

    assert copied == [True]


def files(tmp_path):
    """Return the files that now refuse log-ins and jobs."""
    return {path.name: path.read_text() for path in (*tmp_path.glob("nologin"), *tmp_path.glob("run/*"))}


def test_a_door_that_opens_half_way_is_known_as_the_agent_s_own(door, monkeypatch):
    """The agent's own file is removed last: a ``nologin`` with another text would be an administrator's."""
    removed, unlink = [], Path.unlink

    def remove(path, **more):
        removed.append(path.name)
        unlink(path, **more)

    door.shut("another version's text")
    monkeypatch.setattr(Path, "unlink", remove)
    door.open()

    assert removed == ["nologin", "closed"]


def test_what_an_administrator_wrote_refuses_no_jobs_and_stays(door, tmp_path):
    (tmp_path / "nologin").write_text("maintenance until noon\n")
    assert not door.is_shut, "an agent that starts would open it"

    for act in (door.open, partial(door.shut, "not now"), door.open):
        act()

    assert files(tmp_path) == {"nologin": "maintenance until noon\n"}


@pytest.mark.parametrize("removed", ["nologin", "run/closed"])
def test_a_door_is_two_files_and_shut_again_whole_and_opened_whichever_an_administrator_removed(
    door, tmp_path, removed
):
    """One may be removed to admit jobs, or an administrator's own; otherwise it would stay shut for ever."""
    door.shut(CLOSED)
    assert files(tmp_path) == {"nologin": f"{CLOSED}\n", "closed": f"{CLOSED}\n"}
    (tmp_path / removed).unlink()
    assert door.is_shut, "an agent that starts leaves it as it is"

    door.open()
    assert (door.is_shut, files(tmp_path)) == (False, {})
    door.shut(CLOSED)
    (tmp_path / removed).unlink()
    door.shut(CLOSED)

    assert len(files(tmp_path)) == 2


def test_a_mark_is_refused_by_the_fence_before_it_is_by_a_reply():
    """The reply removes the mark, and a sweep that has not read it may be about to end the instance."""
    heard = Heard(talk=Talk(NOON))
    exchange = Mock(say=lambda reply, **_more: heard.events.append(reply))
    heard.notice_listener._exchange = lambda: exchange

    heard.notice_listener._refuse("used")

    assert heard.events == ["fence", Reply.REFUSED]


def test_a_door_that_cannot_be_shut_again_ends_the_mark_and_says_nothing_else(door, monkeypatch):
    notice_listener = Heard(door, Talk(NOON, fenced=True, closed_at=NOON)).notice_listener
    full, exchange = OSError(errno.ENOSPC, "No space left on device"), Mock()
    monkeypatch.setattr(door, "shut", Mock(side_effect=full))
    notice_listener._exchange = lambda: exchange

    notice_listener._say(Reply.CLOSED)

    reason = "log-ins and jobs cannot be refused: [Errno 28] No space left on device"
    exchange.say.assert_called_once_with(Reply.REFUSED, reason=reason)
    assert notice_listener.talk.over

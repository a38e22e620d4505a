"""Sent once, in order, again until it is taken; and where to go on after a restart."""

import logging
from types import SimpleNamespace

import pytest

from gpu_fleet_image.instance.logs.buffer import BatchLimits, LineBuffer, SizedLine
from gpu_fleet_image.instance.logs.lines import Line
from gpu_fleet_image.instance.logs.service import LinesNotTakenError, LinesRefusedError
from gpu_fleet_image.instance.logs.shipper import KEEP_S, LONGEST_WAIT_S, CursorFile, Shipper


class Played:
    """A shipper over so many lines, with a clock that only counts.

    Its service takes lines, unless an error is up next.
    """

    def __init__(self, folder, *answers, lines=4, stops_after_waits=10**6):
        self.answers, self.taken, self.waits, self.now_s = list(answers), [], [], 0.0
        self.buffer, self.cursor = LineBuffer(), CursorFile(folder)
        for number in range(lines):
            line = Line(number, "gpu-ready.service", "6", "1", f"line {number}", f"s=1;i={number}")
            self.buffer.add(SizedLine(line, 10))
        limits = BatchLimits(lines=2, content_bytes=1000, span_us=10**12)
        service = SimpleNamespace(limits=limits, size=lambda line: len(line.text), send=self.send)
        stops = lambda: len(self.waits) >= stops_after_waits  # noqa: E731 - one expression
        waits = self.waits.append
        self.shipper = Shipper(service, self.buffer, self.cursor, stops, waits, now=lambda: self.now_s)

    def send(self, lines):
        answer = self.answers.pop(0) if self.answers else 0
        if isinstance(answer, Exception):
            raise answer
        self.taken.append([line.text for line in lines])
        return answer


def throttled():
    return LinesNotTakenError("ThrottlingException")


@pytest.mark.parametrize("send", [Shipper.send_waiting, Shipper.run], ids=["now", "at the end"])
def test_all_that_waits_is_sent_in_order_and_the_last_cursor_kept(tmp_path, send):
    played = Played(tmp_path, stops_after_waits=0)

    send(played.shipper)

    assert played.taken == [["line 0", "line 1"], ["line 2", "line 3"]]
    assert played.cursor.read() == "s=1;i=3"
    assert played.waits == []


def test_what_was_not_taken_is_sent_again_after_waits_that_grow_to_a_limit_and_said_twice(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    played = Played(tmp_path, *(throttled() for _ in range(40)), lines=2)

    played.shipper.send_waiting()

    assert played.taken == [["line 0", "line 1"]]
    assert len(played.waits) == 40
    assert max(played.waits[:2]) <= 4
    assert max(played.waits) <= LONGEST_WAIT_S
    assert len(set(played.waits)) > 30  # by chance: instances that were refused at once come back apart
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["event=lines-not-taken", "event=lines-taken-again"]


@pytest.mark.parametrize("waits", [0, 1, 3])
def test_it_ends_soon_while_nothing_is_taken_and_the_cursor_stays(tmp_path, waits):
    """Nothing is sent after what was not taken at the end."""
    played = Played(tmp_path, *(throttled() for _ in range(waits + 1)), stops_after_waits=waits)

    assert played.shipper.run() is False
    assert len(played.waits) == waits
    assert played.taken == []
    assert played.cursor.read() == ""


def test_lines_that_will_never_be_taken_or_are_too_old_are_left_out_and_counted(tmp_path, caplog):
    played = Played(tmp_path, LinesRefusedError("InvalidParameterException"), 2)

    played.shipper.send_waiting()

    assert played.taken == [["line 2", "line 3"]]
    assert played.cursor.read() == "s=1;i=3"
    assert "event=lines-refused count=2" in caplog.text
    assert "event=lines-left-out count=2 reason=age" in caplog.text


@pytest.mark.parametrize("content", [b"", b"\xff\xfe"])
def test_a_damaged_cursor_is_none(tmp_path, content):
    (tmp_path / "cursor").write_bytes(content)

    assert CursorFile(tmp_path).read() == ""


def test_lines_go_on_where_the_cursor_cannot_be_kept(tmp_path, caplog):
    played = Played(tmp_path / "missing")

    played.shipper.send_waiting()

    assert len(played.taken) == 2
    assert "event=cursor-not-written" in caplog.text


def test_where_nothing_is_wanted_the_cursor_is_kept_from_time_to_time(tmp_path):
    played = Played(tmp_path, lines=0)
    kept = []
    for number in range(3):
        played.buffer.pass_over(f"s=1;i={number}")
        played.now_s += KEEP_S / 2
        played.shipper.send_waiting()
        kept.append(played.cursor.read())

    assert kept == ["", "s=1;i=1", "s=1;i=1"]


@pytest.mark.parametrize(("lines", "answers", "kept"), [(4, [], "s=1;i=9"), (2, [throttled()], "")])
def test_at_the_end_the_cursor_after_what_is_not_wanted_is_kept_but_not_beyond_a_line_not_taken(
    tmp_path, lines, answers, kept
):
    played = Played(tmp_path, *answers, lines=lines, stops_after_waits=0)
    played.buffer.pass_over("s=1;i=9")

    played.shipper.run()

    assert played.cursor.read() == kept


def test_a_batch_whose_cursor_is_not_known_leaves_the_one_before(tmp_path):
    played = Played(tmp_path, lines=0)
    played.cursor.write("s=1;i=1")
    played.buffer.add(SizedLine(Line(5, "gpu-ready.service", "6", "1", "no cursor"), 10))

    played.shipper.send_waiting()

    assert played.taken == [["no cursor"]]
    assert played.cursor.read() == "s=1;i=1"

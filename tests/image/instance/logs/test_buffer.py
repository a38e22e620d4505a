"""What waits to be sent: in order, in batches that a service takes, and never without a bound."""

from dataclasses import replace
from unittest.mock import Mock

from hypothesis import example, given
from hypothesis import strategies as st

from gpu_fleet_image.instance.logs.__main__ import read
from gpu_fleet_image.instance.logs.budget import (
    BURST_BYTES,
    BYTES_PER_MINUTE,
    MINUTE_US,
    MOST_UNITS,
    UnitBudget,
)
from gpu_fleet_image.instance.logs.buffer import LINE_BYTES, BatchLimits, LineBuffer, SizedLine
from gpu_fleet_image.instance.logs.lines import OWN_UNIT, Line

DAY_US = 24 * 3600 * 10**6
LIMITS = BatchLimits(lines=3, content_bytes=1000, span_us=DAY_US)


def sized(number, content_bytes=10, time_us=None):
    time_us = number if time_us is None else time_us
    return SizedLine(
        Line(time_us, "gpu-ready.service", "6", "1", f"line {number}", f"i={number}"), content_bytes
    )


def filled(*lines, most_bytes=10**6):
    buffer = LineBuffer(most_bytes)
    for line in lines:
        buffer.add(line)
    return buffer


def batches(buffer, limits=LIMITS):
    found = []
    while batch := buffer.take(limits):
        found.append(batch)
    return found


def texts(batch):
    return [line.text for line in batch.lines]


def test_lines_come_in_order_and_no_more_than_a_call_takes():
    by_count = batches(filled(*(sized(number) for number in range(7))))
    by_bytes = batches(filled(sized(0, 600), sized(1, 400), sized(2, 1)))

    lines = [f"line {number}" for number in range(7)]
    assert [texts(batch) for batch in by_count] == [lines[:3], lines[3:6], lines[6:]]
    assert [batch.cursor for batch in by_count] == ["i=2", "i=5", "i=6"]
    assert [len(batch.lines) for batch in by_bytes] == [2, 1]


def test_a_batch_is_sorted_by_time_and_its_cursor_is_of_what_was_read_last():
    (batch,) = batches(filled(sized(0, time_us=50), sized(1, time_us=20)))

    assert texts(batch) == ["line 1", "line 0"]
    assert batch.cursor == "i=1"


def test_where_nothing_is_taken_the_oldest_lines_go_and_are_counted_once():
    buffer = filled(*(sized(number) for number in range(10)), most_bytes=3 * (10 + LINE_BYTES))

    dropped, *lines = [line for batch in batches(buffer) for line in batch.lines]
    buffer.add(sized(10))

    assert dropped.unit == OWN_UNIT
    assert "event=lines-dropped count=7" in dropped.text
    assert [line.text for line in lines] == ["line 7", "line 8", "line 9"]
    assert [texts(batch) for batch in batches(buffer)] == [["line 10"]]


def test_it_waits_no_longer_once_a_batch_is_full_or_nothing_more_will_come():
    full, closed = filled(*(sized(number) for number in range(3))), filled(sized(0))
    closed.close()

    full.wait(LIMITS, 3600)
    closed.wait(LIMITS, 3600)


@given(st.lists(st.tuples(st.integers(1, 900), st.integers(0, 3 * DAY_US)), max_size=60))
@example([(1, 0), (1, DAY_US + 1)])
@example([(1, DAY_US + 1), (1, 0)])
def test_every_line_comes_once_within_the_limits(many):
    lines = [sized(number, size, time_us) for number, (size, time_us) in enumerate(many)]
    sizes = {line.line.text: line.content_bytes for line in lines}

    found = batches(filled(*lines))

    assert sorted(text for batch in found for text in texts(batch)) == sorted(sizes)
    for batch in found:
        times = [line.time_us for line in batch.lines]
        assert times == sorted(times)
        assert times[-1] - times[0] <= DAY_US
        assert sum(sizes[text] for text in texts(batch)) <= LIMITS.content_bytes
        assert len(batch.lines) <= LIMITS.lines


def test_what_is_passed_over_counts_once_no_line_waits_before_it_and_none_came_after_it():
    buffer = filled(sized(0))
    buffer.pass_over("i=1")
    waiting = buffer.passed()
    batches(buffer)
    sent = buffer.passed()
    buffer.add(sized(2))
    batches(buffer)

    assert (waiting, sent, buffer.passed()) == ("", "i=1", "")


def left_out(number):
    return replace(sized(number).line, unit="trainer@digits.service", time_us=number)


def test_lines_that_a_unit_wrote_beyond_its_budget_are_counted_where_others_come_or_none():
    alone, among = filled(), filled(sized(0))
    for number in range(1, 4):
        alone.leave_out(left_out(number))
        among.leave_out(left_out(number))

    (only,), (whole,) = batches(alone), batches(among)

    text = "event=lines-dropped count=3 reason='trainer@digits.service wrote more than is sent of one unit'"
    assert texts(only) == [text]
    assert sorted(texts(whole)) == [text, "line 0"]
    assert (only.lines[0].unit, only.cursor) == (OWN_UNIT, "i=3")
    assert whole.cursor == "i=0"


def test_units_that_wrote_too_much_are_never_more_lines_than_a_call_takes():
    """No cursor is known of a batch before whose end a line waits."""
    alone, among = filled(), filled(sized(0))
    for number in range(1, 8):
        line = replace(left_out(number), unit=f"trainer@{number}.service")
        alone.leave_out(line)
        if number < 4:
            among.leave_out(line)

    assert [len(batch.lines) for batch in batches(alone)] == [3, 3, 1]
    assert [batch.cursor for batch in batches(among)] == ["", "i=0"]


# what one unit may send: a burst, and so much a minute after it

UNIT, OTHER = "trainer@digits.service", "gpu-ready.service"


def spent():
    budget = UnitBudget()
    assert budget.takes(UNIT, 0, BURST_BYTES)
    return budget


def test_a_unit_sends_a_burst_and_each_minute_as_much_again_and_never_more_than_one_burst():
    budget, later = spent(), 10**6 * MINUTE_US

    assert not budget.takes(UNIT, 0, 1)
    assert budget.takes(OTHER, 0, BURST_BYTES), "another unit has its own"
    assert not budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE + 1)
    assert budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE)
    assert not budget.takes(UNIT, later, BURST_BYTES + 1)
    assert budget.takes(UNIT, later, BURST_BYTES)
    assert not budget.takes(UNIT, 0, 1), "a clock that is turned back gives nothing"
    assert budget.takes(UNIT, MINUTE_US, BYTES_PER_MINUTE), "and takes nothing"


def test_units_are_not_remembered_without_end():
    budget = spent()
    for number in range(MOST_UNITS):
        budget.takes(f"gpu-run@{number}.service", 0, BURST_BYTES)

    assert budget.takes(UNIT, 0, BURST_BYTES)
    assert not budget.takes(f"gpu-run@{MOST_UNITS - 1}.service", 0, 1)


def test_what_a_unit_writes_beyond_it_is_left_out_and_counted():
    limits = BatchLimits(lines=100, content_bytes=BURST_BYTES, span_us=MINUTE_US)
    service = Mock(limits=limits, size=lambda _line: BURST_BYTES // 4)
    entry = {"_SYSTEMD_UNIT": UNIT, "__REALTIME_TIMESTAMP": "7"}
    entries = [{**entry, "MESSAGE": f"line {number}", "__CURSOR": f"i={number}"} for number in range(10)]
    entries[9]["_SYSTEMD_UNIT"] = OTHER
    buffer, texts = LineBuffer(10 * BURST_BYTES), []

    read(Mock(entries=lambda: iter(entries)), buffer, service)

    while batch := buffer.take(limits):
        texts += [line.text for line in batch.lines]
    said = f"event=lines-dropped count=5 reason='{UNIT} wrote more than is sent of one unit'"
    assert sorted(texts) == sorted(["line 0", "line 1", "line 2", "line 3", "line 9", said])

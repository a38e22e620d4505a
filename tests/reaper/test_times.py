"""Times as people and tags write them; what no clock will ever show is a mistake, not a crash."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.reaper.model import Verdict
from image.reaper.sweep.verdict import decide
from image.reaper.times import parse_duration, parse_time
from tests.reaper.situations import alone, idle_history, machine

FOR_EVER = ("9999-12-31T23:59:59-08:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+05:00")


@pytest.mark.parametrize("text", FOR_EVER)
def test_a_time_that_no_clock_will_show_is_refused_like_any_other_mistake(text):
    with pytest.raises(ValueError, match="lies outside the years"):
        parse_time(text)


@given(st.datetimes(), st.timezones())
def test_every_time_is_read_or_refused(moment, zone):
    try:
        read = parse_time(moment.replace(tzinfo=zone).isoformat())
    except ValueError:
        return
    assert read.utcoffset() == timedelta(0)


@pytest.mark.parametrize("text", FOR_EVER[:2])
def test_a_hold_for_ever_keeps_its_machine_and_stops_no_sweep(text):
    (found,) = decide(
        alone(machine(tags={"gpu-fleet:keep-until": text}), idle_history(161).activity())
    ).decisions

    # Its mark is taken off, as with every hold.
    assert found.verdict in {Verdict.KEEP_HELD, Verdict.UNMARK}
    assert found.alert
    assert text in found.reason


@pytest.mark.parametrize("text", FOR_EVER)
@pytest.mark.parametrize("tag", ["gpu-fleet:idle-since", "gpu-fleet:reap-after"])
def test_a_mark_at_such_a_time_is_no_mark(tag, text):
    (found,) = decide(alone(machine(tags={tag: text}), idle_history(161).activity())).decisions

    assert found.verdict is Verdict.MARK


@pytest.mark.parametrize("unit", "mhd")
def test_a_duration_beyond_counting_is_a_very_long_one(unit):
    assert parse_duration(f"{'9' * 40}{unit}") == parse_duration(f"{'9' * 400}{unit}") > timedelta(days=365)

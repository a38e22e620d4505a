"""Times as users and tags write them; what no clock will ever show is a mistake, not a crash."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.reaper.errors import ConfigurationError
from image.reaper.model import Verdict
from image.reaper.policy import QuietHours
from image.reaper.sweep.verdict import decide
from image.reaper.times import format_span, is_quiet, parse_duration, parse_time
from tests.reaper.situations import alone, idle_history, make_instance

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
def test_a_hold_for_ever_keeps_its_instance_and_stops_no_sweep(text):
    (found,) = decide(
        alone(make_instance(tags={"gpu-fleet:keep-until": text}), idle_history(161).activity())
    ).decisions

    # Its mark is taken off, as with every hold.
    assert found.verdict in {Verdict.KEEP_HELD, Verdict.UNMARK}
    assert found.alert
    assert text in found.reason


@pytest.mark.parametrize("text", FOR_EVER)
@pytest.mark.parametrize("tag", ["gpu-fleet:idle-since", "gpu-fleet:reap-after"])
def test_a_mark_at_such_a_time_is_no_mark(tag, text):
    (found,) = decide(alone(make_instance(tags={tag: text}), idle_history(161).activity())).decisions

    assert found.verdict is Verdict.MARK


@pytest.mark.parametrize("unit", "mhd")
def test_a_duration_beyond_counting_is_a_very_long_one(unit):
    assert parse_duration(f"{'9' * 40}{unit}") == parse_duration(f"{'9' * 400}{unit}") > timedelta(days=365)


DAY, NIGHT, ALWAYS = QuietHours(9 * 60, 18 * 60), QuietHours(22 * 60, 6 * 60), QuietHours(8 * 60, 8 * 60)
SHANGHAI = ZoneInfo("Asia/Shanghai")


@pytest.mark.parametrize(
    ("span", "clock", "quiet"),
    [
        (DAY, "08:59", False),
        (DAY, "09:00", True),
        (DAY, "17:59", True),
        (DAY, "18:00", False),
        (NIGHT, "21:59", False),
        (NIGHT, "22:00", True),
        (NIGHT, "05:59", True),
        (NIGHT, "06:00", False),
        (ALWAYS, "08:00", True),
        (ALWAYS, "07:59", True),
    ],
)
def test_quiet_hours_go_by_the_wall_s_clock_from_their_start_to_before_their_end(span, clock, quiet):
    thursday = datetime.fromisoformat(f"2026-03-05T{clock}:30").replace(tzinfo=SHANGHAI)

    assert is_quiet(thursday, [span], SHANGHAI, weekends=False) is quiet
    assert is_quiet(thursday.astimezone(ZoneInfo("UTC")), [span], SHANGHAI, weekends=True) is quiet


@pytest.mark.parametrize(
    ("utc", "quiet"),
    [("2026-03-06T15:59", False), ("2026-03-06T16:00", True), ("2026-03-08T15:59", True)],
    ids=["friday", "saturday", "sunday"],
)
def test_a_quiet_weekend_is_the_wall_calendar_s(utc, quiet):
    now = datetime.fromisoformat(utc).replace(tzinfo=ZoneInfo("UTC"))

    assert is_quiet(now, [], SHANGHAI, weekends=True) is quiet
    assert is_quiet(now, [], SHANGHAI, weekends=False) is False


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(seconds=119), "119 s"),
        (timedelta(seconds=-30), "30 s"),
        (timedelta(minutes=2), "2 min"),
        (timedelta(minutes=119), "119 min"),
        (timedelta(hours=5, minutes=30), "5.5 h"),
        (timedelta(days=3, hours=5), "3.2 d"),
    ],
)
def test_a_span_is_shown_in_the_unit_that_suits_it(span, text):
    assert format_span(span) == text


@pytest.mark.parametrize("text", ["soon", "h", "0h", "0.0d", "-1h", ""])
def test_a_duration_that_is_none_is_refused(text):
    with pytest.raises(ConfigurationError, match="allowed"):
        parse_duration(text)

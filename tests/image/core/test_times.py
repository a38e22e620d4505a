"""Times as users and tags write them; an impossible time is a mistake, not a crash."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.controllers.sweep.idle_rules import is_quiet
from gpu_fleet_image.controllers.sweep.verdict import decide
from gpu_fleet_image.core.model import Verdict
from gpu_fleet_image.core.policy import QuietHours
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.times import format_span, parse_duration, parse_time
from tests.image.situations import alone, idle_history, make_instance

FOR_EVER = ("9999-12-31T23:59:59-08:00", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00+05:00")


def test_a_time_that_no_clock_will_show_is_refused_like_any_other_mistake():
    for text in FOR_EVER:
        with pytest.raises(ValueError, match="lies outside the years"):
            parse_time(text)


@given(st.datetimes(), st.timezones())
def test_every_time_is_read_or_refused(moment, zone):
    try:
        read = parse_time(moment.replace(tzinfo=zone).isoformat())
    except ValueError:
        return
    assert read.utcoffset() == timedelta(0)


def decided(**tags):
    named = {f"gpu-fleet:{key.replace('_', '-')}": text for key, text in tags.items()}
    return decide(alone(make_instance(tags=named), idle_history(161).activity())).decisions[0]


@pytest.mark.parametrize("text", FOR_EVER)
def test_a_hold_for_ever_keeps_its_instance_and_a_mark_at_such_a_time_is_none(text):
    held = decided(keep_until=text)

    # Its mark is taken off, as with every hold.
    assert held.verdict in {Verdict.KEEP_HELD, Verdict.UNMARK}
    assert held.alert
    assert text in held.reason
    assert decided(idle_since=text).verdict is decided(reap_after=text).verdict is Verdict.MARK


def test_a_duration_beyond_counting_is_a_very_long_one_and_none_is_refused():
    for unit in "mhd":
        first, second = (parse_duration("9" * digits + unit) for digits in (40, 400))
        assert first == second > timedelta(days=365), unit
    for text in ("soon", "h", "0h", "0.0d", "-1h", ""):
        with pytest.raises(ConfigurationError, match="allowed"):
            parse_duration(text)


DAY, NIGHT, ALWAYS = QuietHours(9 * 60, 18 * 60), QuietHours(22 * 60, 6 * 60), QuietHours(8 * 60, 8 * 60)
SHANGHAI, UTC = ZoneInfo("Asia/Shanghai"), ZoneInfo("UTC")
QUIET = {
    DAY: {"08:59": False, "09:00": True, "17:59": True, "18:00": False},
    NIGHT: {"21:59": False, "22:00": True, "05:59": True, "06:00": False},
    ALWAYS: {"08:00": True, "07:59": True},
}


@pytest.mark.parametrize("zone", [SHANGHAI, UTC])
def test_quiet_hours_go_by_the_wall_s_clock_from_their_start_to_before_their_end(zone):
    def is_so(span, clock):
        thursday = datetime.fromisoformat(f"2026-03-05T{clock}:30").replace(tzinfo=SHANGHAI)
        return is_quiet(thursday.astimezone(zone), [span], SHANGHAI, weekends=zone is UTC)

    assert {span: {clock: is_so(span, clock) for clock in clocks} for span, clocks in QUIET.items()} == QUIET


def test_a_quiet_weekend_is_the_wall_calendar_s():
    quiet = {"2026-03-06T15:59": False, "2026-03-06T16:00": True, "2026-03-08T15:59": True}
    times = {text: datetime.fromisoformat(text).replace(tzinfo=UTC) for text in quiet}

    assert {text: is_quiet(now, [], SHANGHAI, weekends=True) for text, now in times.items()} == quiet
    assert not any(is_quiet(now, [], SHANGHAI, weekends=False) for now in times.values())


def test_a_span_is_shown_in_the_unit_that_suits_it():
    spans = {
        timedelta(seconds=119): "119 s",
        timedelta(seconds=-30): "30 s",
        timedelta(minutes=2): "2 min",
        timedelta(minutes=119): "119 min",
        timedelta(hours=5, minutes=30): "5.5 h",
        timedelta(days=3, hours=5): "3.2 d",
    }

    assert {span: format_span(span) for span in spans} == spans

"""Which entries of the journal the log gets, and as what."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image.logs.buffer import LINE_BYTES
from image.logs.lines import LARGEST_TEXT_BYTES, OWN_UNIT, Line, line_of


def entry(message="step 4", **fields):
    """As journalctl writes it."""
    whole = {
        "MESSAGE": message,
        "PRIORITY": "6",
        "_PID": "42",
        "_SYSTEMD_UNIT": "gpu-run@ada.service",
        "_TRANSPORT": "stdout",
        "__REALTIME_TIMESTAMP": "1795622400680593",
        "__CURSOR": "s=1;i=2",
    }
    return {name: value for name, value in (whole | fields).items() if value is not None}


def line(message="step 4", **fields):
    return line_of(entry(message, **fields), lambda _, text: text)


def test_an_entry_of_a_unit_is_a_line_with_its_time_and_cursor():
    assert line() == Line(1_795_622_400_680_593, "gpu-run@ada.service", "6", "42", "step 4", "s=1;i=2")


@pytest.mark.parametrize(
    "unit",
    [
        *("gpu-ready.service", "gpu-reaper.service", "gpu-accounts.service", "gpu-fleet-bootstrap.service"),
        *("trainer@digits.service", "gpu-run@ada.service", "gpu-queue-node.service", "mig@0.service"),
        *("gpu-queue-controller.service", "slurmctld.service", "nvidia-fabricmanager.service"),
    ],
)
def test_the_log_gets_units_of_the_fleet(unit):
    made = line(_SYSTEMD_UNIT=unit)

    assert made
    assert made.unit == unit


@pytest.mark.parametrize(
    "unit", ["cron.service", "ssh.service", "user@1000.service", "session-3.scope", OWN_UNIT, None]
)
def test_the_log_gets_no_other_unit_and_never_its_own(unit):
    assert line(_SYSTEMD_UNIT=unit) is None


def test_what_systemd_says_of_a_unit_is_that_units():
    made = line(
        "Failed with result 'oom-kill'.", _PID="1", _SYSTEMD_UNIT="init.scope", UNIT="gpu-ready.service"
    )

    assert made
    assert made.unit == "gpu-ready.service"


def test_what_a_user_says_of_a_unit_is_not():
    assert line("a gate that passed", _SYSTEMD_UNIT="session-3.scope", UNIT="gpu-ready.service") is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", True),
        ("Out of memory: Killed process 4242 (python)", True),
        ("eth0: link up", False),
    ],
)
def test_of_the_kernel_the_log_gets_errors_of_gpus_and_of_memory(text, wanted):
    made = line(text, _TRANSPORT="kernel", _SYSTEMD_UNIT=None, _PID=None)

    assert (made is not None) is wanted
    assert made is None or made.unit == "kernel"


def test_what_only_says_that_it_is_the_kernel_is_not():
    assert line("NVRM: Xid 79", _TRANSPORT="syslog", _SYSTEMD_UNIT="session-3.scope") is None


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ([103, 114, 195, 188, 110, 255], "grün\ufffd"),
        (["first", "second"], "first\nsecond"),
        ("\x1b[32mepoch\x1b[0m 3\r", "epoch 3"),
        ("\x1b]0;title\x07epoch 3", "epoch 3"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("half \ud800 a pair", "half ? a pair"),
    ],
)
def test_a_text_is_made_one_that_can_be_sent(message, text):
    made = line(message)

    assert made
    assert made.text == text


@pytest.mark.parametrize("message", [None, "", "\x1b[0m"])
def test_an_entry_without_a_text_is_no_line(message):
    assert line(message) is None


def test_a_long_text_is_cut_and_says_so():
    made = line("ü" * LARGEST_TEXT_BYTES)

    assert made
    assert made.text.endswith("ü [cut]")
    assert len(made.text.encode()) <= LARGEST_TEXT_BYTES + len(" [cut]")


def test_a_secret_where_a_text_is_cut_is_seen_before():
    def redact(source, text):
        return text.replace("hunter2", "*")

    made = line_of(entry("a" * (LARGEST_TEXT_BYTES - 3) + "hunter2"), redact)

    assert made
    assert "hun" not in made.text


def test_secrets_are_looked_for_by_unit_and_process():
    sources = []

    line_of(entry(), lambda source, text: sources.append(source) or text)

    assert sources == ["gpu-run@ada.service 42"]


@given(st.text(st.characters(), max_size=200), st.integers(0, 60_000))
def test_no_line_takes_more_than_an_event_may(text, times):
    made = line(text * times)

    if made is not None:
        assert len(json.dumps(made.content, ensure_ascii=False).encode()) + LINE_BYTES < 262_144

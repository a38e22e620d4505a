"""Which entries of the journal the log gets, and as what."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.instance.logs.buffer import LINE_BYTES
from gpu_fleet_image.instance.logs.lines import LARGEST_TEXT_BYTES, OWN_UNIT, Line, line_of


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


OURS = [
    *("gpu-ready.service", "gpu-reaper.service", "gpu-accounts.service", "gpu-fleet-bootstrap.service"),
    *("trainer@digits.service", "gpu-run@ada.service", "gpu-queue-node.service", "mig@0.service"),
    *("gpu-queue-controller.service", "slurmctld.service", "nvidia-fabricmanager.service"),
]
OTHERS = ["cron.service", "ssh.service", "user@1000.service", "session-3.scope", OWN_UNIT, None]
SESSION = "session-3.scope"
# (message, fields, the unit of its line)
OF_UNITS = [
    *(("step", {"_SYSTEMD_UNIT": unit}, unit) for unit in OURS),
    *(("step", {"_SYSTEMD_UNIT": unit}, None) for unit in OTHERS),
    # what systemd says of a unit is that unit's, what a user says of it is not
    (
        "Failed with result 'oom-kill'.",
        {"_PID": "1", "_SYSTEMD_UNIT": "init.scope", "UNIT": "gpu-ready.service"},
        "gpu-ready.service",
    ),
    ("a gate that passed", {"_SYSTEMD_UNIT": SESSION, "UNIT": "gpu-ready.service"}, None),
    *(
        (text, {"_TRANSPORT": "kernel", "_SYSTEMD_UNIT": None, "_PID": None}, unit)
        for text, unit in (
            ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", "kernel"),
            ("Out of memory: Killed process 4242 (python)", "kernel"),
            ("eth0: link up", None),
            ("x[7]: segfault at 0 ip 00 sp 00 error 4 in NVRM: Xid (PCI:0000:3b:00): 79[5+1000]", None),
        )
    ),
    ("NVRM: Xid 79", {"_TRANSPORT": "syslog", "_SYSTEMD_UNIT": SESSION}, None),  # only says it is the kernel
]


def test_the_log_gets_units_of_the_fleet_and_of_the_kernel_errors_of_gpus_and_of_memory():
    def unit_of(message, fields):
        made = line(message, **fields)
        return made and made.unit

    assert [(text, fields, unit_of(text, fields)) for text, fields, _ in OF_UNITS] == OF_UNITS


def test_a_text_is_made_one_that_can_be_sent_and_an_entry_without_one_is_no_line():
    texts = [
        ([103, 114, 195, 188, 110, 255], "grün\ufffd"),
        (["first", "second"], "first\nsecond"),
        ("\x1b[32mepoch\x1b[0m 3\r", "epoch 3"),
        ("\x1b]0;title\x07epoch 3", "epoch 3"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("half \ud800 a pair", "half ? a pair"),
    ]

    assert [(message, line(message).text) for message, _ in texts] == texts
    assert [message for message in (None, "", "\x1b[0m") if line(message) is not None] == []


def test_a_long_text_is_cut_and_says_so():
    made = line("ü" * LARGEST_TEXT_BYTES)

    assert made.text.endswith("ü [cut]")
    assert len(made.text.encode()) <= LARGEST_TEXT_BYTES + len(" [cut]")


def test_secrets_are_looked_for_by_unit_and_process_before_a_text_is_cut():
    sources = []

    def redact(source, text):
        sources.append(source)
        return text.replace("hunter2", "*")

    made = line_of(entry("a" * (LARGEST_TEXT_BYTES - 3) + "hunter2"), redact)

    assert "hun" not in made.text
    assert sources == ["gpu-run@ada.service 42"]


@given(st.text(st.characters(), max_size=200), st.integers(0, 60_000))
def test_no_line_takes_more_than_an_event_may(text, times):
    made = line(text * times)

    if made is not None:
        assert len(json.dumps(made.content, ensure_ascii=False).encode()) + LINE_BYTES < 262_144

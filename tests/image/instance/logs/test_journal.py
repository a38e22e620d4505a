"""How journalctl is followed: begun again where it ends, after what was read last."""

import io
import sys
from pathlib import Path

from gpu_fleet_image.instance import logs
from gpu_fleet_image.instance.logs.journal import LARGEST_ENTRY_BYTES, Journal, arguments, lines_of
from gpu_fleet_image.instance.logs.lines import OWN_UNIT

# Says two entries and how it was called, then ends; of a cursor that is "bad" it says nothing.
PROGRAM = """
import json, sys
start = sys.argv[-1]
if start.endswith("=bad"):
    sys.exit("Failed to seek to cursor: Invalid argument")
if "--follow" not in sys.argv:
    sys.exit()
print(json.dumps({"MESSAGE": start, "__CURSOR": "s=1;i=1"}))
print("no JSON")
print(json.dumps({"MESSAGE": "second", "__CURSOR": "s=1;i=2"}))
"""


def program(tmp_path, text):
    file = tmp_path / "journalctl.py"
    file.write_text(text)
    return sys.executable, str(file)


def followed(tmp_path, cursor, lives, text=PROGRAM):
    """What is read of so many lives of journalctl."""
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == lives:
            journal.stop()

    journal = Journal(cursor, program(tmp_path, text), wait)
    return [entry["MESSAGE"] for entry in journal.entries()]


def test_without_a_cursor_all_of_this_boot_is_read_and_then_what_comes():
    made = arguments("")

    assert made[-1] == "--boot"
    assert {"--follow", "--no-tail", "--all", "--output=json"} <= set(made)
    assert not {"--follow", "--no-tail"} & set(arguments("", follow=False))


def test_it_begins_again_after_what_was_read_last_and_says_what_is_no_entry(tmp_path, caplog):
    assert followed(tmp_path, "", 2) == ["--boot", "second", "--after-cursor=s=1;i=2", "second"]
    assert "event=entry-not-read" in caplog.text


def test_a_cursor_that_cannot_be_read_is_forgotten(tmp_path, caplog):
    assert followed(tmp_path, "bad", 2) == ["--boot", "second"]
    assert "event=cursor-forgotten" in caplog.text


# Follows without end and has given one entry of two; what asks it once gets all after the cursor.
SLOW = """
import json, signal, sys
def say(number):
    print(json.dumps({"MESSAGE": f"line {number}", "__CURSOR": f"s=1;i={number}"}), flush=True)
if "--follow" in sys.argv:
    say(1)
    signal.pause()
elif sys.argv[-1] == "--after-cursor=s=1;i=1":
    say(2)
    say(3)
    HOLD
"""


def until_stopped(tmp_path, hold, last_read_s=3600.0):
    """What is read of a journal that is stopped at its first entry."""
    journal = Journal("", program(tmp_path, SLOW.replace("HOLD", hold)), last_read_s=last_read_s)
    texts = []
    for entry in journal.entries():
        texts.append(entry["MESSAGE"])
        journal.stop()
    return texts


def test_what_was_not_read_when_it_is_stopped_is_read_once_more(tmp_path):
    assert until_stopped(tmp_path, "pass") == ["line 1", "line 2", "line 3"]


def test_the_last_read_ends_where_journalctl_does_not(tmp_path):
    assert until_stopped(tmp_path, "signal.pause()", last_read_s=0.5)[0] == "line 1"


def test_where_it_is_stopped_before_it_began_it_follows_nothing(tmp_path):
    journal = Journal("", program(tmp_path, SLOW))
    journal.stop()

    assert list(journal.entries()) == []


# Has not the memory for all of entry 2; gives it with a null instead of its text where that is asked.
POOR = """
import json, sys
start = int(sys.argv[-1].rpartition("i=")[2]) if "=s=1" in sys.argv[-1] else 0
for number in range(start + 1, 4):
    text = f"line {number}"
    if number == 2 and "--all" in sys.argv:
        sys.exit("Out of memory.")
    print(json.dumps({"MESSAGE": None if number == 2 else text, "__CURSOR": f"s=1;i={number}"}), flush=True)
"""


def test_an_entry_at_which_journalctl_ends_is_passed_over(tmp_path, caplog):
    assert followed(tmp_path, "", 3, POOR) == ["line 1", None, "line 3"]
    assert "event=entry-not-read reason='too large'" in caplog.text
    assert "event=cursor-forgotten" not in caplog.text


def test_an_entry_that_is_too_large_is_left_out_and_counted_and_never_whole_in_memory(caplog):
    class Stream(io.BytesIO):
        most = 0

        def readline(self, size=-1):
            text = super().readline(size)
            self.most = max(self.most, len(text))
            return text

    longest = b"x" * (LARGEST_ENTRY_BYTES - 1) + b"\n"
    stream = Stream(b"first\n" + b"y" * (3 * LARGEST_ENTRY_BYTES) + b"\n" + longest + b"last")

    assert list(lines_of(stream)) == [b"first\n", longest, b"last"]
    assert f"event=entry-not-read reason='too large' bytes={3 * LARGEST_ENTRY_BYTES + 1}" in caplog.text
    assert stream.most == LARGEST_ENTRY_BYTES


def test_the_unit_ends_after_the_last_lines_is_no_use_and_survives_a_large_entry():
    settings = {
        "KillMode=mixed",  # journalctl must not end before the last lines are read
        "Slice=gpu-fleet.slice",  # whose work is no use of the instance
        "OOMPolicy=continue",  # journalctl alone is killed by an entry that is too large
    }
    unit = Path(logs.__file__).parents[2] / "recipe/rootfs/etc/systemd/system" / OWN_UNIT

    assert settings - set(unit.read_text().splitlines()) == set()

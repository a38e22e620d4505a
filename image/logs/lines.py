"""One entry of the journal as the log gets it, and which entries it gets. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

OWN_UNIT = "gpu-logs.service"
KERNEL = "kernel"
# Gate, agent, accounts, door, bootstrap, submitted runs and the queue's own; trainers; Slurm; GPUs' services.
UNITS = (
    "gpu-*.service",
    "trainer@*.service",
    "slurm*.service",
    "mig.service",
    "mig@*.service",
    "nvidia-fabricmanager.service",
)
# Of the kernel: what NVIDIA's driver reports (NVRM: Xid), and processes ended for want of memory.
KERNEL_LINES = re.compile(r"NVRM: |\bXid\b|[Oo]ut of memory|oom-kill:")
# Of a text, as UTF-8. JSON doubles it at most, once control characters are gone: below the 256 KiB that
# CloudWatch Logs has always taken of one event.
LARGEST_TEXT_BYTES = 100_000
BEYOND = 2_000  # characters beyond it that are read, so that no secret is cut where it can no longer be seen
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)|[\x00-\x08\x0b-\x1f\x7f]")
FIELDS = ("MESSAGE", "PRIORITY", "UNIT", "_PID", "_SYSTEMD_UNIT", "_TRANSPORT")
INFORMATIONAL = "6"  # syslog's, of what says no priority


@dataclass(frozen=True)
class Line:
    """A line of the log.

    Attributes:
        time_us: when journald took it, microseconds since 1970.
        priority: of syslog, ``0`` to ``7``.
        cursor: of journald, where to go on after it; empty of what this program says itself.
    """

    time_us: int
    unit: str
    priority: str
    pid: str
    text: str
    cursor: str = ""

    @property
    def content(self) -> dict[str, str]:
        """The line's fields as both services show them."""
        return {"unit": self.unit, "priority": self.priority, "pid": self.pid, "message": self.text}


def unit_of(entry: Mapping[str, Any]) -> str:
    """The unit that an entry is of or about, by fields that journald alone sets; empty of none.

    What systemd itself says of a unit names it in ``UNIT``, which any process may set: it counts from
    process 1 alone.
    """
    if entry.get("_TRANSPORT") == KERNEL:
        return KERNEL
    said = entry.get("UNIT") if entry.get("_PID") == "1" else None
    return str(said or entry.get("_SYSTEMD_UNIT") or "")


def is_wanted(unit: str, text: str) -> bool:
    """Whether the log gets a line; never this program's own, which would be without end."""
    if unit == KERNEL:
        return KERNEL_LINES.search(text) is not None
    return unit != OWN_UNIT and any(fnmatch(unit, pattern) for pattern in UNITS)


def line_of(entry: Mapping[str, Any], redact: Callable[[str, str], str]) -> Line | None:
    """The line of an entry; None where the log does not get it.

    Args:
        entry: as ``journalctl --output=json --all`` writes it.
        redact: from the line's source and its text to one without secrets.
    """
    unit, text = unit_of(entry), _text(entry.get("MESSAGE"))
    if not text or not is_wanted(unit, text):
        return None
    pid = _text(entry.get("_PID"))
    return Line(
        time_us=int(entry["__REALTIME_TIMESTAMP"]),
        unit=unit,
        priority=_text(entry.get("PRIORITY")) or INFORMATIONAL,
        pid=pid,
        text=clipped(redact(f"{unit} {pid}", text)),
        cursor=str(entry["__CURSOR"]),
    )


def clipped(text: str) -> str:
    """A text of at most ``LARGEST_TEXT_BYTES``, and a note where it was cut."""
    content = text.encode()
    if len(content) <= LARGEST_TEXT_BYTES:
        return text
    return content[:LARGEST_TEXT_BYTES].decode(errors="ignore") + " [cut]"


def _text(value: Any) -> str:
    """A field's text: journald gives what is not UTF-8 as a list of bytes, a field set twice as a list."""
    if isinstance(value, list):
        if all(isinstance(part, int) for part in value):
            value = bytes(value).decode(errors="replace")
        else:
            value = "\n".join(_text(part) for part in value)
    whole = "" if value is None else str(value)
    start = whole[: LARGEST_TEXT_BYTES + BEYOND].encode(errors="replace").decode()
    return ESCAPES.sub("", start)

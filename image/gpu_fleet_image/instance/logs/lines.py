"""Lines of the log from entries of the journal, and the choice of entries. Pure."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

OWN_UNIT = "gpu-logs.service"
_KERNEL = "kernel"
# Gate, agent, accounts, login door, bootstrap, submitted runs, the queue's units; trainers; Slurm; GPUs.
UNITS = (
    "gpu-*.service",
    "trainer@*.service",
    "slurm*.service",
    "mig.service",
    "mig@*.service",
    "nvidia-fabricmanager.service",
)
# Beginnings of kernel lines: reports of NVIDIA's driver (NVRM: Xid), and processes killed for want of memory.
# Other lines hold words of users, such as the file in which a program crashed.
_KERNEL_LINES = re.compile(r"NVRM: |(?:Memory cgroup o|O)ut of memory|oom-kill:")
# Of a text in UTF-8. Without control characters JSON at most doubles it: it stays below the 256 KiB that
# CloudWatch Logs has always accepted for one event.
LARGEST_TEXT_BYTES = 100_000
_BEYOND = 2_000  # characters read beyond it, so that a cut never hides part of a secret from the patterns
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?)|[\x00-\x08\x0b-\x1f\x7f]")
FIELDS = ("MESSAGE", "PRIORITY", "UNIT", "_PID", "_SYSTEMD_UNIT", "_TRANSPORT")
INFORMATIONAL = "6"  # syslog's number, for a line without a priority


@dataclass(frozen=True)
class Line:
    """A line of the log.

    Attributes:
        time_us: when journald took it, microseconds since 1970.
        priority: of syslog, ``0`` to ``7``.
        cursor: journald's position after it; empty for this program's own lines.
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
    """Return the unit of an entry, by fields that journald alone sets; empty for none.

    systemd's own messages name their unit in ``UNIT``, which any process may set, so it counts only from
    process 1.
    """
    if entry.get("_TRANSPORT") == _KERNEL:
        return _KERNEL
    said = entry.get("UNIT") if entry.get("_PID") == "1" else None
    return str(said or entry.get("_SYSTEMD_UNIT") or "")


def is_wanted(unit: str, text: str) -> bool:
    """Return whether the log gets a line; never this program's own, which would cause more without end."""
    if unit == _KERNEL:
        return _KERNEL_LINES.match(text) is not None
    return unit != OWN_UNIT and any(fnmatch(unit, pattern) for pattern in UNITS)


def line_of(entry: Mapping[str, Any], redact: Callable[[str, str], str]) -> Line | None:
    """Return the line of an entry; None where the log does not get it.

    Args:
        entry: as ``journalctl --output=json --all`` writes it.
        redact: (the line's source, its text) -> the text without secrets.
    """
    unit, text = unit_of(entry), text_of(entry.get("MESSAGE"))
    if not text or not is_wanted(unit, text):
        return None
    pid = text_of(entry.get("_PID"))
    return Line(
        time_us=int(entry["__REALTIME_TIMESTAMP"]),
        unit=unit,
        priority=text_of(entry.get("PRIORITY")) or INFORMATIONAL,
        pid=pid,
        text=_clipped(redact(f"{unit} {pid}", text)),
        cursor=str(entry["__CURSOR"]),
    )


def _clipped(text: str) -> str:
    """Cut a text to ``LARGEST_TEXT_BYTES``, with a note where it was cut."""
    content = text.encode()
    if len(content) <= LARGEST_TEXT_BYTES:
        return text
    return content[:LARGEST_TEXT_BYTES].decode(errors="ignore") + " [cut]"


def text_of(value: Any) -> str:
    """Return a field's text; a list holds the bytes of text that is not UTF-8, or repeated fields' values."""
    if isinstance(value, list):
        if all(isinstance(part, int) for part in value):
            value = bytes(value).decode(errors="replace")
        else:
            value = "\n".join(text_of(part) for part in value)
    whole = "" if value is None else str(value)
    start = whole[: LARGEST_TEXT_BYTES + _BEYOND].encode(errors="replace").decode()
    return _ESCAPES.sub("", start)

"""Rows as CSV for spreadsheets, which must not take a user's text for a formula. Pure."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # some skip the last two, and calculate what follows


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return a line of columns and a line for each row; an unknown value is empty.

    Args:
        rows: column -> value; other keys are left out.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row[column]) for column in columns])
    return text.getvalue()


def _cell(value: object) -> str:
    """Return a value as text; one that a spreadsheet would calculate begins with an apostrophe."""
    text = "" if value is None else str(value)
    text = text.lower() if isinstance(value, bool) else text  # as in JSON
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

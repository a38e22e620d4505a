"""Report of a preflight: a table, and a last line with the counts."""

import json
from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.shared_options import CSV
from gpu_fleet_stacks.preflight.findings import Finding, Rating

COLUMNS = ("subject", "rating", "says", "remedy")
STYLES = {
    Rating.FINE: "green",
    Rating.NOTE: "cyan",
    Rating.PROBLEM: "bold red",
    Rating.UNCHECKED: "yellow",
}


def text(stack: str, findings: Sequence[Finding], form: str) -> str:
    """Return every answer as ``json`` or ``csv``."""
    rows = [
        {
            "subject": finding.subject,
            "rating": str(finding.rating),
            "says": finding.says,
            "remedy": finding.remedy,
        }
        for finding in findings
    ]
    if form == CSV:
        return csv_text(COLUMNS, rows)
    return json.dumps({"stack": stack, "findings": rows}, indent=1) + "\n"


def page(stack: str, findings: Sequence[Finding]) -> RenderableType:
    """Return every answer, and below it the commands and changes that solve the problems."""
    table = Table(box=None, header_style="bold", title=f"room for {stack}", title_justify="left")
    for heading in ("", "about", "the cloud says"):
        table.add_column(heading, no_wrap=heading != "the cloud says", overflow="fold")
    for finding in findings:
        rating = Text(str(finding.rating), style=STYLES[finding.rating])
        table.add_row(rating, finding.subject, Text(finding.says))
    remedies = [
        Text(f"{finding.subject}: {finding.remedy}", overflow="fold")
        for finding in findings
        if finding.remedy
    ]
    todo = [Text(), Text("to do", style="bold"), *remedies] if remedies else []
    return Group(table, *todo, Text(), Text(summary(stack, findings), style="bold"))


def summary(stack: str, findings: Sequence[Finding]) -> str:
    """Return one line with the number of findings of each rating."""
    count = Counter(finding.rating for finding in findings)
    said = ", ".join(f"{count[rating]} {rating}" for rating in Rating if count[rating])
    return f"{stack}: {said}"

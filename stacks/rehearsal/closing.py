"""Last act: every figure of the rehearsal, in a table and in ``build/rehearsal.json``."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

Figures = dict[str, dict[str, Any]]


def table(figures: Figures, seconds: float) -> Table:
    """All figures by act.

    Args:
        figures: act -> figure -> value.
        seconds: of the whole rehearsal.
    """
    view = Table(title="the rehearsal in figures", title_justify="left")
    view.add_column("figure")
    view.add_column("value", justify="right")
    for act, entries in figures.items():
        for name, value in entries.items():
            view.add_row(f"{act}.{name}", _shown(value))
        view.add_section()
    view.add_row("seconds", f"{seconds:.1f}")
    return view


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "[red]no[/red]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(path: Path, stack: str, figures: Figures, seconds: float) -> None:
    """Write the figures as JSON: act -> figure -> value, beside ``stack`` and ``seconds``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"stack": stack, **figures, "seconds": round(seconds, 2)}
    staged = path.with_suffix(".tmp")
    staged.write_text(json.dumps(content, indent=2, default=str) + "\n")
    staged.replace(path)

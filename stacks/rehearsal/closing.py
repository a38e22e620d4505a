"""Last act: every figure of the rehearsal, in a table and in ``build/rehearsal.json``."""

import json
from decimal import Decimal
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
    if isinstance(value, Decimal):
        return f"{value:.2f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def broken_promises(figures: Figures) -> list[str]:
    """What the figures show that must never happen; empty when all is well."""
    trainer, reaper = figures.get("trainer"), figures.get("reaper")
    broken = []
    if trainer is not None:
        if not trainer["resume_equal"]:
            broken.append("the resumed run ended with other weights than the undisturbed one")
        if trainer["metric"] <= trainer["baseline"]:
            broken.append(f"the model is no better than {trainer['baseline_name']}")
    if reaper is not None:
        if reaper["reaped"] == 0:
            broken.append("the idle machine was not taken")
        if reaper["false_kills"] > 0:
            broken.append(f"{reaper['false_kills']} machines were taken that had to stay")
        if reaper["changed_by_dry_run"] > 0:
            broken.append(f"the dry sweep changed {reaper['changed_by_dry_run']} machines")
    return broken


def write(path: Path, stack: str, figures: Figures, seconds: float) -> None:
    """Write the figures as JSON: act -> figure -> value, beside ``stack`` and ``seconds``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"stack": stack, **figures, "seconds": round(seconds, 2)}
    staged = path.with_suffix(".tmp")
    staged.write_text(json.dumps(content, indent=2, default=float) + "\n")
    staged.replace(path)

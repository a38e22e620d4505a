"""Last act: every figure of the rehearsal, in a table and in ``build/rehearsal.json``."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from rich.table import Table

from gpu_fleet_image.core.counting import counted
from gpu_fleet_stacks.core import files

Figures = dict[str, dict[str, Any]]


def table(figures: Figures, seconds: float) -> Table:
    """Return a table of all figures by act.

    Args:
        figures: act -> figure -> value.
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
    """Return the figures that must never occur, as sentences; empty if all is well."""
    trainer, reaper, budget = (figures.get(act) for act in ("trainer", "reaper", "budget"))
    broken = []
    if trainer is not None:
        if not trainer["resume_equal"]:
            broken.append("the resumed run ended with other weights than the undisturbed one")
        if trainer["metric"] <= trainer["baseline"]:
            broken.append(f"the model is no better than {trainer['baseline_name']}")
    if reaper is not None:
        if reaper["reaped"] == 0:
            broken.append("the idle instance was not terminated")
        if reaper["false_kills"] > 0:
            broken.append(
                f"the sweep terminated {counted(reaper['false_kills'], 'instance')} that had to stay"
            )
        if reaper["changed_by_dry_run"] > 0:
            broken.append(f"the dry sweep changed {counted(reaper['changed_by_dry_run'], 'instance')}")
    if budget is not None:
        broken += _broken_by_budget(budget)
    return broken


def _broken_by_budget(budget: dict[str, Any]) -> Iterator[str]:
    if budget["alarms_raised"] < budget["alarms_declared"]:
        yield "an alarm of the budget stays silent although the budget is spent"
    if budget["groups_frozen"] < budget["groups_of_training"]:
        yield "a training group launches instances although the budget is spent"
    if budget["instances_touched"] > 0:
        yield f"the freeze touched {counted(budget['instances_touched'], 'instance')}"
    if budget["limits_given_back"] < budget["groups_of_training"]:
        yield "a group did not get its limit back"


def write(path: Path, stack: str, figures: Figures, seconds: float) -> None:
    """Write the figures as JSON: act -> figure -> value, beside ``stack`` and ``seconds``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"stack": stack, **figures, "seconds": round(seconds, 2)}
    files.replace(path, json.dumps(content, indent=2, default=float) + "\n")

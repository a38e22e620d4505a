"""`report`: a run on one page: loss, throughput, memory and waiting, drawn from metrics.jsonl."""

import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from jinja2 import Environment

from gpu_fleet.core.errors import ConfigError, counted
from gpu_fleet.core.lazy_groups import FiniteRange
from gpu_fleet.core.outcome import RESULT
from gpu_fleet.metrics.goodput import KIND, Goodput, HourPrice, goodput
from gpu_fleet.metrics.records import JSON_LINES, named, read_json_lines, tokens_per_sample, unit_of

if TYPE_CHECKING:  # matplotlib takes a second to load: only `draw` loads it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]
Points = list[tuple[int, float]]  # steps and values
PICTURE, PAGE = "report.png", "report.html"
DOTS_PER_INCH = 110
TEMPLATE = Environment(autoescape=True).from_string("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ name }}</title>
<style>
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1, td { overflow-wrap: anywhere }
table { border-collapse: collapse; margin-bottom: 1.5rem; font-size: .9rem }
td { vertical-align: baseline; padding: .15rem 1.5rem .15rem 0; border-bottom: 1px solid #ddd }
td:first-child { color: #555; min-width: 8rem }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(28rem, 100%), 1fr)); gap: 1rem }
figure { margin: 0 } svg { width: 100%; height: auto }
</style>
<main>
<h1>{{ name }}</h1>
<table>
{% for key, value in lines.items() %}<tr><td>{{ key }}</td><td>{{ value }}</td></tr>
{% endfor %}</table>
<div class="plots">
{% for plot in plots %}<figure>{{ plot | safe }}{# matplotlib escapes its texts #}</figure>
{% endfor %}</div>
</main>
</html>
""")


@dataclass(frozen=True)
class Timeline:
    """Records that count, and the steps from which the run was resumed."""

    train: Records
    evaluation: Records
    checkpoint: Records
    resumed_at: Sequence[int]  # steps
    times: Records = ()  # of all tries, in the order of the file


class Diagram(NamedTuple):
    """One diagram over the steps."""

    title: str
    unit: str
    color: str | None  # None: the library's colors
    curves: Mapping[str, Points]  # by label


@click.command(epilog="\b\nExample:\n  gpu-fleet train report runs/digits")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--price",
    type=FiniteRange(min=0),
    metavar="USD",
    help="Cost of all instances of the run an hour; on a fleet the run knows the stack's list prices.",
)
def report(run: Path, price: float | None) -> None:
    """Draw the run in the directory RUN: RUN/report.png, and RUN/report.html with everything inside it."""
    timeline = read_timeline(run)
    said = None if price is None else HourPrice(price, "USD")
    lines = summary(timeline, read_result(run))
    lines |= time_lines(goodput(timeline.times), said, timeline.train[-1])
    page = TEMPLATE.render(name=run.resolve().name, lines=lines, plots=vectors(timeline))
    with named("RUN", run):
        draw(timeline).savefig(run / PICTURE, dpi=DOTS_PER_INCH)
        (run / PAGE).write_text(page, encoding="utf-8")
    for key, value in lines.items():
        click.echo(f"{key}: {value}")
    click.echo(f"{run / PICTURE}\n{run / PAGE}")


def read_timeline(run: Path) -> Timeline:
    """Read the records of a run directory; raises ConfigError if there are no training steps."""
    file = run / JSON_LINES
    try:
        records = read_json_lines(file)
    except OSError as error:
        raise ConfigError(f"RUN = {str(run)!r}: {file} cannot be read: {error.strerror}") from error
    timeline = order_records(records)
    if not timeline.train:
        raise ConfigError(f"RUN = {str(run)!r}: {file} holds no training steps; was log_every_steps reached?")
    return timeline


def order_records(records: Records) -> Timeline:
    """Return the records that count: a step that a resumed run repeated replaces all records from it on."""
    kept: dict[str, list[Mapping[str, Any]]] = {"train": [], "evaluation": [], "checkpoint": []}
    for record in records:
        kind = kept.get(str(record.get("kind")))
        if kind is None:
            continue
        step = record["step"]
        if record["kind"] == "train" and kind and step <= kind[-1]["step"]:
            kept = {name: [old for old in olds if old["step"] < step] for name, olds in kept.items()}
        kept[record["kind"]].append(record)
    times = [record for record in records if record.get("kind") == KIND]
    return Timeline(kept["train"], kept["evaluation"], kept["checkpoint"], resumes(times), times)


def resumes(times: Records) -> list[int]:
    """Return the steps from which tries resumed: an orderly stop repeats no step, which would show it."""
    from_step: dict[float, int] = {}
    for record in times:
        start = record["started_at_s"]
        from_step[start] = max(from_step.get(start, 0), record["resumed_from_step"])
    return [step for step in from_step.values() if step]


def waiting_percent(train: Records) -> Points:
    """Return each step with the percentage of time since the record before it that was waiting for data."""
    return [
        (now["step"], 100 * now["data_wait_s"] / (now["step_s"] * (now["step"] - before["step"])))
        for before, now in pairwise(train)
        if now["step_s"] > 0
    ]


def read_result(run: Path) -> Mapping[str, Any]:
    """Read result.json; empty if the run has none yet, or if it cannot be parsed."""
    try:
        result = json.loads((run / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) else {}


def summary(timeline: Timeline, result: Mapping[str, Any]) -> dict[str, str]:
    last = timeline.train[-1]
    rate = statistics.median(record["samples_per_s"] for record in timeline.train)
    waiting = statistics.mean([percent for _, percent in waiting_percent(timeline.train)] or [0.0])
    lines = {
        "steps": f"{last['step']:,}",
        "loss": f"{last['loss']:.4g}",
        "samples per second, median": f"{rate:,.1f}",
        "waiting for data": f"{waiting:.2f} %",
        "checkpoint stalls": f"{sum(r.get('checkpoint_stall_s', 0) for r in timeline.train):.3f} s in all",
        "resumed": counted(len(timeline.resumed_at), "time"),
    }
    if "mfu" in last:
        lines["model FLOPs utilisation"] = f"{100 * last['mfu']:.1f} %"
    if "outcome" in result:
        lines["outcome"] = f"{result['outcome']}: {result.get('reason', '')}"
    if result.get("metric") is not None:
        lines[str(result.get("metric_name"))] = f"{result['metric']:.4f}"
    if result.get("baseline") is not None:
        lines[str(result.get("baseline_name"))] = f"{result['baseline']:.4f}"
    return lines


def time_lines(
    goodput: Goodput | None, price: HourPrice | None = None, last: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return the lines about wall time, and about money by `price` or that of the run, if there is one."""
    if goodput is None:
        return {}
    parts = {
        "productive": goodput.productive_s,
        "starting": goodput.start_s,
        "waiting for data": goodput.waiting_s,
        "stalled by checkpoints": goodput.stall_s,
        "lost: done again, or between tries": goodput.lost_s,
    }
    shown = ", ".join(f"{name} {seconds:,.1f} s" for name, seconds in parts.items())
    lines = {
        "effective training time ratio (ETTR)": f"{100 * goodput.ettr:.1f} %",
        f"wall time of all tries ({goodput.tries})": f"{goodput.wall_s:,.1f} s: {shown}",
    }
    price = price or goodput.price
    if price is not None:
        hour = price.amount
        left_out = (
            f", without {goodput.unpriced_s:,.1f} s before an instance booted" if goodput.unpriced_s else ""
        )
        lines["cost of unproductive time"] = (
            f"{goodput.price_lost(hour):,.2f} of {goodput.price_of_all(hour):,.2f} {price.currency}, "
            f"at {hour:,.2f} {price.currency} an hour{left_out}"
        )
        lines |= _for_the_money(goodput.price_of_all(hour), price.currency, last or {})
    return lines


def _for_the_money(cost: float, currency: str, last: Mapping[str, Any]) -> dict[str, str]:
    """Return the samples and tokens for one unit of the currency, by the `last` train record."""
    if not cost or not last.get("samples"):
        return {}
    lines = {f"samples per {currency}": f"{last['samples'] / cost:,.1f}"}
    if (each := tokens_per_sample(last)) is not None:
        lines[f"tokens per {currency}"] = f"{last['samples'] * each / cost:,.0f}"
    return lines


def draw(timeline: Timeline) -> "Figure":
    from matplotlib.figure import Figure  # noqa: PLC0415 - see the top of the file

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    for panel, axis in zip(diagrams(timeline), figure.subplots(2, 2).flatten(), strict=True):
        _draw_panel(panel, axis, timeline.resumed_at)
    return figure


def vectors(timeline: Timeline) -> list[str]:
    """Draw each panel as SVG for a page; text stays text, which any size of screen shows sharply."""
    from matplotlib import rc_context  # noqa: PLC0415 - see the top of the file
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    drawn = []
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "gpu-fleet"}):
        for panel in diagrams(timeline):
            figure, text = Figure(figsize=(5, 3.2), layout="constrained"), io.StringIO()
            _draw_panel(panel, figure.subplots(), timeline.resumed_at)
            figure.savefig(text, format="svg", metadata={"Date": None})
            _, _, rest = text.getvalue().partition("<svg")  # HTML allows no XML declaration
            drawn.append(f'<svg role="img" aria-label="{panel.title} by step"{rest}')
    return drawn


def _draw_panel(panel: Diagram, axis: "Axes", resumed_at: Sequence[int]) -> None:
    drawn = {label: points for label, points in panel.curves.items() if points}
    for (label, points), style in zip(drawn.items(), ("-", "o-"), strict=False):
        axis.plot(*zip(*points, strict=True), style, label=label, color=panel.color)
    if not drawn:
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", color="gray")
    elif panel.color:  # all but losses begin at 0
        axis.set_ylim(bottom=0)
    if len(drawn) > 1:
        axis.legend(frameon=False)
    axis.set_title(panel.title)
    axis.set_ylabel(panel.unit)
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_major_formatter("{x:,.10g}")
    axis.locator_params(axis="x", nbins=6, integer=True)
    for step in resumed_at:
        axis.axvline(step, color="tab:red", linestyle=":", linewidth=1)
    axis.set_xlabel("step (dotted red: resumed)" if resumed_at else "step")


def diagrams(timeline: Timeline) -> list[Diagram]:
    train, unit = timeline.train, unit_of(timeline.train[0])
    losses = {"training": _curve(train, "loss"), "held-out data": _curve(timeline.evaluation, "loss")}
    return [
        Diagram("Loss", "loss", None, losses),
        Diagram("Throughput", f"{unit} per second", "tab:green", {"": _curve(train, f"{unit}_per_s")}),
        Diagram("Memory at most", "GiB per rank", "tab:purple", {"": _curve(train, "memory_gib")}),
        Diagram("Waiting for data", "% of the time", "tab:orange", {"": waiting_percent(train)}),
    ]


def _curve(records: Records, name: str) -> Points:
    return [(record["step"], record[name]) for record in records if name in record]

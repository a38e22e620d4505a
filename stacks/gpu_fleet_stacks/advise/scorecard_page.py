"""The scorecard of vendors for users: totals by dimension, and each indicator with its source. Pure."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_stacks.advise.scorecard import Card, IndicatorScore, load

UNKNOWN = "unknown"


def page(cards: Sequence[Card], *, sources: bool) -> RenderableType:
    """Return the totals, and on request every indicator."""
    dimensions = load().dimensions
    columns = (Column(f"{name} {weight}", "right", wraps=True) for name, weight in dimensions.items())
    table = Listing((Column("vendor"), *columns, Column("of 100", "right")), "vendors, points by dimension")
    for card in cards:
        spans = (_span(*card.points(dimension)) for dimension in dimensions)
        table.add_row(card.title, *spans, _span(*card.points()))
    counted = sum(any(card.scores[name] for card in cards) for name in load().indicators)
    said = (
        f"a span is open by what is unknown: {counted} of {len(load().indicators)} indicators have a value; "
        "--sources lists them, --answers FILE takes yours"
    )
    return Group(table, Text(said, style="dim"), *([_indicators(cards)] if sources else []))


def _span(least: float, most: float) -> str:
    return f"{least:.0f}" if round(least) == round(most) else f"{least:.0f} to {most:.0f}"


def _indicators(cards: Sequence[Card]) -> RenderableType:
    """Return a row for each indicator, and a line for the source of each value."""
    columns = (Column(card.title, "right", wraps=True) for card in cards)
    texts = (Column(heading, wraps=True) for heading in ("of", "unit"))
    heads = (Column("indicator"), *texts, Column("points", "right"), *columns)
    table = Listing((*heads, Column("how to know", wraps=True)), "indicators")
    for name, indicator in load().indicators.items():
        values = (_value(card.scores[name]) for card in cards)
        better = ", less is better" if indicator.better == "less" else ""
        how = indicator.how or {"catalog": "the catalog", "source": "published"}.get(indicator.by, "")
        title = f"{indicator.title}{better}"
        table.add_row(name, title, indicator.unit, f"{load().weight(name):.1f}", *values, how)
    lines = [
        Text(f"{card.title}, {name}: {score.figure.source}{_dated(score)}", style="dim")
        for card in cards
        for name, score in card.scores.items()
        if score is not None
    ]
    return Group(table, *lines)


def _value(score: IndicatorScore | None) -> str:
    if score is None:
        return UNKNOWN
    points = "" if score.points is None else f" ({score.points:.1f})"
    return f"{score.figure.value:,.6g}{points}"


def _dated(score: IndicatorScore) -> str:
    return "" if score.figure.date is None else f", {score.figure.date}"


def document(cards: Sequence[Card]) -> list[dict[str, Any]]:
    """Return the same for programs."""
    return [
        {
            "vendor": card.vendor,
            "points_least": round(card.points()[0], 1),
            "points_most": round(card.points()[1], 1),
            "indicators": {name: _score(score) for name, score in card.scores.items()},
        }
        for card in cards
    ]


def _score(score: IndicatorScore | None) -> dict[str, Any] | None:
    if score is None:
        return None
    figure = score.figure
    return {
        "value": figure.value,
        "points": None if score.points is None else round(score.points, 1),
        "source": figure.source,
        "date": figure.date and figure.date.isoformat(),
    }

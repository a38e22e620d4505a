"""Comparison of vendors by the 23 indicators of scorecard.toml, each measured, dated or unknown. Pure.

The best value of an indicator gets its whole weight, every other value its share of the best. An indicator
that is known of one vendor alone compares nothing, and counts for nobody. An unknown one leaves a span: a
vendor's total lies between the points it has and those points with the whole weight of all that is unknown.
"""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_fleet_stacks.advise.offers import VendorsError, vendors
from gpu_fleet_stacks.catalog import toml_file
from gpu_fleet_stacks.catalog.numbers import NUMBER

FILE = Path(__file__).with_name("scorecard.toml")
Value = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]


class AnswersError(VendorsError):
    """A file of answers that cannot be used; the message names file, key and what is allowed."""


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SourcedFigure(_Exact):
    """A number about a vendor, with its source.

    Attributes:
        date: the day it was true; None for a fact that has none.
    """

    value: Value
    source: Annotated[str, Field(min_length=4)]
    date: datetime.date | None = None


class Indicator(_Exact):
    """One line of the scorecard.

    Attributes:
        by: where its value is from.
        how: the command or question that gives it; empty for one that the files have.
    """

    dimension: str
    title: str
    unit: str
    better: Literal["more", "less"] = "more"
    by: Literal["catalog", "source", "measure", "buyer"]
    how: str = ""


class Scorecard(_Exact):
    """The whole file.

    Attributes:
        dimensions: name -> its weight, 100 in total.
        values: indicator -> vendor -> its figure.
    """

    dimensions: dict[str, Annotated[int, Field(ge=0), NUMBER]]
    indicators: dict[str, Indicator]
    values: dict[str, dict[str, SourcedFigure]]

    def weight(self, indicator: str) -> float:
        """Return the points of an indicator's best value."""
        dimension = self.indicators[indicator].dimension
        alike = sum(each.dimension == dimension for each in self.indicators.values())
        return self.dimensions[dimension] / alike


Figures = Mapping[str, Mapping[str, SourcedFigure]]  # indicator -> vendor -> its figure


@cache
def load(path: Path = FILE) -> Scorecard:
    """Return the file, read once. Raises VendorsError."""
    try:
        card = toml_file.read(path, Scorecard)
    except ValueError as error:
        raise VendorsError(str(error)) from error
    if (total := sum(card.dimensions.values())) != 100:  # noqa: PLR2004 - percent
        raise VendorsError(f"{path}: weights are {total} in all, must be 100")
    for name, indicator in card.indicators.items():
        if indicator.dimension not in card.dimensions:
            raise VendorsError(f"{path}: indicators.{name}.dimension = {indicator.dimension!r} has no weight")
    return card


def answers(path: Path) -> dict[str, dict[str, SourcedFigure]]:
    """Return a buyer's answers, vendor by vendor: a table of indicators each. New vendors get columns.

    Raises:
        AnswersError: it cannot be read, or names what is no indicator, or a value is no number of at least 0.
    """
    try:
        content = toml_file.content_of(path)
    except ValueError as error:
        raise AnswersError(f"--answers {error}") from error
    answered: dict[str, dict[str, SourcedFigure]] = {}
    for vendor, table in content.items():
        if not isinstance(table, dict):
            raise AnswersError(f"--answers {path}: {vendor} = {table!r}; allowed: a table [{vendor}]")
        for name, value in table.items():
            answered.setdefault(name, {})[vendor] = _answer(path, vendor, name, value)
    return answered


def _answer(path: Path, vendor: str, name: str, value: object) -> SourcedFigure:
    if name not in load().indicators:
        allowed = ", ".join(sorted(load().indicators))
        raise AnswersError(f"--answers {path}: {vendor}.{name} is no indicator; allowed: {allowed}")
    try:
        return SourcedFigure.model_validate({"value": value, "source": f"your answer in {path.name}"})
    except ValidationError as error:
        said = f"--answers {path}: {vendor}.{name} = {value!r}; allowed: a number of at least 0"
        raise AnswersError(said) from error


@dataclass(frozen=True)
class IndicatorScore:
    """A vendor's value of an indicator.

    Attributes:
        points: of the indicator's weight; None where no other vendor's value is known to compare with.
    """

    figure: SourcedFigure
    points: float | None


@dataclass(frozen=True)
class Card:
    """One vendor's scores.

    Attributes:
        scores: indicator -> score; None where it is unknown.
    """

    vendor: str
    title: str
    scores: Mapping[str, IndicatorScore | None]

    def points(self, dimension: str | None = None) -> tuple[float, float]:
        """Return the least and the most points, of a dimension or of all."""
        least = open_ = 0.0
        for name, score in self.scores.items():
            if dimension in {None, load().indicators[name].dimension}:
                least += (score.points or 0.0) if score else 0.0
                open_ += load().weight(name) if score is None or score.points is None else 0.0
        return least, least + open_


def cards(figures: Figures) -> list[Card]:
    """Return every vendor with its scores, the highest least total first.

    Args:
        figures: what is known of each indicator, computed, from the file and from the buyer.
    """
    titles = {name: vendor.title for name, vendor in vendors().vendors.items()}
    for by_vendor in figures.values():
        titles |= {name: f"{name} (yours)" for name in by_vendor if name not in titles}
    scored = {name: dict(_scores(name, figures.get(name, {}))) for name in load().indicators}
    listed = [
        Card(vendor, title, {name: scores.get(vendor) for name, scores in scored.items()})
        for vendor, title in titles.items()
    ]
    return sorted(listed, key=lambda card: -card.points()[0])


def _scores(name: str, known: Mapping[str, SourcedFigure]) -> Iterator[tuple[str, IndicatorScore]]:
    less = load().indicators[name].better == "less"
    values = [figure.value for figure in known.values()]
    for vendor, figure in known.items():
        points = None
        if len(values) > 1:
            best, own = (figure.value, min(values)) if less else (max(values), figure.value)
            points = load().weight(name) * (own / best if best else 1.0)
        yield vendor, IndicatorScore(figure, points)

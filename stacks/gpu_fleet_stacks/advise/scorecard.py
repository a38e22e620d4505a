"""Comparison of vendors: five criteria with weights in vendors.toml, every number with a source. Pure.

The best value of a criterion gets its full weight, every other value its share of the best. A criterion
without a sourced number is left out, and the card shows how much of the weight counted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from gpu_fleet_stacks.advise.offers import Offer, SourcedFigure, offers, vendors
from gpu_fleet_stacks.advise.plan import TERA, peak
from gpu_fleet_stacks.advise.work import Precision

PRECISION: Precision = "bf16"
LESS_IS_BETTER = frozenset({"cost"})
PETA_PER_TERA = 1000
UNITS = {
    "performance": "TFLOP/s",
    "cost": "USD per PFLOP/s and hour",
    "network": "Gbit/s",
    "service": "of 8 services",
    "ecosystem": "of 4 tools",
}


@dataclass(frozen=True)
class CriterionScore:
    """A vendor's number on one criterion.

    Attributes:
        value: in the unit of ``UNITS``.
        points: of the criterion's weight.
    """

    value: float
    points: float
    source: str


@dataclass(frozen=True)
class Card:
    """One vendor's line.

    Attributes:
        scores: criterion -> score; None where no sourced number is known.
        counted: sum of the weights of the scored criteria.
    """

    title: str
    scores: Mapping[str, CriterionScore | None]
    counted: int

    @property
    def total(self) -> float:
        """Points of 100, over the scored criteria alone."""
        points = sum(score.points for score in self.scores.values() if score is not None)
        return points / self.counted * 100 if self.counted else 0.0


def cards(cny_per_usd: Decimal | None = None) -> list[Card]:
    """Return every vendor, the highest total first.

    Args:
        cny_per_usd: the rate for prices in yuan; without a rate they are left out.
    """
    weights = vendors().weights
    values = {name: _values(name, cny_per_usd) for name in vendors().vendors}
    best = {
        criterion: _best(criterion, [figures[criterion] for figures in values.values()])
        for criterion in weights
    }
    ranked = [
        Card(
            vendors().vendors[name].title,
            {criterion: _scored(criterion, own[criterion], best[criterion]) for criterion in weights},
            sum(weight for criterion, weight in weights.items() if own[criterion] is not None),
        )
        for name, own in values.items()
    ]
    return sorted(ranked, key=lambda card: -card.total)


def _values(name: str, cny_per_usd: Decimal | None) -> dict[str, SourcedFigure | None]:
    own, vendor = [offer for offer in offers() if offer.vendor == name], vendors().vendors[name]
    return {
        "performance": _largest(own),
        "cost": _cheapest(own, cny_per_usd),
        "network": vendor.network or _fastest(own),
        "service": vendor.service,
        "ecosystem": vendor.ecosystem,
    }


def _rates(own: list[Offer]) -> Iterator[tuple[Offer, float]]:
    """Yield each instance with a public peak rate, and its operations per second in units of 10^12."""
    for offer in own:
        flops_per_s = peak(offer, PRECISION)
        if flops_per_s is not None:
            yield offer, flops_per_s * offer.gpu_count / TERA


def _largest(own: list[Offer]) -> SourcedFigure | None:
    rates = list(_rates(own))
    if not rates:
        return None
    offer, rate = max(rates, key=lambda pair: pair[1])
    return SourcedFigure(value=rate, source=f"{offer.name}: {offer.gpu_count} x {offer.gpu_model}, gpus.toml")


def _cheapest(own: list[Offer], cny_per_usd: Decimal | None) -> SourcedFigure | None:
    prices_per_peak = []
    for offer, rate in _rates(own):
        if offer.price is None:
            continue
        amount = offer.price.amount_per_hour
        if offer.price.currency == "CNY":
            if cny_per_usd is None:
                continue
            amount /= cny_per_usd
        source = f"{offer.name}: {offer.price.amount_per_hour} {offer.price.currency}, {offer.price.date}"
        prices_per_peak.append(SourcedFigure(value=float(amount) / rate * PETA_PER_TERA, source=source))
    return min(prices_per_peak, key=lambda figure: figure.value, default=None)


def _fastest(own: list[Offer]) -> SourcedFigure | None:
    known = [(offer.network_gbps, offer.name) for offer in own if offer.network_gbps is not None]
    if not known:
        return None
    fastest, name = max(known)
    return SourcedFigure(value=fastest, source=f"{name}, its row")


def _best(criterion: str, figures: list[SourcedFigure | None]) -> float:
    values = [figure.value for figure in figures if figure is not None]
    return (min if criterion in LESS_IS_BETTER else max)(values, default=0.0)


def _scored(criterion: str, figure: SourcedFigure | None, best: float) -> CriterionScore | None:
    if figure is None:
        return None
    ratio = best / figure.value if criterion in LESS_IS_BETTER else figure.value / best
    return CriterionScore(figure.value, vendors().weights[criterion] * ratio, figure.source)

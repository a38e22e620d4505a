"""Indicators of each vendor from the catalog, the price lists and the published peaks. Pure."""

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from statistics import median

from gpu_fleet_stacks.advise import scorecard
from gpu_fleet_stacks.advise.offers import Offer, offers, vendors
from gpu_fleet_stacks.advise.plan import TERA, peak
from gpu_fleet_stacks.advise.scorecard import Figures, SourcedFigure
from gpu_fleet_stacks.catalog import Cloud, prices, regions
from gpu_fleet_stacks.catalog.instance_types import Price
from gpu_fleet_stacks.catalog.prices import SpotPrice

PETA_PER_TERA = 1000


def known(
    cny_per_usd: Decimal | None, answered: Figures | None = None
) -> dict[str, dict[str, SourcedFigure]]:
    """Return every known figure: indicator -> vendor -> figure; the buyer's answers replace ours.

    Args:
        cny_per_usd: the rate for prices in yuan; without a rate they are left out.
    """
    figures: dict[str, dict[str, SourcedFigure]] = {}
    for vendor in vendors().vendors:
        for name, figure in _computed(vendor, cny_per_usd):
            figures.setdefault(name, {})[vendor] = figure
    for some in (scorecard.load().values, answered or {}):
        for name, by_vendor in some.items():
            figures[name] = figures.get(name, {}) | dict(by_vendor)
    return figures


def _computed(vendor: str, cny_per_usd: Decimal | None) -> Iterator[tuple[str, SourcedFigure]]:
    own = [offer for offer in offers() if offer.vendor == vendor]
    rates = {
        offer: flops * offer.gpu_count / TERA for offer in own if (flops := peak(offer, "bf16")) is not None
    }
    sources = {offer.name: offer.source for offer in own}
    largest: dict[str, Callable[[Offer], float | None]] = {
        "peak": rates.get,
        "gpu_memory": lambda offer: offer.gpu_count * offer.gpu_memory_gib,
        "local_nvme": lambda offer: offer.nvme_gib,
        "fabric": lambda offer: offer.network_gbps,
        "rdma": lambda offer: offer.network_gbps if offer.joined else None,
    }
    for name, of in largest.items():
        values = [(value, offer.name) for offer in own if (value := of(offer)) is not None]
        if values:
            value, instance = max(values)
            yield name, SourcedFigure(value=value, source=f"{instance}: {sources[instance]}")
    for name, price_of in (("peak_price", _listed), ("peak_spot_price", _spot)):
        costs = list(_costs(rates, price_of, cny_per_usd))
        if costs:
            yield name, min(costs, key=lambda figure: figure.value)
    if vendor in set(Cloud):
        yield from _of_cloud(Cloud(vendor), cny_per_usd)


def _listed(offer: Offer) -> tuple[Decimal, Price] | None:
    return None if offer.price is None else (offer.price.amount_per_hour, offer.price)


def _spot(offer: Offer) -> tuple[Decimal, SpotPrice] | None:
    return None if offer.spot is None else (offer.spot.expected, offer.spot)


def _costs(
    rates: Mapping[Offer, float],
    price_of: Callable[[Offer], tuple[Decimal, Price | SpotPrice] | None],
    cny_per_usd: Decimal | None,
) -> Iterator[SourcedFigure]:
    """Yield the price of an hour of 10^15 operations a second, in dollars, on each instance."""
    for offer, rate in rates.items():
        if (listed := price_of(offer)) is None:
            continue
        amount, where = listed
        usd = _in_usd(amount, where.currency, cny_per_usd)
        if usd is not None:
            source = f"{offer.name} in {where.region}: {amount} {where.currency}; {where.source}"
            yield SourcedFigure(value=float(usd) / rate * PETA_PER_TERA, source=source, date=where.date)


def _of_cloud(cloud: Cloud, cny_per_usd: Decimal | None) -> Iterator[tuple[str, SourcedFigure]]:
    listed = prices.load(cloud)
    date, source = regions.read_from(cloud)
    yield "regions", SourcedFigure(value=len(regions.of_cloud(cloud)), source=source, date=date)
    taken = list(listed.interruptions.values())
    if taken:
        middle = median(each.percent for each in taken)
        yield "interruptions", SourcedFigure(value=middle, source=taken[0].source, date=taken[0].date)
    for name, what in (("bucket_price", "bucket"), ("egress_price", "egress")):
        quote = listed.quote(what, listed.quotes[what].region)
        if quote.amount is None:
            continue
        usd = _in_usd(quote.amount, quote.currency, cny_per_usd)
        if usd is not None:
            yield name, SourcedFigure(value=float(usd), source=quote.source, date=quote.date)


def _in_usd(amount: Decimal, currency: str, cny_per_usd: Decimal | None) -> Decimal | None:
    if currency == "USD":
        return amount
    return amount / cny_per_usd if currency == "CNY" and cny_per_usd is not None else None

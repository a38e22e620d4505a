"""``gpu-fleet advise --params 7e9 --batch 32 --seq 2048``: needs of a run, and instances for it."""

import datetime
from collections.abc import Iterator, Sequence
from decimal import Decimal
from operator import attrgetter
from typing import get_args

import click
from rich.console import Group, RenderableType
from rich.text import Text

from gpu_fleet_image.core import listing
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.shared_options import TABLE, FiniteRange, form_option
from gpu_fleet_stacks.advise import offers, programs, scorecard
from gpu_fleet_stacks.advise.plan import (
    FITS,
    GIB,
    Candidate,
    affordable,
    break_even_hours,
    facts,
    months_begun,
    plans,
    reserved,
)
from gpu_fleet_stacks.advise.work import (
    LAYOUTS,
    TOKENS_PER_PARAMETER,
    Precision,
    Work,
    memory,
    shape_of,
    state_bytes,
)
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.catalog.command import GpuModel
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, Money
from gpu_fleet_stacks.catalog.prices import read_on

PIPE_WIDTH = 170
EIGHT = 8


class LargeNumber(click.ParamType[float]):
    """A number of at least 1, such as 7e9 or 7000000000."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse text that is no number, and numbers below 1."""
        try:
            number = float(str(value))
        except ValueError:
            number = float("nan")
        if not 1 <= number < float("inf"):
            self.fail(f"{value!r} must be a number of at least 1, such as 7e9", param, ctx)
        return number


class VendorName(click.ParamType[str]):
    """A vendor with offers."""

    name = "vendor"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a vendor that offers nothing known, and name those that do."""
        known = sorted({offer.vendor for offer in offers.offers()})
        if value not in known:
            self.fail(f"{value!r}; allowed: {', '.join(known)}", param, ctx)
        return value


@click.command(epilog="\b\nExample:\n  gpu-fleet advise --params 7e9 --batch 32 --seq 2048 --tokens 2e10")
@click.option("--params", type=LargeNumber(), required=True, help="Parameters of the model.")
@click.option("--precision", type=click.Choice(get_args(Precision)), default="bf16", show_default=True)
@click.option("--batch", type=click.IntRange(min=1), required=True, help="Sequences of an optimizer step.")
@click.option("--seq", type=click.IntRange(min=1), required=True, help="Tokens of a sequence.")
@click.option(
    "--tokens", type=LargeNumber(), help=f"Tokens in all; by default {TOKENS_PER_PARAMETER} a parameter."
)
@click.option("--layers", type=click.IntRange(min=1), help="Of the model; by default from its size.")
@click.option("--width", type=click.IntRange(min=1), help="Of a layer; by default from its size.")
@click.option("--days", type=FiniteRange(min=0, min_open=True), help="It must be done by then.")
@click.option("--budget", type=LargeNumber(), help="Most to pay, in --currency.")
@click.option("--currency", type=click.Choice(["USD", "CNY"]), default="USD", show_default=True)
@click.option(
    "--reserved-discount",
    type=FiniteRange(0, 1, max_open=True),
    help="What a reservation takes off the price, 0 to 1.",
)
@click.option(
    "--cny-per-usd", type=LargeNumber(), help="To compare prices in yuan with dollars between vendors."
)
@click.option(
    "--vendor", type=VendorName(), multiple=True, help="Only of this vendor, such as aws; again for more."
)
@click.option(
    "--gpu",
    metavar="MODEL",
    default="",
    type=GpuModel(lambda: (offer.gpu_model for offer in offers.offers())),
    help="Only GPUs whose model has this text, such as H100.",
)
@click.option("--top", type=click.IntRange(min=1), help="Only the first rows of the ranking.")
@click.option("--sources", is_flag=True, help="Say where each number about a vendor is from.")
@form_option
def main(
    *,
    params: float,
    precision: Precision,
    batch: int,
    seq: int,
    tokens: float | None,
    layers: int | None,
    width: int | None,
    days: float | None,
    budget: float | None,
    currency: str,
    reserved_discount: float | None,
    cny_per_usd: float | None,
    vendor: tuple[str, ...],
    gpu: str,
    top: int | None,
    sources: bool,
    form: str,
) -> None:
    """Show what a training run needs, rank the instances that finish it by cost, compare vendors.

    The last line recommends one instance type that a stack can use. With -o csv the ranking alone is printed.
    """
    depth, breadth = shape_of(params)
    total = tokens or TOKENS_PER_PARAMETER * params
    work = Work(params, precision, batch, seq, total, layers or depth, width or breadth)
    most = None if budget is None else Money(Decimal(budget), currency)
    ranked = [plan for plan in plans(work, days, currency) if is_wanted(plan, vendor, gpu)]
    if not ranked:
        hurry = "" if days is None else f" and finishes in {days:g} days"
        raise click.ClickException(
            f"--params = {params:g}: nothing known holds it{hurry}; allow more --days or fewer --tokens, or "
            "leave out --vendor and --gpu"
        )
    discount = None if reserved_discount is None else Decimal(str(reserved_discount))
    if form != TABLE:
        click.echo(programs.text(work, ranked[:top], most, recommended(ranked, most), form), nl=False)
        return
    console = listing.console(PIPE_WIDTH)
    console.print(needs(work))
    console.print(ranking(ranked[:top], most, discount))
    console.print("\n".join(dates_of(ranked[:top], prices.today())))
    if discount is not None:
        hours = break_even_hours(discount)
        console.print(
            f"a reservation {discount:.0%} below the price pays from {hours:.0f} hours a month; "
            "it is paid for whole months, used or not"
        )
    console.print(vendors(None if cny_per_usd is None else Decimal(str(cny_per_usd)), sources=sources))
    console.print(Text(recommendation(ranked, most), style="bold"))
    if most is not None and not any(affordable(plan, most) in FITS for plan in ranked):
        raise click.ClickException(f"--budget = {most}: nothing finishes for that; see the ranking")


def is_wanted(plan: Candidate, vendors_wanted: Sequence[str], gpu: str) -> bool:
    """Return whether the filters leave a plan in."""
    model = (plan.offer.gpu_model or "").casefold()
    return (not vendors_wanted or plan.offer.vendor in vendors_wanted) and gpu.casefold() in model


def recommended(ranked: Sequence[Candidate], most: Money | None) -> Candidate | None:
    """Return the first plan that a stack can use and the budget pays for; None where there is none."""
    usable = (plan for plan in ranked if not plan.offer.comparison and plan.on_demand is not None)
    return next((plan for plan in usable if most is None or affordable(plan, most) in FITS), None)


def recommendation(ranked: Sequence[Candidate], most: Money | None) -> str:
    """Return the recommended plan in one line."""
    plan = recommended(ranked, most)
    if plan is None:
        return (
            "recommended: none of these, since no stack can use them, no price is public, or none is paid for"
        )
    spot = "" if plan.spot is None else f", {plan.spot} expected on spot"
    return (
        f"recommended: {plan.instances} x {plan.offer.name} ({plan.offer.vendor}), {plan.hours:,.1f} hours, "
        f"{plan.on_demand} on demand{spot}; `gpu-fleet new` writes a stack with --type {plan.offer.name}"
    )


def needs(work: Work) -> RenderableType:
    """Return a table of the run's needs on any instance."""
    parts_of = ("weights", "gradients", "optimizer", "activations", "in all")
    columns = (Column("spread over 8 GPUs"), *(Column(heading, "right") for heading in parts_of))
    table = Listing(columns, "memory of a GPU, GiB")
    for layout in LAYOUTS:
        held = memory(work, layout, EIGHT)
        parts = (held.weights, held.gradients, held.optimizer, held.activations, held.total)
        table.add_row(str(layout), *(f"{part / GIB:,.1f}" for part in parts))
    return Group(
        Text(
            f"{work.parameters:.3g} parameters ({work.layers} layers of {work.width}), "
            f"{work.tokens:.3g} tokens: {work.flops:.3g} operations, "
            f"{state_bytes(work.parameters) / GIB:,.1f} GiB of state"
        ),
        table,
    )


def ranking(ranked: list[Candidate], most: Money | None, discount: Decimal | None) -> Listing:
    """Return the plans in one table for all vendors; amounts of two currencies are never compared.

    Args:
        discount: a reservation's discount; None for no column of reservations.
    """
    share = facts()["utilisation"]["decoder"]
    words = ("type", "of", "spread", "prices of")
    wrapped = ("of", "spread", "reserved, whole months")
    headings = [
        "type",
        "of",
        "instances",
        "GPUs",
        "spread",
        "GiB/GPU",
        "hours",
        "on demand",
        "spot, expected",
    ]
    amounts = [attrgetter("on_demand"), attrgetter("spot")]
    if any(plan.spot_p90 for plan in ranked):
        headings.append("spot, 90th percentile")
        amounts.append(attrgetter("spot_p90"))
    headings += ["reserved, whole months"] if discount is not None else []
    headings += ["in the budget", "prices of"]
    columns = (
        Column(heading, "left" if heading in words else "right", wraps=heading in wrapped)
        for heading in headings
    )
    table = Listing(tuple(columns), f"cheapest first within a currency, at {share:.0%} of the peak")
    for plan in ranked:
        costs = ["unknown" if (amount := of(plan)) is None else str(amount) for of in amounts]
        table.add_row(
            plan.offer.name,
            f"{plan.offer.vendor}, comparison" if plan.offer.comparison else plan.offer.vendor,
            str(plan.instances),
            f"{plan.gpus} x {plan.offer.gpu_model}",
            str(plan.layout),
            f"{plan.memory.total / GIB:,.1f}",
            f"{plan.hours:,.1f}",
            *costs,
            *([] if discount is None else [_reserved(plan, discount)]),
            affordable(plan, most),
            plan.offer.price.region if plan.offer.price else "",
        )
    return table


def _reserved(plan: Candidate, discount: Decimal) -> str:
    """Format the cost of a reservation, and the share of its months that the run uses."""
    amount, months = reserved(plan, discount), months_begun(plan)
    if amount is None:
        return "unknown"
    used = plan.hours / (months * HOURS_PER_MONTH)
    return f"{amount}, {used:.0%} of {months} {'month' if months == 1 else 'months'} used"


def dates_of(ranked: list[Candidate], today: datetime.date) -> Iterator[str]:
    """Yield when the prices of each region were read, with their age if they are too old to trust."""
    regions = {plan.offer.price.region: None for plan in ranked if plan.offer.price}
    for region in regions:
        here = [plan.offer for plan in ranked if plan.offer.price and plan.offer.price.region == region]
        listed = min(offer.price.date for offer in here if offer.price)
        spot = min((offer.spot.date for offer in here if offer.spot), default=None)
        said = "spot unknown" if spot is None else f"spot {read_on(spot, today)}"
        yield f"prices of {region}: {read_on(listed, today)}; {said}"


def vendors(cny_per_usd: Decimal | None, *, sources: bool) -> RenderableType:
    """Return the scorecard, and on request the source of each number."""
    weights = offers.vendors().weights
    cards = scorecard.cards(cny_per_usd)
    criteria = (
        Column(f"{criterion} {weight}\n{scorecard.UNITS[criterion]}", "right", wraps=True)
        for criterion, weight in weights.items()
    )
    sums = (Column(heading, "right") for heading in ("of 100", "of the weight"))
    table = Listing((Column("vendor"), *criteria, *sums), "vendors, points by criterion (its number)")
    for card in cards:
        table.add_row(
            card.title,
            *(_points(card.scores[criterion]) for criterion in weights),
            f"{card.total:.0f}",
            f"{card.counted} %",
        )
    lines = [
        Text(f"{card.title}, {criterion}: {score.source}", style="dim")
        for card in cards
        for criterion, score in card.scores.items()
        if score is not None
    ]
    return Group(table, *(lines if sources else []))


def _points(score: scorecard.CriterionScore | None) -> str:
    """Format a score; an unknown one is shown as unknown, not as zero."""
    return "unknown" if score is None else f"{score.points:.1f} ({score.value:,.6g})"


if __name__ == "__main__":
    main()

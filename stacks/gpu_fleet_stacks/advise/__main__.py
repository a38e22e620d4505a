"""``gpu-fleet advise --params 7e9 --batch 32 --seq 2048``: needs of a run, and instances for it."""

import datetime
import difflib
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import get_args

import click
from rich.console import Group, RenderableType
from rich.text import Text

from gpu_fleet_image.core import listing
from gpu_fleet_image.core.listing import Column, Listing
from gpu_fleet_image.core.shared_options import AMOUNT, CNY_PER_USD, TABLE, FiniteRange, form_option
from gpu_fleet_stacks.advise import indicators, offers, programs, scorecard, scorecard_page
from gpu_fleet_stacks.advise.demands import DISK, Advice, Demands, advice, profiles
from gpu_fleet_stacks.advise.plan import (
    FITS,
    GIB,
    Candidate,
    affordable,
    break_even_hours,
    facts,
    months_begun,
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
from gpu_fleet_stacks.catalog import Cloud, prices, regions
from gpu_fleet_stacks.catalog.command import GpuModel
from gpu_fleet_stacks.catalog.money import HOURS_PER_MONTH, Money
from gpu_fleet_stacks.catalog.prices import read_on

PIPE_WIDTH = 170
NAMED = 3  # types that a line about those left out names
EIGHT = 8
MOST_GB = 1_000_000_000
COUNT = click.IntRange(1, 1_000_000_000)
MOST = 1e18  # parameters or tokens; amounts for more have too many digits


class LargeNumber(click.ParamType[float]):
    """A number such as 7e9 or 7000000000."""

    name = "number"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Refuse text that is no number, and numbers outside of the range."""
        try:
            number = float(str(value))
        except ValueError:
            number = float("nan")
        if not 1 <= number <= MOST:
            self.fail(f"{value!r} must be a number from 1 to {MOST:g}, such as 7e9", param, ctx)
        return number


class RegionName(click.ParamType[str]):
    """A region of either cloud."""

    name = "region"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a region that no stack may be in, and name the nearest ones."""
        known = sorted({name for cloud in Cloud for name in regions.of_cloud(cloud)})
        if value not in known:
            near = difflib.get_close_matches(value, known, n=3, cutoff=0)
            self.fail(f"{value!r}; the nearest are {', '.join(near)}", param, ctx)
        return value


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
@click.option("--batch", type=COUNT, required=True, help="Sequences of an optimizer step.")
@click.option("--seq", type=COUNT, required=True, help="Tokens of a sequence.")
@click.option(
    "--tokens", type=LargeNumber(), help=f"Tokens in all; by default {TOKENS_PER_PARAMETER} a parameter."
)
@click.option("--layers", type=COUNT, help="Layers of the model; by default from its size.")
@click.option("--width", type=COUNT, help="Width of a layer; by default from the model's size.")
@click.option("--days", type=FiniteRange(min=0, min_open=True), help="It must be done by then.")
@click.option("--budget", type=AMOUNT, help="Most to pay, in --currency.")
@click.option("--currency", type=click.Choice(["USD", "CNY"]), default="USD", show_default=True)
@click.option(
    "--reserved-discount",
    type=FiniteRange(0, 1, max_open=True),
    help="Share of the price that a reservation saves, 0 to 1.",
)
@click.option(
    "--cny-per-usd", type=CNY_PER_USD, help="To compare prices in yuan with dollars between vendors."
)
@click.option(
    "--data-gb", type=FiniteRange(0, MOST_GB, min_open=True), help="GB of training data on each instance."
)
@click.option("--data-iops", type=COUNT, help="Reads a second from where the data lies.")
@click.option("--region", type=RegionName(), help="Only there; prices of other regions never stand in.")
@click.option(
    "--compliance",
    type=click.Choice(list(profiles())),
    help="Only in the regions of this profile of the policy pack.",
)
@click.option(
    "--interconnect",
    type=FiniteRange(min=0, min_open=True),
    metavar="GBPS",
    help="Least Gbit/s of each of several instances.",
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
@click.option("--sources", is_flag=True, help="List the 23 indicators of the vendors, with their sources.")
@click.option(
    "--answers",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="TOML with your own values of indicators, a table for each vendor.",
)
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
    data_gb: float | None,
    data_iops: int | None,
    region: str | None,
    compliance: str | None,
    interconnect: float | None,
    vendor: tuple[str, ...],
    gpu: str,
    top: int | None,
    sources: bool,
    answers: Path | None,
    form: str,
) -> None:
    """Show what a training run needs, rank the instances that finish it by cost, compare vendors.

    The last line recommends one instance type that a stack can use, and says why. With -o csv the
    ranking alone is printed.
    """
    depth, breadth = shape_of(params)
    total = tokens or TOKENS_PER_PARAMETER * params
    work = Work(params, precision, batch, seq, total, layers or depth, width or breadth)
    demands = Demands(days, region, compliance, data_gb, data_iops, interconnect)
    wanted = [offer for offer in offers.offers() if is_wanted(offer, vendor, gpu)]
    advised = advice(work, demands, currency, wanted)
    most = None if budget is None else Money(Decimal(budget), currency)
    if not advised.plans:
        raise click.ClickException(
            f"--params = {params:g}: nothing known finishes it: {'; '.join(refusals(advised))}; allow more "
            "--days or fewer --tokens, or leave out other demands"
        )
    rate = None if cny_per_usd is None else Decimal(str(cny_per_usd))
    cards = scorecard.cards(indicators.known(rate, scorecard.answers(answers) if answers else None))
    if form != TABLE:
        click.echo(
            programs.text(work, advised.plans[:top], choice(advised.plans, most), cards, form), nl=False
        )
    else:
        discount = None if reserved_discount is None else Decimal(str(reserved_discount))
        console = listing.console(PIPE_WIDTH)
        console.print(needs(work))
        console.print(ranking(advised.plans[:top], most, discount))
        console.print(
            "\n".join(remarks(advised, advised.plans[:top], discount)), markup=False, highlight=False
        )
        console.print(scorecard_page.page(cards, sources=sources))
        console.print(Text(recommendation(advised.plans, most, demands), style="bold"))
    if most is not None and not any(affordable(plan, most) in FITS for plan in advised.plans):
        raise click.ClickException(f"--budget = {most}: nothing finishes for that; see the ranking")


def remarks(advised: Advice, shown: Sequence[Candidate], discount: Decimal | None) -> Iterator[str]:
    """Yield what to know about the ranking: what it leaves out, how exact it is, how old its prices are."""
    yield from refusals(advised)
    error = facts()["utilisation"]["held_out_error"]
    yield f"hours are an estimate: it was up to {error:.0%} off on published runs that the fit had not seen"
    yield from dates_of(shown, prices.today())
    if any(plan.data_on == DISK and plan.data_cost is None for plan in shown):
        yield "without the disks for the data where their price is unknown"
    if discount is not None:
        hours = break_even_hours(discount)
        yield (
            f"a reservation {discount:.0%} below the price pays from {hours:.0f} hours a month; "
            "it is paid for whole months, used or not"
        )


def refusals(advised: Advice) -> Iterator[str]:
    """Yield why types are left out, with their number and up to three of them."""
    for reason, names in advised.refused.items():
        some = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
        yield f"left out, {reason}: {len(names)} ({some})"


def is_wanted(offer: offers.Offer, vendors_wanted: Sequence[str], gpu: str) -> bool:
    """Return whether the filters leave an offer in."""
    model = (offer.gpu_model or "").casefold()
    return (not vendors_wanted or offer.vendor in vendors_wanted) and gpu.casefold() in model


def choice(plans: Sequence[Candidate], most: Money | None) -> programs.Choice:
    """Return the cheapest plan that a stack can use and the budget pays for, as far as there is one.

    A plan that fits the budget on demand comes before one that fits it on spot alone.
    """
    known = (plan for plan in plans if plan.on_demand is not None and not plan.lacks_data_cost)
    usable = [plan for plan in known if not plan.offer.comparison]
    paid = [plan for plan in usable if most is None or affordable(plan, most) == FITS[0]]
    on_spot = not paid and most is not None
    if on_spot:
        fitting = (plan for plan in usable if affordable(plan, most) in FITS and plan.spot is not None)
        paid = sorted(fitting, key=lambda plan: plan.spot.amount if plan.spot else 0)
    return programs.Choice(most, tuple(paid), on_spot=on_spot)


def recommendation(plans: Sequence[Candidate], most: Money | None, demands: Demands) -> str:
    """Return the recommended plan with its reason in one line."""
    chosen = choice(plans, most)
    if (plan := chosen.best) is None:
        return f"recommended: none of these, since {none_since(plans)}"
    spot = "" if plan.spot is None else f", {_on_spot(plan)} expected on spot"
    limit = "" if demands.days is None else f", is done in {demands.days:g} days"
    return (
        f"recommended: {plan.instances} x {plan.offer.name} ({plan.offer.vendor}), {plan.hours:,.1f} hours, "
        f"{plan.on_demand} on demand{spot}; it holds the run{limit} and {chosen.why()}; "
        f"`gpu-fleet new` writes a stack with --type {plan.offer.name}"
    )


def none_since(plans: Sequence[Candidate]) -> str:
    """Return why none of these plans can be recommended."""
    ours = [plan for plan in plans if not plan.offer.comparison]
    if not ours:
        return "no stack can use them"
    if all(plan.on_demand is None for plan in ours):
        return "no public price on demand is known of those that a stack can use"
    return "--budget pays for none that a stack can use, as far as prices are known"


def _on_spot(plan: Candidate) -> str:
    return f"{'at least ' if plan.spot_at_least else ''}{plan.spot}"


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


_WORDS = ("type", "of", "spread", "data on", "prices of")
_WRAPPED = ("of", "spread", "reserved, whole months")


def ranking(ranked: Sequence[Candidate], most: Money | None, discount: Decimal | None) -> Listing:
    """Return the plans in one table for all vendors; amounts of two currencies are never compared.

    Args:
        discount: a reservation's discount; None for no column of reservations.
    """
    columns = _columns(ranked, most, discount)
    share = facts()["utilisation"]["decoder"]
    table = Listing(
        tuple(
            Column(heading, "left" if heading in _WORDS else "right", wraps=heading in _WRAPPED)
            for heading, _ in columns
        ),
        f"cheapest first within a currency, at {share:.0%} of the peak",
    )
    for plan in ranked:
        table.add_row(*("unknown" if (cell := of(plan)) is None else str(cell) for _, of in columns))
    return table


def _columns(
    ranked: Sequence[Candidate], most: Money | None, discount: Decimal | None
) -> list[tuple[str, Callable[[Candidate], object]]]:
    """Return the heading of each column, and what it shows of a plan; None for an unknown amount."""
    columns: list[tuple[str, Callable[[Candidate], object]]] = [
        ("type", lambda plan: plan.offer.name),
        (
            "of",
            lambda plan: f"{plan.offer.vendor}, comparison" if plan.offer.comparison else plan.offer.vendor,
        ),
        ("instances", lambda plan: plan.instances),
        ("GPUs", lambda plan: f"{plan.gpus} x {plan.offer.gpu_model}"),
        ("spread", lambda plan: plan.layout),
        ("GiB/GPU", lambda plan: f"{plan.memory.total / GIB:,.1f}"),
        ("hours", lambda plan: f"{plan.hours:,.1f}"),
        ("on demand", lambda plan: plan.on_demand),
        ("spot, expected", lambda plan: None if plan.spot is None else _on_spot(plan)),
    ]
    if any(plan.spot_p90 for plan in ranked):
        columns.append(("spot, 90th percentile", lambda plan: plan.spot_p90))
    if discount is not None:
        columns.append(("reserved, whole months", lambda plan: _reserved(plan, discount)))
    if most:
        columns.append(("in the budget", lambda plan: affordable(plan, most)))
    if any(plan.data_on for plan in ranked):
        columns.append(("data on", lambda plan: plan.data_on))
    columns.append(("prices of", lambda plan: plan.offer.price.region if plan.offer.price else ""))
    return columns


def _reserved(plan: Candidate, discount: Decimal) -> str:
    """Format the cost of a reservation, and the share of its months that the run uses."""
    amount, months = reserved(plan, discount), months_begun(plan)
    if amount is None:
        return "unknown"
    used = plan.hours / (months * HOURS_PER_MONTH)
    return f"{amount}, {used:.0%} of {months} {'month' if months == 1 else 'months'} used"


def dates_of(ranked: Sequence[Candidate], today: datetime.date) -> Iterator[str]:
    """Yield when the prices of each region were read, with their age if they are too old to trust."""
    regions = {plan.offer.price.region: None for plan in ranked if plan.offer.price}
    for region in regions:
        here = [plan.offer for plan in ranked if plan.offer.price and plan.offer.price.region == region]
        listed = min(offer.price.date for offer in here if offer.price)
        spot = min((offer.spot.date for offer in here if offer.spot), default=None)
        said = "spot unknown" if spot is None else f"spot {read_on(spot, today)}"
        yield f"prices of {region}: {read_on(listed, today)}; {said}"


if __name__ == "__main__":
    main()

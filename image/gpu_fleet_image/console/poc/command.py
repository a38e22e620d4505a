"""``gpu-fleet poc``: what a pool is worth, measured on a few of its instances before more are bought."""

import json
import sys
import tempfile
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path

import click

from gpu_fleet_image.console.poc import limits as limits_file
from gpu_fleet_image.console.poc import result_page
from gpu_fleet_image.console.poc.campaign import COMPLETE, Campaign
from gpu_fleet_image.console.poc.limits import Limits
from gpu_fleet_image.console.poc.measured import Device
from gpu_fleet_image.console.poc.plan import PocPlan, confirmed_price, outline, packed_measurement
from gpu_fleet_image.console.poc.result import COLUMNS, PocResult, read
from gpu_fleet_image.console.poc.spending import CostMeter, cents, planned_cost, price_of_work
from gpu_fleet_image.console.poc.verdicts import judged
from gpu_fleet_image.console.runs.bucket import run_bucket
from gpu_fleet_image.console.runs.choice import Criteria, account_name
from gpu_fleet_image.console.runs.command import MOST_NODES
from gpu_fleet_image.console.users.take import Desk, caller_of, open_desk
from gpu_fleet_image.core import listing
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.options import POOL_NAME, stack_options
from gpu_fleet_image.core.place import Asked
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.shared_options import AMOUNT, CNY_PER_USD, CSV, JSON, FiniteRange, form_option, note
from gpu_fleet_image.core.times import format_time

DOCUMENT, PAGE = "poc.json", "poc.html"
PIPE_WIDTH = 180
EXIT_NOT_PASSED = 1


class NodeCounts(click.ParamType[tuple[int, ...]]):
    """Numbers of instances, ascending, as ``1,2,4``."""

    name = "N,N,..."

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Parse the text, or fail naming the allowed form."""
        if isinstance(value, tuple):
            return value
        try:
            counts = tuple(int(word) for word in str(value).split(","))
        except ValueError:
            counts = ()
        if (
            not counts
            or list(counts) != sorted(set(counts))
            or not 1 <= counts[0] <= counts[-1] <= MOST_NODES
        ):
            self.fail(
                f"{value!r}; allowed: numbers from 1 to {MOST_NODES}, ascending, such as 1,2,4", param, ctx
            )
        return counts


@click.command(epilog="\b\nExample:\n  gpu-fleet poc train --nodes 1,2,4 --max-usd 200 --stack aws-dev")
@click.argument("pool", type=POOL_NAME, required=False)
@click.option("--nodes", "counts", type=NodeCounts(), default="1,2", show_default=True, help="Instances.")
@click.option(
    "--max-usd",
    type=AMOUNT,
    help="Most that it may cost; needed to measure.",
)
@click.option(
    "--limits",
    "limits_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file of least figures; by default those of gpu-fleet, each with its source.",
)
@click.option(
    "--compare",
    "other_path",
    metavar="OTHER.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Show another result beside this one.",
)
@click.option(
    "--result",
    "result_path",
    metavar="POC.json",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Show this result again, and take nothing.",
)
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder of {DOCUMENT} and {PAGE}; by default this one, and with --result none.",
)
@click.option("--as", "account", metavar="ACCOUNT", help="Your account on the instances, as in `submit`.")
@click.option(
    "--cny-per-usd", type=CNY_PER_USD, help="Rate for a stack whose prices are in CNY, such as 7.1."
)
@click.option(
    "--seconds",
    type=FiniteRange(0.1, 600),
    default=15.0,
    show_default=True,
    help="Time of each measurement of storage.",
)
@click.option(
    "--size-mib",
    type=click.IntRange(16, 1 << 20),
    default=1024,
    show_default=True,
    help="Size of the files that it reads and writes.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@form_option
@stack_options
def poc(
    *,
    pool: str | None,
    counts: tuple[int, ...],
    max_usd: float | None,
    limits_path: Path | None,
    other_path: Path | None,
    result_path: Path | None,
    folder: Path | None,
    account: str | None,
    cny_per_usd: float | None,
    seconds: float,
    size_mib: int,
    yes: bool,
    form: str,
    asked: Asked,
) -> None:
    """Measure instances of POOL before buying more: storage, all-reduce, training; then give them back.

    Takes each number of --nodes in turn, within --max-usd, and writes poc.json and poc.html. Exit code 0 if
    it is complete and every limit is met. An unknown figure meets none.
    """
    other = read(other_path, "--compare") if other_path else None
    if result_path:
        if pool or max_usd or limits_path:
            raise ConfigurationError(
                f"--result {result_path}: takes no POOL, --max-usd or --limits; nothing is measured anew"
            )
        earlier = read(result_path, "--result")
        if folder:
            write(earlier, other, folder)
        shown(earlier, other, form)
        return
    if not pool or max_usd is None:
        raise click.UsageError("POOL and --max-usd are needed to measure; --result shows an earlier result")
    asked.refuse_pool("POOL", pool)
    limits = limits_file.load(limits_path or limits_file.SHIPPED)
    plan = PocPlan(pool, counts, Decimal(str(max_usd)), cny_per_usd, account, seconds, size_mib)
    place = writable(folder or Path())
    with redirect_stdout(sys.stderr):  # what `take` and `submit` say would stand between the keys of -o json
        result = measured(open_desk(asked), plan, limits, asked, yes=yes)
    write(result, other, place)
    shown(result, other, form)
    if not result.passed:
        sys.exit(EXIT_NOT_PASSED)


def measured(desk: Desk, plan: PocPlan, limits: Limits, asked: Asked, *, yes: bool) -> PocResult:
    """Measure a plan on a stack; whatever ends it, the instances are given back.

    Raises:
        ConfigurationError: the plan is refused; nothing was taken.
        Abort: the user does not want it.
    """
    price = confirmed_price(desk.policy, plan)
    planned = planned_cost(price, plan.counts)
    note(outline(plan, price, planned))
    if not yes and not click.confirm("Take and measure them?", default=True, err=True):
        raise click.Abort
    begun, caller = desk.now(), caller_of(desk.place)
    campaign = Campaign(
        desk,
        run_bucket(replace(desk.place, account_id=asked.account_id or "")),
        Criteria(plan.pool, max(plan.counts), (), account_name(plan.account, caller), caller),
        CostMeter(price, plan.cap, desk.now),
        lambda first: packed_measurement(plan, first=first),
        note_if_open,
    )
    ending = campaign.run_to_an_end(plan.counts)
    if ending.outcome != COMPLETE:
        note_if_open(f"{ending.outcome.replace('-', ' ')}: {ending.reason}")
    for problem in campaign.problems:
        note_if_open(f"{problem}; gpu-fleet status --stack {desk.policy.stack} shows what still costs money")
    facts = {
        "outcome": ending.outcome,
        "reason": ending.reason,
        "started_at": format_time(begun),
        "ended_at": format_time(desk.now()),
        "price_per_hour": str(cents(price)),
        "max_usd": str(cents(plan.cap)),
        "planned_usd": str(planned),
        "cost_usd": str(cents(ending.cost)),
    }
    return _result(plan, limits, campaign, facts)


def note_if_open(text: str) -> None:
    """Print a note; a terminal that was closed meanwhile keeps no instance and no result."""
    with suppress(OSError):
        note(text)


def _result(plan: PocPlan, limits: Limits, campaign: Campaign, facts: dict[str, str]) -> PocResult:
    devices = [log.device for log in campaign.logs if log.device]
    device = devices[-1] if devices else Device("", 0, "", "")
    policy = campaign.desk.policy
    own = {"stack": policy.stack, "cloud": policy.cloud, "region": policy.region, "pool": plan.pool}
    about = {"device": device.name, "backend": device.backend, "torch": device.torch}
    rows = [row for log in campaign.logs for row in log.rows]
    price = price_of_work(policy, plan.pool, campaign.meter.price)
    return PocResult(
        {**own, **facts, **about},
        device.ranks_per_node,
        plan.counts,
        tuple(policy.pools[plan.pool].hourly_price),
        tuple(judged(rows, limits, price, device.ranks_per_node)),
        tuple(asdict(stage) for stage in campaign.stages),
        campaign.given_back,
        tuple(campaign.problems),
    )


def writable(folder: Path) -> Path:
    """Return the folder, made if it was missing; raises ConfigurationError before any money is spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ConfigurationError(f"--to {folder}: {error.strerror}") from error


def write(result: PocResult, other: PocResult | None, folder: Path) -> None:
    """Write the document and the page. Raises ConfigurationError."""
    text = json.dumps(result.to_json(), indent=1) + "\n"
    try:
        (writable(folder) / DOCUMENT).write_text(text, encoding="utf-8")
        (folder / PAGE).write_text(result_page.page(result, other), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--to {folder}: {error.strerror}") from error
    note(f"{folder / DOCUMENT} and {folder / PAGE} are written")


def shown(result: PocResult, other: PocResult | None, form: str) -> None:
    """Print a result."""
    if form == JSON:
        compared = {"other": other.to_json()} if other else {}
        click.echo(json.dumps({**result.to_json(), **compared}, indent=1))
    elif form == CSV:
        click.echo(csv_text(COLUMNS, [row.to_json() for row in result.rows]), nl=False)
    else:
        listing.console(PIPE_WIDTH).print(result_page.listing(result, other))
        click.echo(result_page.headline(result))

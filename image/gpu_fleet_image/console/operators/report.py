"""``gpu-fleet report``: a month of the ledger, or a day of the meter, as an HTML page."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from gpu_fleet_image.console.operators import charged, report_rows, waste
from gpu_fleet_image.console.operators.bill import opened
from gpu_fleet_image.console.operators.monthly_savings import (
    Month,
    Summary,
    month_of,
    parse_month,
    summarise,
)
from gpu_fleet_image.console.users.ledger_reader import LedgerPlace, read_changes, read_ends
from gpu_fleet_image.controllers.meter import chargeback, daily_report, efficiency_page
from gpu_fleet_image.controllers.meter.efficiency import Efficiency
from gpu_fleet_image.controllers.meter.team_budgets import members_of
from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core.cloud import LEDGER_URI, SweepCloud, connect
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.options import subject_options
from gpu_fleet_image.core.place import Asked, Subject, subject
from gpu_fleet_image.core.reaper_errors import ConfigurationError
from gpu_fleet_image.core.shared_options import CSV, JSON, OutputFile
from gpu_fleet_image.core.store import Store

PAGE = "page"


@click.command(epilog="\b\nExample:\n  gpu-fleet report --stack aws-dev --month 2026-11")
@click.option("--month", "month_text", metavar="YEAR-MONTH", help="The month; by default the present one.")
@click.option(
    "--day", "day_text", metavar="YEAR-MONTH-DAY", help="A day's GPU hours instead: rented, computing, idle."
)
@click.option(
    "--waste",
    "waste_days",
    metavar="[DAYS]",
    type=click.IntRange(1, 366),
    is_flag=False,
    flag_value=30,
    help="The idle GPU hours of the last days instead, by pool and owner; 30 days where none are named.",
)
@click.option(
    "--by", type=click.Choice(list(chargeback.BY)), help="Print the month's cost by this key, in rows."
)
@click.option(
    "--bill",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare the month with this bill: AWS's CUR or Data Exports, Alibaba Cloud's bill details.",
)
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice([PAGE, JSON, CSV, charged.FOCUS]),
    default=PAGE,
    show_default=True,
    help="A form for programs: json or csv, whose keys the documentation has (JSON and CSV output); focus: "
    "rows of FOCUS 1.2.",
)
@click.option(
    "--to",
    "output",
    type=OutputFile(),
    help="Output file; by default saved-MONTH.html, day-DAY.html or waste-DAYS.html; rows are printed.",
)
@subject_options
def report(
    *,
    month_text: str | None,
    day_text: str | None,
    waste_days: int | None,
    by: str | None,
    form: str,
    bill: Path | None,
    output: Path | None,
    asked: Asked,
) -> None:
    """Write a page with plots: a month's savings by the reaper, a day's GPU hours, or weeks of idle ones.

    With --by print the cost and GPU hours of the month by a key; the rows add up to the meter.
    With --bill print what the month's bill and the meter have by day and instance, or --by pool.
    """
    rows_form = CSV if form == PAGE and (by or bill) else form
    wanted = charged.RowsWanted(by, rows_form, opened(bill) if bill else None)
    _refuse(wanted, {"--month": month_text, "--day": day_text, "--waste": waste_days})
    day = _parsed_day(day_text) if day_text else ""
    month = parse_month(month_text) if month_text else month_of(datetime.now(UTC))
    meant = subject(asked)
    if wanted.any or form != PAGE:
        rows = (
            charged.text_of(wanted, meant, asked, _records(meant, wanted.option)[1], month)
            if wanted.any
            else _waste(meant, waste_days, form)[1]
            if waste_days
            else _for_programs(meant, month, day, form)
        )
        if output is None:
            click.echo(rows, nl=False)
        else:
            output.write_text(rows, encoding="utf-8")
        return
    name, text, summary = (
        _waste(meant, waste_days, form) if waste_days else _day(meant, day) if day else _month(meant, month)
    )
    path = output or Path(name)
    path.write_text(text, encoding="utf-8")
    click.echo(f"{summary}: {path}")


def _refuse(wanted: charged.RowsWanted, spans: Mapping[str, str | int | None]) -> None:
    """Refuse options that contradict one another. Raises ConfigurationError."""
    wanted.check()
    given = [f"{option} {value!r}" for option, value in spans.items() if value]
    if wanted.any and not spans["--month"]:
        given.insert(0, wanted.option)
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)}; allowed: one of them")


def _for_programs(meant: Subject, month: Month, day: str, form: str) -> str:
    """Return the day, or else the month, as ``json`` or ``csv``."""
    columns: tuple[str, ...]
    if day:
        columns, document = report_rows.OF_A_DAY, report_rows.day(_efficiency_of(meant, day))
    else:
        summary, _ = _summary_of(meant, month)
        columns, document = report_rows.OF_A_MONTH, report_rows.month(summary, meant.policy.stack)
    return csv_text(columns, document["rows"]) if form == CSV else json.dumps(document, indent=1) + "\n"


def _parsed_day(text: str) -> str:
    """Parse a day in the meter's form. Raises ConfigurationError."""
    try:
        return f"{datetime.strptime(text, '%Y-%m-%d').replace(tzinfo=UTC):%Y-%m-%d}"
    except ValueError as error:
        raise ConfigurationError(f"--day {text!r}; allowed: YEAR-MONTH-DAY, say 2026-11-21") from error


def _month(meant: Subject, month: Month) -> tuple[str, str, str]:
    """Return the page's default name, the page, and a summary line."""
    try:
        from gpu_fleet_image.console.operators import monthly_page  # noqa: PLC0415 - instances have no package for plots
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"a month's page needs {error.name}, which is not installed here (no instance has it): run "
            "this in a checkout with --stack NAME, or name a --day"
        ) from error
    summary, place = _summary_of(meant, month)
    page = monthly_page.page(summary, meant.policy.stack, read_changes(place, month))
    acts = f"{len(summary.savings)} terminations and stops"
    line = f"{summary.total} {summary.currency} saved by {acts} in {month.name}"
    return f"saved-{month.name}.html", page, line


def _summary_of(meant: Subject, month: Month) -> tuple[Summary, LedgerPlace]:
    """Return a month's summary, and the place of the ledger."""
    policy, uri = meant.policy, meant.environ.get(LEDGER_URI, "")
    place = LedgerPlace.of(uri, clouds.bucket_client(policy.cloud, policy.region))
    return summarise(read_ends(place, month), month, datetime.now(UTC)), place


def _waste(meant: Subject, count: int, form: str) -> tuple[str, str, str]:
    """Return the same for the last complete days; text is the page, or rows for programs."""
    policy, (_, store) = meant.policy, _records(meant, "--waste")
    until = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days, computing, missing = daily_report.between(store, until - timedelta(days=count), until)
    if not days:
        raise ConfigurationError(f"--waste {count}: the meter has no day of the last {count} on record")
    gpus = policy.budget.gpus_of_pools() if policy.budget else {}
    days = charged.of_accounts(days, members_of(store))
    wasted = waste.sum_up(days, computing, gpus, stack=policy.stack, currency=policy.currency)
    text = waste.page(wasted, missing) if form == PAGE else waste.as_text(wasted, form)
    return f"waste-{count}.html", text, waste.line(wasted)


def _day(meant: Subject, name: str) -> tuple[str, str, str]:
    """Return the same for a day that the meter has closed."""
    day = _efficiency_of(meant, name)
    return f"day-{name}.html", efficiency_page.page(day), f"{name}: {efficiency_page.headline(day)}"


def _efficiency_of(meant: Subject, name: str) -> Efficiency:
    cloud, store = _records(meant, "--day")
    return daily_report.efficiency(cloud, meant.policy, daily_report.load(store, name), datetime.now(UTC))


def _records(meant: Subject, option: str) -> tuple[SweepCloud, Store]:
    cloud = connect(meant.policy, lambda: datetime.now(UTC), read_only=True, environ=meant.environ)
    if cloud.store is None:
        raise ConfigurationError(f"{option} needs --ledger or {LEDGER_URI}; allowed: s3://BUCKET/PREFIX")
    return cloud, cloud.store

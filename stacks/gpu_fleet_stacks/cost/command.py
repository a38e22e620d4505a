"""``gpu-fleet cost STACK``: the cost of a stack before it is deployed."""

import json

import click

from gpu_fleet_image.core import listing
from gpu_fleet_image.core.csv_rows import csv_text
from gpu_fleet_image.core.shared_options import CSV, TABLE, form_option, note
from gpu_fleet_stacks.catalog import prices
from gpu_fleet_stacks.cost import notice, page, view
from gpu_fleet_stacks.cost.compare_command import CompareRequest, compare_options
from gpu_fleet_stacks.cost.estimate import estimate
from gpu_fleet_stacks.cost.lines import hold_to_budget
from gpu_fleet_stacks.settings import stack_files
from gpu_fleet_stacks.settings.quantities import Volumes
from gpu_fleet_stacks.settings.stack_argument import stack_argument

PIPE_WIDTH = 140
Gigabytes = click.IntRange(0, 1_000_000_000)


@click.command(epilog="\b\nExample:\n  gpu-fleet cost aws-dev --bucket-gb 2000")
@stack_argument
@click.option("--bucket-gb", type=Gigabytes, default=100, show_default=True, help="GB in all buckets.")
@click.option("--home-gb", type=Gigabytes, default=100, show_default=True, help="GB in homes (AWS).")
@click.option(
    "--log-gb",
    type=Gigabytes,
    default=100,
    show_default=True,
    help="GB of flow log and instances' logs a month.",
)
@click.option("--nat-gb", type=Gigabytes, default=100, show_default=True, help="GB through NAT a month.")
@click.option("--egress-gb", type=Gigabytes, default=0, help="GB to the internet a month.")
@click.option("--snapshot-gb", type=Gigabytes, default=0, help="GB in snapshots of disks.")
@compare_options
@form_option
def cost(
    name: str,
    *,
    bucket_gb: int,
    home_gb: int,
    log_gb: int,
    nat_gb: int,
    egress_gb: int,
    snapshot_gb: int,
    form: str,
    comparing: CompareRequest | None,
) -> None:
    """Show what a stack costs per hour and per month, and what is left of its budget.

    Fails where the worst month exceeds the budget, as `pulumi up` does. With --compare show the ways
    to pay for its instances instead.
    """
    stack = stack_files.settings_of(name)
    if comparing is not None:
        comparing.show(stack, form)
        return
    estimated = estimate(stack, Volumes(bucket_gb, home_gb, log_gb, nat_gb, egress_gb, snapshot_gb))
    said = notice.warnings_of(stack, estimated, prices.today())
    if form == CSV:
        click.echo(csv_text(page.COLUMNS, page.rows(estimated)), nl=False)
    elif form != TABLE:
        document = {"stack": stack.name, "region": stack.region, "warnings": said}
        click.echo(json.dumps(document | view.output(estimated, stack.budget.monthly), indent=1))
    else:
        listing.console(PIPE_WIDTH).print(page.page(estimated, stack.budget.monthly))
        for warning in said:
            note(f"warning: {warning}")
    hold_to_budget(estimated, stack.budget.monthly, allow_overcommit=stack.budget.allow_overcommit)

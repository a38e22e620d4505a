"""A month of the meter as rows of FOCUS 1.2, the FinOps Open Cost and Usage Specification. Pure.

One row for each instance, day and account that had it, and for what no instance had: disks of stopped
instances, each unused reservation, what all pools share. Costs keep the meter's nine digits: they add up to
the meter without rounding. The meter counts list prices, and on spot the market's: all four costs of a row
are the same, and no column has a unit price or a SKU. Columns: tag v1.2 of
github.com/FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, by the rules of ``focus-validator`` 2.2.1 (model
1.2.0.1).
"""

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gpu_fleet_image.controllers.meter.chargeback import divided, owners
from gpu_fleet_image.controllers.meter.meter import DAY, SHARED
from gpu_fleet_image.controllers.meter.meter_state import SECONDS_PER_HOUR, Day, DayShare, Unused
from gpu_fleet_image.core.holds import account_named
from gpu_fleet_image.core.job_use import Used
from gpu_fleet_image.core.model import TAG_OWNER, TAG_POOL, TAG_STACK
from gpu_fleet_image.core.policy import Policy

COSTS = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost")
COLUMNS = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd"),
    *("BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("ChargePeriodEnd", "ChargePeriodStart"),
    *(
        "CommitmentDiscountId",
        "CommitmentDiscountStatus",
        "ConsumedQuantity",
        "ConsumedUnit",
        "ContractedCost",
    ),
    *(
        "EffectiveCost",
        "InvoiceId",
        "InvoiceIssuerName",
        "ListCost",
        "PricingCategory",
        "PricingQuantity",
        "PricingUnit",
    ),
    *("ProviderName", "PublisherName", "RegionId", "RegionName", "ResourceId", "ResourceName"),
    *("ResourceType", "ServiceCategory", "ServiceName", "ServiceSubcategory", "Tags"),
)
PROVIDERS = {"aws": "AWS", "alicloud": "Alibaba Cloud"}
SERVICES = {"aws": "Amazon Elastic Compute Cloud", "alicloud": "Elastic Compute Service"}
TAG_TEAM = "gpu-fleet:team"
_SHARED = {
    "ServiceName": "Shared by all pools",
    "ServiceCategory": "Other",
    "ServiceSubcategory": "Other (Other)",
}
_HOURS = "Hours"
Row = dict[str, str]


@dataclass(frozen=True)
class _Month:
    """The month of the rows, with what they have in common."""

    policy: Policy
    account: str
    begin: datetime
    teams: Mapping[str, str]
    jobs: Mapping[str, Used]

    @property
    def end(self) -> datetime:
        """The first moment of the next month."""
        return (self.begin + timedelta(days=31)).replace(day=1)

    def row(self, cost: Decimal, begin: datetime, end: datetime, text: str, **tags: str) -> Row:
        """Return the columns that every row fills."""
        provider = PROVIDERS[self.policy.cloud]
        known = {TAG_STACK: self.policy.stack, **{key: value for key, value in tags.items() if value}}
        return dict.fromkeys(COSTS, _number(cost)) | {
            "BillingAccountId": self.account,
            "BillingAccountName": f"{provider} {self.account}",
            "BillingCurrency": self.policy.currency,
            "BillingPeriodStart": _time(self.begin),
            "BillingPeriodEnd": _time(self.end),
            "ChargePeriodStart": _time(begin),
            "ChargePeriodEnd": _time(end),
            "ChargeDescription": text,
            "ChargeFrequency": "Usage-Based",
            "InvoiceIssuerName": provider,
            "ProviderName": provider,
            "PublisherName": provider,
            "RegionId": self.policy.region,
            "RegionName": self.policy.region,
            "ServiceName": SERVICES[self.policy.cloud],
            "ServiceCategory": "Compute",
            "ServiceSubcategory": "Virtual Machines",
            "Tags": json.dumps(known, sort_keys=True),
        }


def rows(
    days: Sequence[Day],
    month_cost: Decimal | None,
    policy: Policy,
    account: str,
    *,
    teams: Mapping[str, str],
    jobs: Mapping[str, Used],
) -> Iterator[Row]:
    """Yield column -> text for each charge of a month, without the columns that are null.

    Args:
        days: of one month, one at least, in any order.
        month_cost: the meter's cost of the whole month; None for the sum of the days.
        account: id of the account that pays.
        teams: owner -> team.
        jobs: day -> the time of the queue's jobs on each instance.
    """
    ordered = sorted(days, key=lambda day: day.date)
    month = _Month(policy, account, ordered[0].date.replace(day=1), teams, jobs)
    counted = sum((day.cost for day in ordered), Decimal(0))
    if month_cost is not None and month_cost != counted:
        text = "metered before the days on record"
        yield {
            **month.row(month_cost - counted, month.begin, max(ordered[0].date, month.begin + DAY), text),
            **_SHARED,
            "ChargeCategory": "Adjustment",
        }
    for day in ordered:
        yield from _of_day(month, day)


def _of_day(month: _Month, day: Day) -> Iterator[Row]:
    rest: dict[str, Decimal] = defaultdict(Decimal, day.costs)
    for key, share in sorted(day.instances.items()):
        rest[share.instance.pool] -= share.cost
        yield from _of_instance(month, day, key, share)
    for pool, reservation, unused in _unused(day):
        rest[pool] -= unused.cost
        text = f"{reservation or 'the reservation'} of {pool}, unused"
        row = month.row(unused.cost, day.date, day.date + DAY, text, **{TAG_POOL: pool})
        yield row | _used(Decimal(unused.seconds) / SECONDS_PER_HOUR, "Standard")
    for pool, cost in sorted(rest.items()):
        if not cost:
            continue
        shared = pool == SHARED
        text = "what all pools share" if shared else "disks of stopped instances"
        row = month.row(cost, day.date, day.date + DAY, text, **({} if shared else {TAG_POOL: pool}))
        yield row | _used(Decimal(day.seconds) / SECONDS_PER_HOUR, "Standard") | (_SHARED if shared else {})


def _unused(day: Day) -> Iterator[tuple[str, str, Unused]]:
    """Yield pool, reservation and the time of it that no instance used."""
    for pool, held in sorted(day.unused.items()):
        for reservation, unused in sorted(held.items()):
            yield pool, reservation, unused


def _of_instance(month: _Month, day: Day, key: str, share: DayShare) -> Iterator[Row]:
    """Yield a row for each account that had the instance."""
    instance = share.instance
    market = " on spot" if instance.spot else ""
    category = "Dynamic" if instance.spot else "Standard"
    text, named = f"{instance.type}{market} and its disks", {"ResourceId": key, "ResourceName": key}
    hours = Decimal(share.seconds) / SECONDS_PER_HOUR
    for owner, part, cost in divided(share.cost, owners(day, key, share, month.jobs)):
        tags = {TAG_POOL: instance.pool, TAG_OWNER: owner}
        tags[TAG_TEAM] = month.teams.get(account_named(owner), "")
        row = month.row(cost, day.date, day.date + DAY, text, **tags)
        yield row | _used(hours * part, category) | named | {"ResourceType": "Instance"}


def _used(hours: Decimal, category: str) -> Row:
    """Return the columns of a charge for hours of use."""
    quantity = _number(hours.quantize(Decimal("1e-9")))
    return {
        "ChargeCategory": "Usage",
        "ConsumedQuantity": quantity,
        "ConsumedUnit": _HOURS,
        "PricingCategory": category,
        "PricingQuantity": quantity,
        "PricingUnit": _HOURS,
    }


def as_csv(charges: Iterable[Row]) -> str:
    """Return rows as CSV; a column without a value is null."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(charges)
    return text.getvalue()


def _number(amount: Decimal) -> str:
    return f"{amount:f}"


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

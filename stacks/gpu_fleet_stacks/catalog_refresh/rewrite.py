"""New prices in the price files; comments, order and everything else stay. Pure."""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import tomlkit

from gpu_fleet_stacks.catalog.instance_types import Cloud
from gpu_fleet_stacks.catalog_refresh.listed import ListedPrices, ListPrice, plain
from gpu_fleet_stacks.core.errors import StacksError


class RefreshError(StacksError):
    """Prices that do not fit the files; nothing is written."""


@dataclass(frozen=True)
class PriceChange:
    """One price before and after.

    Attributes:
        before: the price in the file; None for unknown.
    """

    what: str
    before: str | None
    after: str
    currency: str
    source: str

    @property
    def moved(self) -> bool:
        """Return whether the amount changed; the date changes in any case."""
        return self.before is None or Decimal(self.before) != Decimal(self.after)


def rewrite_catalog(text: str, cloud: Cloud, answers: ListedPrices) -> tuple[str, list[PriceChange]]:
    """Return catalog.toml with new instance prices of one cloud.

    Where every type of a price list has a new price, the list gets the new day and source. Where only some
    have, the types without a new price move to a list that keeps the old day.

    Raises:
        RefreshError: a price is in another currency than its list.
    """
    document = tomlkit.parse(text)
    lists: Any = document["price_lists"]
    before = {name: (table["date"], table["source"]) for name, table in lists.items()}
    changes, kept = [], []
    for family, row in list(_rows(document, cloud)):
        name = _list_of(family, row) or _default_list(lists, cloud)
        listed = None if name is None else answers.instances.get((row["name"], lists[name]["region"]))
        if name is None or listed is None:
            kept.append((family, row))
            continue
        _same_currency(row["name"], listed, lists[name]["currency"], f"price_lists.{name}")
        changes.append(_change(row["name"], row.get("price"), listed))
        row["price"] = plain(listed.amount)
        if _list_of(family, row) is None:
            row["price_list"] = name
        lists[name]["date"], lists[name]["source"] = answers.date, listed.source
    _keep_old_days(lists, before, kept)
    return tomlkit.dumps(document), changes


def rewrite_prices(text: str, cloud: Cloud, answers: ListedPrices) -> tuple[str, list[PriceChange]]:
    """Return prices.toml with the new prices of one cloud, except those of instance types.

    Raises:
        RefreshError: a price is in another currency than the cloud's list.
    """
    document = tomlkit.parse(text)
    table = document["clouds"][cloud]
    changes = []
    for what, listed in answers.others.items():
        row = table["prices"][what]
        _same_currency(what, listed, table["currency"], f"clouds.{cloud}")
        changes.append(_change(what, row.get("amount"), listed))
        row["amount"], row["date"], row["source"] = plain(listed.amount), answers.date, listed.source
    if answers.spot:
        changes += _rewrite_spot(table["spot"], table["currency"], answers)
    if answers.egress or answers.reserved:
        changes += _rewrite_region(table, answers)
    return tomlkit.dumps(document), changes


def _rewrite_spot(spot: Any, currency: str, answers: ListedPrices) -> Iterator[PriceChange]:
    """Replace all spot prices by those of one day, so that no older price stays; yield the changes."""
    spot["date"], spot["source"] = answers.date, answers.spot_source
    for name in [name for name in spot["prices"] if name not in answers.spot]:
        del spot["prices"][name]
    for name, span in answers.spot.items():
        before = spot["prices"].get(name, {}).get("expected")
        row = tomlkit.inline_table()
        row.update({"expected": plain(span.median), "p90": plain(span.p90)})
        spot["prices"][name] = row
        expected = ListPrice(span.median, currency, answers.spot_source)
        yield _change(f"{name} on spot", before, expected)


def _rewrite_region(table: Any, answers: ListedPrices) -> Iterator[PriceChange]:
    """Replace egress and reservations of one region, each by those of one day; yield the changes."""
    listed: dict[str, dict[str, Decimal]] = {}
    for start, amount in answers.egress.items():
        listed.setdefault("egress", {})[str(start)] = amount
    for (term, name), amount in answers.reserved.items():
        listed.setdefault(term, {})[name] = amount
    rows = table["regions"].setdefault(answers.region, tomlkit.table())
    for term, amounts in listed.items():
        column = "tiers" if term == "egress" else "prices"
        before = rows.get(term, {}).get(column, {})
        for key, amount in amounts.items():
            what = f"egress from {key} GB" if term == "egress" else f"{key}, {term.replace('_', ' ')}"
            yield _change(what, before.get(key), ListPrice(amount, table["currency"], answers.source))
        written = tomlkit.inline_table()
        written.update({"date": answers.date, "source": answers.source})
        written[column] = tomlkit.inline_table()
        written[column].update({key: plain(amount) for key, amount in amounts.items()})
        rows[term] = written


def wanted(text: str, cloud: Cloud) -> dict[str, str]:
    """Return every type of a cloud with the region of its price."""
    document = tomlkit.parse(text)
    lists = document["price_lists"]
    names = {}
    for family, row in _rows(document, cloud):
        name = _list_of(family, row) or _default_list(lists, cloud)
        if name is not None:
            names[str(row["name"])] = str(lists[name]["region"])
    return names


def _rows(document: Any, cloud: Cloud) -> Iterator[tuple[Any, Any]]:
    """Yield each family of a cloud with each of its types."""
    for family in document["families"].values():
        if family["cloud"] == cloud:
            for row in family["types"]:
                yield family, row


def _list_of(family: Any, row: Any) -> str | None:
    name: str | None = row.get("price_list") or family.get("price_list")
    return name


def _default_list(lists: Any, cloud: Cloud) -> str | None:
    """Return the list for a type without a price: the cloud's first."""
    return next((name for name in lists if name.split("-")[0] == cloud), None)


def _keep_old_days(
    lists: Any, before: Mapping[str, tuple[datetime.date, str]], kept: list[tuple[Any, Any]]
) -> None:
    """Move types without a new price to a list of the old day, where their own list has a new day."""
    for family, row in kept:
        name = _list_of(family, row)
        if name is None or "price" not in row or (lists[name]["date"], lists[name]["source"]) == before[name]:
            continue
        date, source = before[name]
        old = f"{name}-{date}"
        if old not in lists:
            table = tomlkit.table()
            table.update(
                {
                    "currency": lists[name]["currency"],
                    "region": lists[name]["region"],
                    "date": date,
                    "source": source,
                }
            )
            lists[old] = table
        row["price_list"] = old


def _change(what: str, before: Any, listed: ListPrice) -> PriceChange:
    return PriceChange(
        what, None if before is None else str(before), plain(listed.amount), listed.currency, listed.source
    )


def _same_currency(what: str, listed: ListPrice, currency: str, where: str) -> None:
    if listed.currency != currency:
        raise RefreshError(
            f"{what} is listed in {listed.currency}, {where} is in {currency}: ask with an account that is "
            f"billed in {currency}"
        )

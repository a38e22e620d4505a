"""New prices in the price files; comments, order and everything else stay. Pure."""

import datetime
from collections.abc import Iterator, Mapping, Sequence
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

    Raises RefreshError if a price is in another currency than its list.
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

    Raises RefreshError if a price is in another currency than the cloud's list.
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
    """Replace egress of one region, and each of its reservations that has a new price; yield the changes."""
    region = table.setdefault("regions", tomlkit.table()).setdefault(answers.region, tomlkit.table())
    tiers = {str(start): amount for start, amount in answers.egress.items()}
    if tiers:
        before = region.get("egress", {}).get("tiers", {})
        yield from _changed("egress from {} GB", before, tiers, table["currency"], answers.source)
        region["egress"] = _dated(answers, "tiers", tiers)
    for term in sorted({term for term, _ in answers.reserved}):
        amounts = {name: amount for (of, name), amount in answers.reserved.items() if of == term}
        rows = region.get(term, [])
        rows = rows if isinstance(rows, list) else [rows]
        before = {name: amount for row in rows for name, amount in row["prices"].items()}
        what = f"{{}}, {term.replace('_', ' ')}"
        yield from _changed(what, before, amounts, table["currency"], answers.source)
        region[term] = _of_days(_dated(answers, "prices", amounts), rows)


def _changed(
    what: str, before: Mapping[str, Any], amounts: Mapping[str, Decimal], currency: str, source: str
) -> Iterator[PriceChange]:
    for key, amount in amounts.items():
        yield _change(what.format(key), before.get(key), ListPrice(amount, currency, source))


def _dated(answers: ListedPrices, column: str, amounts: Mapping[str, Decimal]) -> Any:
    """Return a row of the prices of a day."""
    row, prices = tomlkit.inline_table(), tomlkit.inline_table()
    prices.update({key: plain(amount) for key, amount in amounts.items()})
    row.update({"date": answers.date, "source": answers.source, column: prices})
    return row


def _of_days(new: Any, rows: Sequence[Any]) -> Any:
    """Return a row of new prices, with what the earlier rows alone have, which keeps its day and source."""
    for row in rows:
        for name in new["prices"]:
            row["prices"].pop(name, None)
    older = [row for row in rows if row["prices"]]
    if not older:
        return new
    both = tomlkit.array()
    both.extend([new, *older])
    return both


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

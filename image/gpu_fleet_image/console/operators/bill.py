"""Reader of a cloud's bill: AWS's Cost and Usage Report and Data Exports, Alibaba Cloud's bill details.

Columns: docs.aws.amazon.com/cur/latest/userguide, data-dictionary.html (legacy), table-dictionary-cur2.html;
alibabacloud.com/help/en/boa/latest/detailed-file-format (by API and OSS), and the Chinese headings of the
file that the console exports, whose columns are those of API DescribeInstanceBill.
"""

import csv
import gzip
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from gpu_fleet_image.core.model import TAG_POOL, TAG_STACK
from gpu_fleet_image.core.reaper_errors import ConfigurationError

Row = Mapping[str, Any]
MOST_OF_A_LINE = Decimal(10**12)  # of any currency: sums keep their cents
PARQUET, GZIP, ZIP = b"PAR1", b"\x1f\x8b", b"PK\x03\x04"
# of UTF-8, CSV, gzip and zip; the last two also where an archive is encrypted or of another method
DAMAGES = (ValueError, EOFError, csv.Error, zlib.error, zipfile.BadZipFile, RuntimeError)
# Lines of AWS that are use of a resource; taxes, credits, fees and negations are compared with nothing.
USE = frozenset({"", "Usage", "DiscountedUsage", "SavingsPlanCoveredUsage"})


@dataclass(frozen=True)
class BillColumns:
    """The columns of one kind of bill.

    Attributes:
        kind: column with the kind of a line; empty where every line is use.
        tags: columns of tags: a map, a text of all of them, or the beginning of one column for each.
    """

    title: str
    account: str
    day: str
    resource: str
    cost: str
    currency: str
    kind: str
    tags: str

    @property
    def needed(self) -> set[str]:
        """The columns without which no line can be read."""
        return {self.account, self.day, self.resource, self.cost, self.currency} | {self.kind} - {""}


KNOWN_COLUMNS = (
    BillColumns(
        "AWS Cost and Usage Report",
        *("lineItem/UsageAccountId", "lineItem/UsageStartDate", "lineItem/ResourceId"),
        *("lineItem/UnblendedCost", "lineItem/CurrencyCode", "lineItem/LineItemType", "resourceTags/user:"),
    ),
    BillColumns(
        "AWS Data Exports, CUR 2.0",
        *("line_item_usage_account_id", "line_item_usage_start_date", "line_item_resource_id"),
        *("line_item_unblended_cost", "line_item_currency_code", "line_item_line_item_type", "resource_tags"),
    ),
    BillColumns(
        "Alibaba Cloud bill details",
        *("AccountID", "BillingDate", "InstanceID", "PretaxAmount", "Currency", "", "Tag"),
    ),
    BillColumns(
        "Alibaba Cloud bill details",
        *("资源购买账号ID", "账单日期", "资产/资源实例ID", "应付金额", "定价币种", "", "实例标签"),
    ),
)


class BillError(ConfigurationError):
    """A bill that cannot be compared; the message names file, line, value and what is allowed."""


@dataclass(frozen=True)
class BillLine:
    """A line of the bill, of the stack's own account.

    Attributes:
        day: ``2026-11-21``.
        resource: id of an instance, a volume ...; empty for none.
        stack, pool: by the resource's tags; empty without them.
        use: it is the use of a resource, no tax, credit or fee.
    """

    day: str
    resource: str
    stack: str
    pool: str
    cost: Decimal
    use: bool


@dataclass(frozen=True)
class Bill:
    """A file that is a bill, by its columns; its rows can be read once."""

    path: Path
    names: BillColumns
    rows: Iterable[Row]


def opened(path: Path) -> Bill:
    """Return the bill in a file. Raises BillError if it is none, or is damaged."""
    columns, rows = _table(path)
    names = next((each for each in KNOWN_COLUMNS if each.needed <= set(columns)), None)
    if names is None:
        titles = "; ".join(f"{each.title}: {', '.join(sorted(each.needed))}" for each in KNOWN_COLUMNS)
        raise BillError(
            f"--bill {path}: no bill that is known here; allowed: a file with the columns of {titles}"
        )
    return Bill(path, names, rows)


def read(bill: Bill, *, account: str, currency: str, month: str) -> list[BillLine]:
    """Return the lines of one account and month.

    Raises BillError if the bill is damaged, or is of other accounts, months or currencies.
    """
    path, names = bill.path, bill.names
    accounts, months = set(), set()
    lines = []
    for number, row in enumerate(bill.rows, 2):
        owner = str(row.get(names.account) or "").strip()
        accounts.add(owner)
        if owner != account:
            continue
        line = _line(names, row, currency, f"--bill {path}: line {number}")
        months.add(line.day[:7])
        if line.day.startswith(f"{month}-"):
            lines.append(line)
    if not lines:
        _refuse(path, accounts=accounts, account=account, months=months, month=month)
    return lines


def _refuse(path: Path, *, accounts: set[str], account: str, months: set[str], month: str) -> None:
    """Raise BillError: a bill without a line that could be compared."""
    if not accounts:
        raise BillError(f"--bill {path}: has no lines")
    if account not in accounts:
        named = ", ".join(sorted(accounts - {""})) or "no account"
        raise BillError(
            f"--bill {path}: is of {named}; allowed: a bill with account {account}, the stack's own"
        )
    raise BillError(f"--bill {path}: is of {', '.join(sorted(months))}; allowed: --month {month}")


def _line(names: BillColumns, row: Row, currency: str, where: str) -> BillLine:
    said = str(row.get(names.currency) or "")
    if said != currency:
        raise BillError(f"{where}: {names.currency} = {said!r}; allowed: {currency}, as the meter counts")
    text = str(row.get(names.cost) or "")
    try:
        cost = Decimal(text)
    except InvalidOperation:
        cost = Decimal("NaN")
    if not cost.is_finite() or abs(cost) > MOST_OF_A_LINE:
        raise BillError(f"{where}: {names.cost} = {text!r}; allowed: a number up to {MOST_OF_A_LINE:,}")
    day = str(row.get(names.day) or "")[:10]
    try:
        date.fromisoformat(day)
    except ValueError as error:
        raise BillError(f"{where}: {names.day} = {day!r}; allowed: a day, as 2026-11-21") from error
    stack, pool = (_tag(names, row, key) for key in (TAG_STACK, TAG_POOL))
    resource = str(row.get(names.resource) or "").rpartition("/")[2]
    use = not names.kind or str(row.get(names.kind) or "") in USE
    return BillLine(day, resource, stack, pool, cost, use)


def _tag(names: BillColumns, row: Row, key: str) -> str:
    """Return a tag's value on a line; empty if it has none.

    A column for each tag, a map as JSON or as Parquet has it (CUR 2.0 writes ``user_gpu_fleet_pool``), or
    Alibaba Cloud's text: ``key:gpu-fleet:pool value:dev; ...``, in older files ``gpu-fleet:pool:dev;...``.
    Values are users' texts too, say the reason of a hold. One that looks like a second tag of the same name
    leaves the tag unknown.
    """
    if names.tags.endswith(":"):
        return str(row.get(f"{names.tags}{key}") or "")
    content = row.get(names.tags) or ""
    if isinstance(content, str) and not content.startswith("{"):
        values = re.findall(rf"(?:^|;)\s*(?:key:)?{re.escape(key)}(?:\s+value)?:\s*([^;]*)", content)
        return str(values[0]).strip() if len(values) == 1 else ""
    try:
        tags = dict(json.loads(content) if isinstance(content, str) else content)
    except ValueError:
        return ""
    plain = re.sub(r"\W", "_", key)
    spellings = (key, f"user:{key}", f"user_{plain}", f"user_{key}")
    return next((str(tags[name]) for name in spellings if tags.get(name)), "")


def _table(path: Path) -> tuple[list[str], Iterable[Row]]:
    """Return the columns and rows of a file: CSV, also in gzip or zip, or Parquet. Raises BillError."""
    try:
        content = path.read_bytes()
        if content.startswith(PARQUET):
            return _parquet(path)
        if content.startswith(GZIP):
            content = gzip.decompress(content)
        elif content.startswith(ZIP):
            content = _unzipped(content)
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        return list(reader.fieldnames or ()), _whole(reader, path)
    except OSError as error:
        raise BillError(f"--bill {path}: {error.strerror or error}") from error
    except DAMAGES as error:
        raise BillError(
            f"--bill {path}: damaged: {error}; allowed: CSV in UTF-8, gzip, zip, Parquet"
        ) from error


def _whole(reader: "csv.DictReader[str]", path: Path) -> Iterator[Row]:
    """Yield the rows of CSV; raise BillError where one is cut off."""
    try:
        for row in reader:
            if None in row or None in row.values():
                raise csv.Error("not as many fields as columns")
            yield row
    except csv.Error as error:
        raise BillError(f"--bill {path}: damaged at line {reader.line_num}: {error}") from error


def _unzipped(content: bytes) -> bytes:
    """Return the only file of a zip archive."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        if len(names) != 1:
            raise zipfile.BadZipFile(f"{len(names)} files in it, must be one")
        return archive.read(names[0])


def _parquet(path: Path) -> tuple[list[str], Iterable[Row]]:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - optional
    except ModuleNotFoundError as error:
        raise BillError(
            f"--bill {path}: Parquet needs pyarrow, which is not installed here: pip install pyarrow, or "
            "export CSV"
        ) from error
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise BillError(f"--bill {path}: damaged: {error}") from error
    return list(table.column_names), table.to_pylist()

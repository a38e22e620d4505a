"""``gpu-reaper report``: a month of the ledger as an HTML page."""

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from botocore.exceptions import BotoCoreError, ClientError
from rich.progress import track

from image.reaper import cloud as clouds
from image.reaper import policy as policies
from image.reaper.environment import LEDGER_URI, policy_file
from image.reaper.errors import CloudError, ConfigurationError
from image.reaper.ledger import PREFIX
from image.reaper.monthly import End, Month, end_of, month_of, parse_month, summarise
from image.reaper.monthly_page import page
from image.reaper.options import policy_option

FAILED = ".failed.json"  # beside the record of an end that did not come about


@click.command()
@click.option("--month", "month_text", metavar="YEAR-MONTH", help="Which; by default the present one.")
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="By default saved-MONTH.html."
)
@policy_option
@click.option("--ledger", metavar="URI", help=f"Where the ledger lies; by default {LEDGER_URI}.")
def report(month_text: str | None, output: Path | None, policy_path: Path | None, ledger: str | None) -> None:
    """Write what the reaper saved in a month, by pool and owner, as a page with plots."""
    now = datetime.now(UTC)
    month = parse_month(month_text) if month_text else month_of(now)
    policy = policies.load(policy_path or policy_file())
    bucket, prefix = ledger_place(ledger or os.environ.get(LEDGER_URI, ""))
    ends = list(read_ends(clouds.bucket_client(policy.cloud, policy.region), bucket, prefix, month))
    summary = summarise(ends, month, now)
    path = output or Path(f"saved-{month.name}.html")
    try:
        path.write_text(page(summary, policy.stack), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--output {path}: {error.strerror}") from error
    click.echo(
        f"{summary.total} {summary.currency} saved by {len(summary.savings)} ends in {month.name}: {path}"
    )


def ledger_place(uri: str) -> tuple[str, str]:
    """(bucket, prefix with a slash at its end) of the ledger.

    Raises:
        ConfigurationError: the URI names no bucket.
    """
    scheme, _, rest = uri.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in ("s3", "oss") or not bucket:
        raise ConfigurationError(
            f"--ledger or {LEDGER_URI} = {uri!r}; allowed: s3://BUCKET/PREFIX or oss://BUCKET/PREFIX"
        )
    return bucket, "/".join([*filter(None, prefix.split("/")), PREFIX, ""])


def read_ends(s3: Any, bucket: str, prefix: str, month: Month) -> Iterator[End]:
    """The ends recorded for a month and, since a key carries the mark's date, for the month before.

    Raises:
        CloudError: the ledger cannot be read, or a record is damaged.
    """
    keys: list[str] = []
    try:
        for each in (month.before(), month):
            keys += _keys(s3, bucket, f"{prefix}{each.start:%Y/%m/}")
        failed = {key.removesuffix(FAILED) for key in keys if key.endswith(FAILED)}
        records = [
            key for key in keys if not key.endswith(FAILED) and key.removesuffix(".json") not in failed
        ]
        for key in track(records, "reading the ledger", transient=True):
            yield end_of(json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read()), key)
    except (BotoCoreError, ClientError) as error:
        raise CloudError(f"ledger s3://{bucket}/{prefix}: {error}") from error
    except json.JSONDecodeError as error:
        raise CloudError(f"ledger record {key}: {error}") from error


def _keys(s3: Any, bucket: str, prefix: str) -> list[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [entry["Key"] for found in pages for entry in found.get("Contents", [])]

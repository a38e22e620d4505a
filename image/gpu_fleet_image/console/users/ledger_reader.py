"""Reader of the ledger: a month's stops and terminations, and its freezes and unfreezes."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from rich.progress import track

from gpu_fleet_image.console.operators.monthly_savings import Month
from gpu_fleet_image.console.users.ledger_records import End, FreezeChange, change_of, end_of
from gpu_fleet_image.controllers.meter.freezer import RECORDS
from gpu_fleet_image.controllers.sweep.ledger import ENDED, PREFIX, STARTED_PREFIX, started_key
from gpu_fleet_image.core.cloud import LEDGER_URI
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.store import objects_below
from gpu_fleet_image.core.times import parse_time

JSON = ".json"


@dataclass(frozen=True)
class LedgerPlace:
    """Location of a ledger.

    Attributes:
        scheme: ``s3`` or ``oss``, for users.
        prefix: of all its keys; empty or with a slash at its end.
    """

    s3: Any
    scheme: str
    bucket: str
    prefix: str

    @classmethod
    def of(cls, uri: str, s3: Any) -> "LedgerPlace":
        """Parse the location in a URI. Raises ConfigurationError if it names no bucket."""
        scheme, _, rest = uri.partition("://")
        bucket, _, prefix = rest.partition("/")
        if scheme not in ("s3", "oss") or not bucket:
            raise ConfigurationError(
                f"--ledger or {LEDGER_URI} = {uri!r}; allowed: s3://BUCKET/PREFIX or oss://BUCKET/PREFIX"
            )
        return cls(s3, scheme, bucket, "".join(f"{part}/" for part in prefix.split("/") if part))

    def keys(self, prefix: str) -> list[str]:
        """Return every key below a prefix; raises what boto3 raises."""
        return [entry["Key"] for entry in objects_below(self.s3, self.bucket, self.prefix + prefix)]

    def read(self, key: str) -> dict[str, Any]:
        """Read a JSON object.

        Raises:
            CloudError: it is malformed; and what boto3 raises.
        """
        try:
            content = json.loads(self.s3.get_object(Bucket=self.bucket, Key=key)["Body"].read())
        except json.JSONDecodeError as error:
            raise CloudError(f"ledger record {key}: {error}") from error
        if not isinstance(content, dict):
            raise CloudError(f"ledger record {key}: not a JSON object")
        return content

    def __str__(self) -> str:
        """Return the location for messages."""
        return f"{self.scheme}://{self.bucket}/{self.prefix}"


def read_ends(place: LedgerPlace, month: Month) -> Iterator[End]:
    """Yield a month's recorded stops and terminations.

    It also reads those of the month before, since a key carries the mark's date. Only confirmed ones count,
    from then on, and until their users started them again.

    Raises:
        CloudError: the ledger cannot be read, or a record is damaged.
    """
    try:
        keys = [
            key for each in (month.before(), month) for key in place.keys(f"{PREFIX}/{each.start:%Y/%m/}")
        ]
        ended = [key.removesuffix(ENDED) for key in keys if key.endswith(ENDED)]
        started = {
            key.removesuffix(JSON)
            for each in (month.before(), month)
            for key in place.keys(f"{STARTED_PREFIX}/{each.start:%Y/%m/}")
        }
        for stem in track(ended, "reading the ledger", transient=True):
            end = end_of(place.read(stem + JSON), stem + JSON)
            again = place.prefix + started_key(stem.removeprefix(place.prefix))
            started_at = _time(place.read(again + JSON), again + JSON) if again in started else None
            yield replace(end, at=_time(place.read(stem + ENDED), stem + ENDED), started_at=started_at)
    except (BotoCoreError, ClientError) as error:
        raise CloudError(f"ledger {place}: {error}") from error


def read_changes(place: LedgerPlace, month: Month) -> list[FreezeChange]:
    """Return every freeze and unfreeze of the month, oldest first; errors as for ``read_ends``."""
    try:
        keys = place.keys(f"{RECORDS}/{month.start:%Y/%m/}")
        return [change_of(place.read(key), key) for key in sorted(keys)]
    except (BotoCoreError, ClientError) as error:
        raise CloudError(f"ledger {place}: {error}") from error


def _time(record: Mapping[str, Any], key: str) -> Any:
    try:
        return parse_time(record["at"])
    except (KeyError, ValueError, AttributeError) as error:
        raise CloudError(f"ledger record {key}: {error!r}") from error

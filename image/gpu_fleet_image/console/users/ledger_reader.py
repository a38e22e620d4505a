"""Reader of the ledger: a month's stops and terminations, and its freezes and unfreezes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from rich.progress import track

from gpu_fleet_image.console.operators.monthly_savings import Month
from gpu_fleet_image.console.users.ledger_records import End, FreezeChange, Note
from gpu_fleet_image.controllers.meter.freezer import RECORDS
from gpu_fleet_image.controllers.sweep.ledger import ENDED, PREFIX, STARTED_PREFIX, started_key
from gpu_fleet_image.core.cloud import LEDGER_URI
from gpu_fleet_image.core.document import Record
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.store import objects_below, stored_object

JSON = ".json"
Kind = TypeVar("Kind", bound=Record)


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

    def record(self, kind: type[Kind], key: str) -> Kind:
        """Read a record. Raises CloudError if it is damaged, and what boto3 raises."""
        where = f"ledger record {key}"
        content = stored_object(self.s3.get_object(Bucket=self.bucket, Key=key), where).content
        return kind.from_json(content, where)

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
            end = place.record(End, stem + JSON)
            again = place.prefix + started_key(stem.removeprefix(place.prefix))
            started_at = place.record(Note, again + JSON).at if again in started else None
            yield replace(end, at=place.record(Note, stem + ENDED).at, started_at=started_at)
    except (BotoCoreError, ClientError) as error:
        raise CloudError(f"ledger {place}: {error}") from error


def read_changes(place: LedgerPlace, month: Month) -> list[FreezeChange]:
    """Return every freeze and unfreeze of the month, oldest first; errors as for ``read_ends``."""
    try:
        keys = place.keys(f"{RECORDS}/{month.start:%Y/%m/}")
        return [place.record(FreezeChange, key) for key in sorted(keys)]
    except (BotoCoreError, ClientError) as error:
        raise CloudError(f"ledger {place}: {error}") from error

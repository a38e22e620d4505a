"""boto3 clients for a sweep: few connections, patient with throttling, without long waits."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import Credentials, ReadOnlyCredentials, SharedCredentialProvider
from botocore.exceptions import BotoCoreError, InvalidRegionError, MissingDependencyException, ProfileNotFound
from botocore.utils import parse_timestamp

from gpu_fleet_image.core.calls import NOBODY, Calls
from gpu_fleet_image.core.errors import log_in
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError

ATTEMPTS = 8
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30


@dataclass(frozen=True)
class Clients:
    """The clients of one region.

    Attributes:
        ending: EC2 client for stops and terminations. It makes each call once, since the instances' replies
            before a call are too old for a retry.
    """

    ec2: Any
    autoscaling: Any
    cloudwatch: Any
    sns: Any
    s3: Any
    ending: Any


def clients(region: str) -> Clients:
    """Return the clients for a region; ``AWS_ENDPOINT_URL`` directs them elsewhere.

    Raises:
        CloudError: there are no credentials, where botocore looks for them already now.
        ConfigurationError: the region's name is malformed.
    """
    config = _limits(region)
    names = ("ec2", "autoscaling", "cloudwatch", "sns", "s3")
    with _making(region):
        made = {name: _session().client(name, config=config) for name in names}
        return Clients(**made, ending=_session().client("ec2", config=_limits(region, attempts=1)))


@contextmanager
def _making(region: str) -> Iterator[None]:
    """Turn botocore's errors of a new client into this package's."""
    try:
        yield
    except InvalidRegionError as error:
        raise ConfigurationError(f"region = {region!r}; allowed: a region of AWS, say us-east-1") from error
    except (*NOBODY, MissingDependencyException) as error:
        raise CloudError(f"{error}; you need {log_in('aws')}", "ServiceUnavailable") from error


def _limits(region: str, attempts: int = ATTEMPTS) -> Config:
    return Config(
        region_name=region,
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
    )


def client(name: str, region: str, attempts: int = ATTEMPTS, **keys: str) -> Any:
    """Return a client that few programs need, say ``sts``; arguments and errors as for ``clients``.

    Args:
        attempts: the most tries of a call that is throttled or not answered.
        keys: of a role, by boto3's names, instead of the process's own.
    """
    with _making(region):
        return _session().client(name, config=_limits(region, attempts), **keys)


def rows(calls: Calls, method: Any, key: str, **arguments: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of every page; boto3's own paginators would hide the calls from count and deadline.

    Raises CloudError if a page could not be read.
    """
    while True:
        page = calls.read(method, **arguments)
        yield from page[key]
        if not page.get("NextToken"):
            return
        arguments["NextToken"] = page["NextToken"]


@cache
def _session() -> Any:
    """Return the process's only session: reading service descriptions takes longer than a small sweep."""
    core = botocore.session.get_session()
    try:
        core.get_scoped_config()
    except ProfileNotFound as error:
        known = ", ".join(core.available_profiles) or "none"
        raise ConfigurationError(f"AWS_PROFILE: {error}; those of this computer are: {known}") from error
    own = _RewrittenFile(core.get_config_variable("credentials_file"), core.get_config_variable("profile"))
    core.get_component("credential_provider").insert_before(own.METHOD, own)
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_utc_time)
    return boto3.session.Session(botocore_session=core)


class _RewrittenFile(SharedCredentialProvider):
    """The file ~/.aws/credentials, which tools of a log-in rewrite while a long command runs."""

    CANONICAL_NAME = "RewrittenFile"

    def load(self) -> Credentials | None:
        """Return the profile's keys; None where the file has none."""
        keys = super().load()
        return keys and _RereadKeys(self, keys)


class _RereadKeys(Credentials):
    """Keys that are read again at each call; botocore's own stay those of the command's start."""

    def __init__(self, file: _RewrittenFile, keys: Credentials) -> None:
        super().__init__(keys.access_key, keys.secret_key, keys.token)
        self._file, self._last = file, keys

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return the keys in the file now; the last ones while it is being written."""
        with suppress(BotoCoreError):
            self._last = SharedCredentialProvider.load(self._file) or self._last
        return self._last.get_frozen_credentials()


def _utc_time(value: float | str) -> datetime:
    """Parse a time in an answer; return it as UTC.

    botocore's own conversion through the local time zone takes ten times as long, most of the time of a sweep
    over thousands of instances.
    """
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    return parse_timestamp(value).astimezone(UTC)

"""Every call of a sweep to the cloud: counted, held to a deadline, its errors in one form."""

import email.utils
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    SSOError,
    TokenRetrievalError,
)

from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.errors import log_in
from gpu_fleet_image.core.reaper_errors import AnswerError, CloudError, DeadlineError

Item = TypeVar("Item")
log = logging.getLogger(__name__)

# After the clients' own retries (``session.py`` of each cloud), these errors say nothing about the ids of the
# call.
TRANSIENT = frozenset(
    {
        "Throttling",
        "Throttling.Api",
        "Throttling.User",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestLimitExceeded",
        "TooManyRequestsException",
        "SlowDown",
        "BandwidthLimitExceeded",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "ServiceUnavailable",
        "Unavailable",
        "RequestTimeout",
    }
)

# The caller is unknown: nobody logged in, or the log-in has expired.
NOBODY = (
    NoCredentialsError,
    PartialCredentialsError,
    CredentialRetrievalError,
    SSOError,
    TokenRetrievalError,
)
OVER = frozenset(
    {
        *(
            "AuthFailure",
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
        ),
        *("UnrecognizedClientException", "SignatureDoesNotMatch", "InvalidAccessKeyId.NotFound"),
        *("InvalidSecurityToken.Expired", "InvalidSecurityToken.Malformed"),
    }
)
# Calls and services that policies name differently (AWS service authorization reference).
ACTIONS = {
    "DescribeBudgets": "ViewBudget",
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "ListObjectVersions": "ListBucketVersions",
}
SERVICES = {"monitoring": "cloudwatch"}


@dataclass(frozen=True)
class Failure:
    """An action that failed for one instance, or for all (``*``).

    Attributes:
        instance_id: the instance, or ``*``.
    """

    instance_id: str
    step: str
    error: str


class Calls:
    """Client wrapper that makes calls and counts them.

    Args:
        deadline: no call is made after it.
        read_only: refuse to make a call that changes anything.

    Attributes:
        reads: read-only calls, retries included.
        writes: calls that may have changed something, retries included.
        skew_s: seconds that this clock is ahead of the cloud's, by the latest reply; None before the first.
    """

    def __init__(
        self, clock: Callable[[], datetime], deadline: datetime | None = None, *, read_only: bool = False
    ) -> None:
        self._clock = clock
        self._deadline = deadline
        self._read_only = read_only
        self.reads = 0
        self.writes = 0
        self.skew_s: float | None = None

    def now(self) -> datetime:
        """Return the time that every deadline here is compared with."""
        return self._clock()

    def read(self, method: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
        """Make a call that changes nothing.

        Raises:
            CloudError: the cloud refused, or did not answer.
            DeadlineError: there is no time left.
        """
        answer, attempts = self._call(method, arguments)
        self.reads += attempts
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def change(self, method: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
        """Make a call that may change something; errors as for ``read``.

        Raises:
            CloudError: also where only reading is allowed.
        """
        if self._read_only:
            raise CloudError(f"{_name(method)} in a dry run", "DryRun")
        answer, attempts = self._call(method, arguments)
        self.writes += attempts
        if isinstance(answer, CloudError):
            raise answer
        return answer

    def _call(
        self, method: Callable[..., Any], arguments: dict[str, Any]
    ) -> tuple[dict[str, Any] | CloudError, int]:
        if self._deadline is not None and self._clock() >= self._deadline:
            raise DeadlineError(f"no time left for {_name(method)}")
        try:
            answer: dict[str, Any] = method(**arguments)
        except ClientError as error:
            metadata = error.response.get("ResponseMetadata", {})
            code = str(error.response.get("Error", {}).get("Code", ""))
            message = str(error.response.get("Error", {}).get("Message", ""))
            log.info("call=%s code=%s message=%r", _name(method), code, message)
            failed = CloudError(f"{_name(method)}: {code}: {message}{_remedy(method, code)}", code)
            return failed, 1 + int(metadata.get("RetryAttempts", 0))
        except BotoCoreError as error:
            log.info("call=%s error=%r", _name(method), str(error))
            remedy = f"; you need {log_in(_cloud(method))}" if isinstance(error, NOBODY) else ""
            return CloudError(f"{_name(method)}: {error}{remedy}", "ServiceUnavailable"), 1
        except AnswerError as error:
            log.info("call=%s code=%s message=%r", _name(method), error.code, error.message)
            text = f"{_name(method)}: {error}{_remedy(method, error.code)}"
            return CloudError(text, error.code), error.attempts
        log.debug("call=%s", _name(method))  # functions and agents log from INFO on
        metadata = answer.get("ResponseMetadata", {})
        self._note_time(metadata.get("HTTPHeaders", {}).get("date"))
        return answer, 1 + int(metadata.get("RetryAttempts", 0))

    def _note_time(self, date: str | None) -> None:
        if date is not None:
            self.skew_s = (self._clock() - email.utils.parsedate_to_datetime(date)).total_seconds()


def bisect(ids: Sequence[str], step: str, act: Callable[[Sequence[str]], object]) -> list[Failure]:
    """Do something to many instances at once, so that one bad id fails alone.

    A batch that the cloud refuses is split in half and tried again; one that ran out of time is not.

    Args:
        ids: the instances of one batch.
        act: does it to some of them, or raises ``CloudError``; it must be idempotent.

    Returns:
        One failure for each instance that the action did not reach.
    """
    if not ids:
        return []
    try:
        act(ids)
    except DeadlineError as error:
        return [Failure(instance_id, step, str(error)) for instance_id in ids]
    except CloudError as error:
        if len(ids) == 1 or error.code in TRANSIENT:
            return [Failure(instance_id, step, str(error)) for instance_id in ids]
        middle = len(ids) // 2
        return bisect(ids[:middle], step, act) + bisect(ids[middle:], step, act)
    return []


def batches(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Return consecutive parts of at most ``size`` items."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def _name(method: Callable[..., Any]) -> str:
    return str(getattr(method, "__name__", method))


def _remedy(method: Callable[..., Any], code: str) -> str:
    """Return how to log in, or which permission to ask an administrator for; empty if neither would help."""
    if code in OVER:
        return f"; these credentials are no longer valid; you need {log_in(_cloud(method))}"
    needed = permission_of(method) if code in DENIED else ""
    return f"; missing permission: {needed}" if needed else ""


def _cloud(method: Callable[..., Any]) -> str:
    """Return the cloud that a call goes to. boto3 also talks to OSS."""
    meta = getattr(getattr(method, "__self__", None), "meta", None)
    return "alicloud" if meta is None or ".aliyuncs.com" in meta.endpoint_url else "aws"


def permission_of(method: Callable[..., Any]) -> str:
    """Return the permission that a call needs, say ``s3:GetObject``; empty if it is not known.

    Args:
        method: of a boto3 client, or a callable with an attribute ``permission``.
    """
    meta = getattr(getattr(method, "__self__", None), "meta", None)
    if meta is None:
        return str(getattr(method, "permission", ""))
    service = meta.service_model.signing_name
    action = meta.method_to_api_mapping[_name(method)]
    if service == "s3" and ".aliyuncs.com" in meta.endpoint_url:
        service = "oss"
    return f"{SERVICES.get(service, service)}:{ACTIONS.get(action, action)}"

"""Every call a sweep makes to the cloud: counted, timed against a deadline, its errors in one shape."""

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

# After as many tries as the clients make (``session.py`` of each cloud) these say nothing about
# the ids of the call.
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

# Who asks is not known: nobody logged in, or a log-in is over.
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
# Names of calls and services that policies spell otherwise (AWS service authorization reference).
ACTIONS = {
    "HeadObject": "GetObject",
    "ListObjectsV2": "ListBucket",
    "ListObjectVersions": "ListBucketVersions",
}
SERVICES = {"monitoring": "cloudwatch"}


@dataclass(frozen=True)
class Failure:
    """One instance that something could not be done to, or ``*`` for all.

    Attributes:
        instance_id: the instance, or ``*``.
    """

    instance_id: str
    step: str
    error: str


class Calls:
    """Makes calls, and counts them.

    Args:
        clock: the time now.
        deadline: after it no call is made.
        read_only: refuse to make a call that changes anything.

    Attributes:
        reads: calls that changed nothing, retries counted.
        writes: calls that may have changed something, retries counted.
        skew_s: how far this instance's clock is ahead of the cloud's, by the latest answer; None before.
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
        """The time that every deadline here is held against."""
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
            remedy = f"; needed are {log_in(_cloud(method))}" if isinstance(error, NOBODY) else ""
            return CloudError(f"{_name(method)}: {error}{remedy}", "ServiceUnavailable"), 1
        except AnswerError as error:
            log.info("call=%s code=%s message=%r", _name(method), error.code, error.message)
            text = f"{_name(method)}: {error}{_remedy(method, error.code)}"
            return CloudError(text, error.code), error.attempts
        metadata = answer.get("ResponseMetadata", {})
        self._note_time(metadata.get("HTTPHeaders", {}).get("date"))
        return answer, 1 + int(metadata.get("RetryAttempts", 0))

    def _note_time(self, date: str | None) -> None:
        if date is not None:
            self.skew_s = (self._clock() - email.utils.parsedate_to_datetime(date)).total_seconds()


def bisect(ids: Sequence[str], step: str, act: Callable[[Sequence[str]], object]) -> list[Failure]:
    """Do something to many instances at once, so that one bad id fails alone.

    A batch that the cloud refuses is cut in half and tried again; one that it had no time for is not.

    Args:
        ids: the instances of one batch.
        step: what is done, for the report.
        act: does it to some of them, or raises ``CloudError``; doing it twice must do no harm.

    Returns:
        One failure for each instance it was not done to.
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
    """Consecutive parts of at most ``size``."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def _name(method: Callable[..., Any]) -> str:
    return str(getattr(method, "__name__", method))


def _remedy(method: Callable[..., Any], code: str) -> str:
    """How to log in, or the permission to ask an administrator for, where one of these is missing."""
    if code in OVER:
        return f"; these credentials count no more, needed are {log_in(_cloud(method))}"
    needed = permission_of(method) if code in DENIED else ""
    return f"; missing permission: {needed}" if needed else ""


def _cloud(method: Callable[..., Any]) -> str:
    """Whose call it is: boto3 also speaks with OSS."""
    meta = getattr(getattr(method, "__self__", None), "meta", None)
    return "alicloud" if meta is None or ".aliyuncs.com" in meta.endpoint_url else "aws"


def permission_of(method: Callable[..., Any]) -> str:
    """What a policy must allow for a call, say ``s3:GetObject``; empty where that is not known.

    Args:
        method: of a boto3 client, or with an attribute ``permission``.
    """
    meta = getattr(getattr(method, "__self__", None), "meta", None)
    if meta is None:
        return str(getattr(method, "permission", ""))
    service = meta.service_model.signing_name
    action = meta.method_to_api_mapping[_name(method)]
    if service == "s3" and ".aliyuncs.com" in meta.endpoint_url:
        service = "oss"
    return f"{SERVICES.get(service, service)}:{ACTIONS.get(action, action)}"

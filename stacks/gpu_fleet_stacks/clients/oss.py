"""OSS: boto3's client for its S3 interface, and the endpoints that this account may use from here."""

import os
import socket
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.core.alicloud_credentials import Credentials
from gpu_fleet_image.core.errors import ConfigurationError
from gpu_fleet_image.core.oss import bucket_client
from gpu_fleet_stacks.clients.alicloud import NO_CREDENTIALS
from gpu_fleet_stacks.clients.buckets import THREADS
from gpu_fleet_stacks.clients.errors import CannotCheckError, request_id
from gpu_fleet_stacks.core.errors import StacksError

# The Pulumi provider reads this variable too (connectivity/endpoint.go: OSS_ENDPOINT).
CHOSEN = "OSS_ENDPOINT"
NO_BUCKET = "NoSuchBucket"
# www.alibabacloud.com/help/doc-detail/31836.htm, "Important": HTTP 400, EC 0048-00000401
FORBIDDEN = "PublicEndpointForbidden"
# www.alibabacloud.com/help/en/oss/user-guide/http-403-error-code: OSS is not active, or money is owed.
UNUSABLE = ("UserDisable", "InDebt", "InDebtOverdue", "AbnormalBucketOwnerStatus")
# The same page: the bucket is in another region.
ELSEWHERE = "must be addressed using the specified endpoint"
# Regions outside mainland China whose names begin with ``cn-`` too.
NOT_MAINLAND = ("cn-hongkong",)
PROBE = "gpu-fleet/asks-whether-the-public-endpoint-answers"
MOST_PROBED = 20
HTTPS, TIMEOUT_S = 443, 5.0


class Access(StrEnum):
    """Access of an account to objects through the public endpoint of a region."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    UNKNOWN = "unknown"


def public_host(region: str) -> str:
    """Return the host of OSS on the internet."""
    return f"oss-{region}.aliyuncs.com"


def inner_host(region: str) -> str:
    """Return the host of OSS inside the region."""
    return f"oss-{region}-internal.aliyuncs.com"


def client(region: str, environ: Mapping[str, str] = os.environ) -> Any:
    """Return boto3's client for OSS; its endpoint is the one that ``OSS_ENDPOINT`` names.

    Raises CannotCheckError if there are no credentials.
    """
    host = inner_host(region) if inner_host(region) in environ.get(CHOSEN, "") else public_host(region)
    try:
        return bucket_client(region, Credentials(environ), f"https://s3.{host}", at_once=THREADS)
    except ConfigurationError as error:
        raise CannotCheckError(NO_CREDENTIALS) from error


def ask(s3: Any, operation: str, **arguments: Any) -> dict[str, Any]:
    """Make one call. Raises CannotCheckError if it was refused or not answered."""
    try:
        answer: dict[str, Any] = getattr(s3, operation)(**arguments)
    except ClientError as error:
        said = error.response["Error"]
        code = str(said.get("Code", ""))
        reason = f"{error.operation_name}: {code}: {said.get('Message', '')}"
        raise CannotCheckError(reason, code, request_id(error.response)) from error
    except BotoCoreError as error:
        raise CannotCheckError(" ".join(str(error).split())) from error
    return answer


def reachable(host: str) -> bool:
    """Return whether a host accepts a connection from here."""
    try:
        with socket.create_connection((host, HTTPS), timeout=TIMEOUT_S):
            return True
    except OSError:
        return False


def restricted(region: str) -> bool:
    """Return whether OSS denies new accounts the public endpoint in the region: in mainland China."""
    return region.startswith("cn-") and region not in NOT_MAINLAND


def public_access(s3: Any) -> Access:
    """Return the account's access to objects through the client's public endpoint.

    It reads an object that does not exist: OSS answers that the key is missing, or that the endpoint is
    forbidden. Buckets of other regions answer neither.

    Raises:
        CannotCheckError: the account's buckets cannot be listed.
    """
    for bucket in ask(s3, "list_buckets").get("Buckets", ())[:MOST_PROBED]:
        try:
            ask(s3, "get_object", Bucket=bucket["Name"], Key=PROBE)
        except CannotCheckError as error:
            if error.code == FORBIDDEN:
                return Access.FORBIDDEN
            if error.code == "NoSuchKey":
                return Access.ALLOWED
    return Access.UNKNOWN


def way_inside(region: str) -> str:
    """Say what to do where the public endpoint is forbidden."""
    host = inner_host(region)
    return (
        f"run this on an ECS instance of {region}, or in Cloud Shell where {host} answers, "
        f"after `export {CHOSEN}=https://{host}`"
    )


def hold_upload(
    region: str,
    environ: Mapping[str, str] = os.environ,
    *,
    connect: Callable[[str, Mapping[str, str]], Any] = client,
    answers: Callable[[str], bool] = reachable,
) -> None:
    """Refuse an upload that OSS would refuse later.

    Args:
        environ: may have ``OSS_ENDPOINT``; with the public endpoint there, the operator asserts that it
            works.
        connect: (region, environment) -> boto3's client.
        answers: whether a host accepts a connection from here.

    Raises:
        StacksError: the endpoint is forbidden or unreachable, or its state is unknown; the message says what
            to do.
        CannotCheckError: OSS could not be asked.
    """
    chosen = environ.get(CHOSEN, "")
    if inner_host(region) in chosen:
        if not answers(inner_host(region)):
            raise StacksError(
                f"{CHOSEN} names {inner_host(region)}, which does not answer from here; {way_inside(region)}"
            )
        return
    if not restricted(region):
        return
    try:
        access = public_access(connect(region, environ))
    except CannotCheckError:
        if chosen:
            return
        raise
    if access is Access.FORBIDDEN:
        raise StacksError(
            f"OSS refuses this account uploads through {public_host(region)} ({FORBIDDEN}), and nothing was "
            f"touched; {way_inside(region)}"
        )
    if access is Access.UNKNOWN and not chosen:
        raise StacksError(
            f"{public_host(region)} refuses uploads of accounts that opened OSS after 2025-03-20, and no "
            f"bucket shows whether this is one; nothing was touched. Either {way_inside(region)}; "
            f"or, if the account is older, `export {CHOSEN}=https://{public_host(region)}` and run this again"
        )

"""OSS: boto3's client for its S3 interface, and which of its endpoints this account may use from here."""

import os
import socket
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from stacks.calls.alicloud import KEY_ID, KEY_SECRET, TOKEN
from stacks.calls.buckets import THREADS
from stacks.calls.errors import CannotCheckError
from stacks.errors import StacksError

# The variable that the Pulumi provider reads too (connectivity/endpoint.go: OSS_ENDPOINT).
CHOSEN = "OSS_ENDPOINT"
NO_BUCKET = "NoSuchBucket"
# www.alibabacloud.com/help/doc-detail/31836.htm, "Important": HTTP 400, EC 0048-00000401
FORBIDDEN = "PublicEndpointForbidden"
# www.alibabacloud.com/help/en/oss/user-guide/http-403-error-code: not opened or shut; money is owed.
UNUSABLE = ("UserDisable", "InDebt", "InDebtOverdue", "AbnormalBucketOwnerStatus")
# The same page: of a bucket in another region.
ELSEWHERE = "must be addressed using the specified endpoint"
# Regions outside of mainland China, whose names begin alike.
NOT_MAINLAND = ("cn-hongkong",)
PROBE = "gpu-fleet/asks-whether-the-public-endpoint-answers"
MOST_PROBED = 20
HTTPS, TIMEOUT_S = 443, 5.0


class Access(StrEnum):
    """Whether an account may move objects through the public endpoint of a region."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    UNKNOWN = "unknown"


def public_host(region: str) -> str:
    """Where OSS answers from the internet."""
    return f"oss-{region}.aliyuncs.com"


def inner_host(region: str) -> str:
    """Where it answers inside the region."""
    return f"oss-{region}-internal.aliyuncs.com"


def client(region: str, environ: Mapping[str, str] = os.environ) -> Any:
    """boto3's client for OSS, which knows neither the newer checksums nor path addressing.

    At the endpoint that ``OSS_ENDPOINT`` chose, by the name that it has for S3's protocol
    (www.alibabacloud.com/help/en/oss/developer-reference/use-amazon-s3-sdks-to-access-oss).

    Raises:
        CannotCheckError: nobody is logged in.
    """
    if not (environ.get(KEY_ID) and environ.get(KEY_SECRET)):
        raise CannotCheckError(f"no credentials; set {KEY_ID} and {KEY_SECRET}")
    host = inner_host(region) if inner_host(region) in environ.get(CHOSEN, "") else public_host(region)
    return boto3.client(
        "s3",
        region_name=region,
        endpoint_url=f"https://s3.{host}",
        aws_access_key_id=environ[KEY_ID],
        aws_secret_access_key=environ[KEY_SECRET],
        aws_session_token=environ.get(TOKEN) or None,
        config=Config(
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"mode": "standard", "total_max_attempts": 3},
            connect_timeout=5,
            read_timeout=20,
            max_pool_connections=THREADS,
            s3={"addressing_style": "virtual"},
        ),
    )


def ask(s3: Any, operation: str, **arguments: Any) -> dict[str, Any]:
    """One call.

    Raises:
        CannotCheckError: it was refused or not answered.
    """
    try:
        answer: dict[str, Any] = getattr(s3, operation)(**arguments)
    except ClientError as error:
        said = error.response["Error"]
        code = str(said.get("Code", ""))
        raise CannotCheckError(f"{error.operation_name}: {code}: {said.get('Message', '')}", code) from error
    except BotoCoreError as error:
        raise CannotCheckError(" ".join(str(error).split())) from error
    return answer


def reachable(host: str) -> bool:
    """Whether a host takes a connection from here."""
    try:
        with socket.create_connection((host, HTTPS), timeout=TIMEOUT_S):
            return True
    except OSError:
        return False


def restricted(region: str) -> bool:
    """Whether OSS keeps new accounts from the public endpoint there: in mainland China."""
    return region.startswith("cn-") and region not in NOT_MAINLAND


def public_access(s3: Any) -> Access:
    """Whether the account may move objects through the public endpoint that the client is at.

    Asked by reading an object that is in no bucket: OSS says that it is not there, or that nothing may be
    read this way. Buckets of other regions say neither.

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
    """What to do where the public endpoint is shut."""
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
    """Let an upload begin that will not be refused in its midst.

    Args:
        environ: has ``OSS_ENDPOINT``, if anybody chose one; naming the public one says that it may be used.
        connect: from region and environment to boto3's client.
        answers: whether a host takes a connection from here.

    Raises:
        StacksError: the endpoint is shut to the account or from here, or nobody knows; and what to do.
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

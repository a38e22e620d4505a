"""Alibaba Cloud access keys: a user's or a function's from the environment, an instance's from its role.

Root gets the instance's role from the metadata service. Users get the pool's user role from the credentials
service, whose address is in their environment. ``run gpu_fleet_image.core.alicloud_credentials`` prints the
role's keys in the form that the AWS SDK expects of a credential_process: rclone reads OSS with that SDK,
which knows only roles of AWS, and runs the command whenever keys expire.
https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata
https://www.alibabacloud.com/help/en/sdk/developer-reference/v2-manage-python-access-credentials
https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html
"""

import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_fleet_image.core.errors import CloudError, ConfigurationError, InstanceError, log_in
from gpu_fleet_image.core.metadata import Metadata

KEY_ID, SECRET = "ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"
TOKEN = "ALIBABA_CLOUD_SECURITY_TOKEN"  # noqa: S105 - a name
URI = "ALIBABA_CLOUD_CREDENTIALS_URI"  # of users of an instance (image/gpu_fleet_image/instance/credentials)
TIMEOUT_S = 10.0
ROLES = "ram/security-credentials/"
RENEW_BEFORE = timedelta(minutes=10)  # the service has new keys half an hour before the old ones expire


@dataclass(frozen=True)
class AccessKey:
    """An access key, of a role with its token."""

    key_id: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


class Credentials:
    """Source of the keys that are valid now.

    Args:
        environ: where a function and a user have their keys.
        metadata: of this instance; None elsewhere.
    """

    def __init__(
        self,
        environ: Mapping[str, str] = os.environ,
        metadata: Metadata | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._environ = environ
        self._metadata = metadata
        self._now = now
        self._of_role: tuple[AccessKey, datetime] | None = None

    def current(self) -> AccessKey:
        """Return the keys of the environment, else of this process's role on this instance.

        Raises:
            ConfigurationError: there are none.
            CloudError: the metadata service does not answer.
        """
        key_id, secret = self._environ.get(KEY_ID), self._environ.get(SECRET)
        if key_id and secret:
            return AccessKey(key_id, secret, self._environ.get(TOKEN, ""))
        if self._metadata is None:
            raise ConfigurationError(
                f"{KEY_ID} and {SECRET} are missing, and this is no instance with a role"
            )
        if self._of_role is None or self._now() >= self._of_role[1] - RENEW_BEFORE:
            try:
                self._of_role = of_role(self._metadata)
            except ConfigurationError as error:
                raise ConfigurationError(f"{error}; you need {log_in('alicloud')}") from error
            except CloudError as error:
                raise CloudError(f"{error}; you need {log_in('alicloud')}", error.code) from error
        return self._of_role[0]


def of_role(metadata: Metadata, environ: Mapping[str, str] = os.environ) -> tuple[AccessKey, datetime]:
    """Return the keys of this process's role on this instance, and when they expire, in UTC.

    Raises:
        ConfigurationError: the instance has no role.
        CloudError: the service does not answer, or its answer cannot be read.
    """
    if uri := environ.get(URI):
        return _read(_given(uri), uri)
    role = (metadata.get(ROLES) or "").split("\n")[0].strip()
    text = metadata.get(ROLES + role) if role else None
    if text is None:
        raise ConfigurationError("this instance has no RAM role, and the environment has no access key")
    return _read(text, f"metadata {ROLES}{role}")


def _given(uri: str) -> str:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(uri, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode(errors="replace"))
    except urllib.error.HTTPError as error:
        raise CloudError(f"{URI} {uri}: {error.code}: {error.read().decode(errors='replace')}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise CloudError(f"{URI} {uri}: {error}") from error


def _read(text: str, where: str) -> tuple[AccessKey, datetime]:
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise CloudError(f"{where} cannot be read: {error!r}") from error
    return temporary_keys(answer, where)


def temporary_keys(answer: Any, where: str) -> tuple[AccessKey, datetime]:
    """Return the keys in a reply of Alibaba Cloud, and when they expire, in UTC.

    Raises:
        CloudError: there are none; the message begins with ``where``.
    """
    try:
        keys = AccessKey(answer["AccessKeyId"], answer["AccessKeySecret"], answer["SecurityToken"])
        return keys, datetime.fromisoformat(answer["Expiration"]).astimezone(UTC)
    except (ValueError, KeyError, TypeError) as error:
        raise CloudError(f"{where} cannot be read: {error!r}") from error


def main() -> int:
    """Print the role's keys; return exit status 1, after one line on stderr, if there are none."""
    try:
        keys, expiration = of_role(Metadata("alicloud"))
    except InstanceError as error:
        sys.stderr.write(f"error: no keys of this instance's role: {error}\n")
        return 1
    content = {
        "Version": 1,
        "AccessKeyId": keys.key_id,
        "SecretAccessKey": keys.secret,
        "SessionToken": keys.token,
        "Expiration": expiration.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    sys.stdout.write(json.dumps(content))
    return 0


if __name__ == "__main__":
    sys.exit(main())

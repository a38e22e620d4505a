"""Keys of a person or a function from the environment, of a machine from its role."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from image.reaper.errors import CloudError, ConfigurationError
from image.reaper.metadata import Metadata
from image.reaper.times import parse_time

KEY_ID, SECRET = "ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET"
TOKEN = "ALIBABA_CLOUD_SECURITY_TOKEN"  # noqa: S105 - a name
ROLES = "ram/security-credentials/"
RENEW_BEFORE = timedelta(minutes=10)  # the service has new ones half an hour before the old ones end


@dataclass(frozen=True)
class Keys:
    """An access key, of a role with its token."""

    key_id: str
    secret: str = field(repr=False)
    token: str = field(default="", repr=False)


class Credentials:
    """The keys that count now.

    Args:
        environ: where a function and a person have theirs.
        metadata: of this machine; None elsewhere.
        now: the time.
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
        self._of_role: tuple[Keys, datetime] | None = None

    def current(self) -> Keys:
        """The keys of the environment, else of this machine's role.

        Raises:
            ConfigurationError: there are none.
            CloudError: the metadata service does not answer.
        """
        key_id, secret = self._environ.get(KEY_ID), self._environ.get(SECRET)
        if key_id and secret:
            return Keys(key_id, secret, self._environ.get(TOKEN, ""))
        if self._metadata is None:
            raise ConfigurationError(f"{KEY_ID} and {SECRET} are missing, and this is no machine with a role")
        if self._of_role is None or self._now() >= self._of_role[1] - RENEW_BEFORE:
            self._of_role = _ask(self._metadata)
        return self._of_role[0]


def _ask(metadata: Metadata) -> tuple[Keys, datetime]:
    role = (metadata.get(ROLES) or "").split("\n")[0].strip()
    text = metadata.get(ROLES + role) if role else None
    if text is None:
        raise ConfigurationError("this machine has no RAM role, and the environment has no access key")
    try:
        told = json.loads(text)
        keys = Keys(told["AccessKeyId"], told["AccessKeySecret"], told["SecurityToken"])
        return keys, parse_time(told["Expiration"])
    except (ValueError, KeyError, TypeError) as error:
        raise CloudError(f"metadata {ROLES}{role} cannot be read: {error!r}") from error

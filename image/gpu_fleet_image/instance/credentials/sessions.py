"""Sessions of the user role, one for each account, kept until shortly before they expire."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

from gpu_fleet_image.core.errors import CloudError, InstanceError
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.runs import ACCOUNT
from gpu_fleet_image.instance.credentials.errors import NoSessionError, NotServedError

SESSION_S = 3600  # the longest that an assumed role may ask for (IAM, "role chaining")
# botocore renews from 15 minutes before the end: it must get new keys then
RENEW_BEFORE = timedelta(minutes=20)
_ASK_AGAIN_S = 5.0  # after a refusal: eight ranks that ask at once cause one call

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionKeys:
    """The keys of one session.

    Attributes:
        ends: UTC.
    """

    key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    ends: datetime


class UserRole(Protocol):
    """The pool's user role on a cloud."""

    def assume(self, account: str) -> SessionKeys:
        """Return keys for an account; raises InstanceError."""


def own_id(metadata: Metadata) -> str:
    """Return this instance's id; raises CloudError."""
    own = metadata.get("instance-id")
    if own is None:
        raise CloudError("the metadata service does not know this instance's id")
    return own


def session_name(account: str, instance_id: str) -> str:
    """Return ``ACCOUNT@INSTANCE``, the user's name in the cloud's log of calls. Pure.

    Raises:
        NotServedError: ``access.people`` cannot have this account. The name is not adapted, since it might
            then be another user's.
    """
    check_account(account)
    return f"{account}@{instance_id}"


def account_in(name: str) -> str:
    """Return the account in a session's name. Pure."""
    return name.partition("@")[0]


def check_account(account: str) -> None:
    """Raise NotServedError for a name that policies could confuse with others."""
    if ACCOUNT.fullmatch(account) is None:
        raise NotServedError(f"account {account!r} is not served; allowed: {ACCOUNT.pattern}: no credentials")


class _Kept:
    """Credentials of one account, or the reason why there are none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.keys: SessionKeys | None = None
        self.refusal = ""
        self.refused_at: datetime | None = None


class Sessions:
    """Cache of each account's session."""

    def __init__(self, role: UserRole, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._role = role
        self._now = now
        self._lock = threading.Lock()
        self._kept: defaultdict[str, _Kept] = defaultdict(_Kept)

    def keys_of(self, account: str) -> SessionKeys:
        """Return keys that are valid for minutes at least; raises NoSessionError."""
        with self._lock:
            kept = self._kept[account]
        with kept.lock:
            if kept.keys is None or self._now() >= kept.keys.ends - RENEW_BEFORE:
                self._renew(account, kept)
            if kept.keys is None or self._now() >= kept.keys.ends:
                raise NoSessionError(kept.refusal)
            return kept.keys

    def _renew(self, account: str, kept: _Kept) -> None:
        """Renew the keys, or note the reason why there are none; keys that are still valid stay."""
        if kept.refused_at and self._now() < kept.refused_at + timedelta(seconds=_ASK_AGAIN_S):
            return
        try:
            kept.keys, kept.refused_at = self._role.assume(account), None
        except InstanceError as error:
            kept.refusal, kept.refused_at = str(error), self._now()
        except Exception as error:  # an answer that nobody expects: users hear of it all the same
            log.exception("event=session-unread account=%s", account)
            kept.refusal, kept.refused_at = f"the cloud's answer cannot be read: {error!r}", self._now()

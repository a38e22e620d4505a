"""Holds: a user's wish to keep an instance, set and removed as tags that the sweep obeys."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from gpu_fleet_image.core.handshake import Exchange, Winner
from gpu_fleet_image.core.marks import Hold, hold_in, mark_of
from gpu_fleet_image.core.model import (
    KEEP_AT_MOST,
    TAG_KEEP_BY,
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_MANAGED,
    TAG_OWNER,
    Instance,
)
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, NotHolderError, TooLateError
from gpu_fleet_image.core.times import format_time

# A mark that is due counts as due even if this clock is behind by less. Clouds refuse calls whose clock is
# off by more than a quarter of an hour (RequestTimeTooSkewed of S3 and OSS), so such a caller cannot set the
# hold either.
_NOT_DUE_YET = timedelta(minutes=30)
_LONGEST_REASON = 128  # characters of a tag's value: 256 in EC2's API, 128 in ECS's


@dataclass(frozen=True)
class Caller:
    """A caller who sets or removes a hold.

    Attributes:
        name: an account on the instance, or a user of the cloud elsewhere.
        in_place_of: the holder that the caller claims to be; elsewhere only, where the cloud decides who may
            tag.
    """

    name: str
    in_place_of: str = ""
    is_root: bool = False

    def may_change(self, hold: Hold, owner: str) -> bool:
        """Return whether the caller owns the hold or the instance, neither has an owner, or it is root."""
        named = {account_named(hold.holder), account_named(owner)} - {""}
        own = {account_named(self.name), account_named(self.in_place_of)}
        return self.is_root or not named or not named.isdisjoint(own)


def account_named(name: str) -> str:
    """Return a name in the form of accounts: the cloud calls users of a directory by their address."""
    return name.partition("@")[0].lower()


@dataclass(frozen=True)
class Wish:
    """A hold that a user asks for.

    Attributes:
        shortened: the wish was longer than allowed.
    """

    until: datetime
    reason: str
    shortened: bool

    def tags(self, holder: str) -> dict[str, str]:
        """Return the hold as tags."""
        until = format_time(self.until)
        return {TAG_KEEP_UNTIL: until, TAG_KEEP_REASON: self.reason, TAG_KEEP_BY: f"{until} {holder}"}


def wish(duration: timedelta, reason: str, now: datetime) -> Wish:
    """Return a hold from now on, for 14 days at most.

    Raises ConfigurationError if the reason is empty or does not fit a tag.
    """
    reason = " ".join(reason.split())
    if not 1 <= len(reason) <= _LONGEST_REASON:
        raise ConfigurationError(
            f"--reason of {len(reason)} characters; allowed: 1 to {_LONGEST_REASON}, say 'paper deadline'"
        )
    if not reason.isprintable():
        raise ConfigurationError(f"--reason {reason!r}; allowed: characters that can be printed")
    # A minute less: the sweep's clock may be behind, and it doubts a hold of more than 14 days.
    longest = KEEP_AT_MOST - timedelta(minutes=1)
    return Wish(now + min(duration, longest), reason, shortened=duration > KEEP_AT_MOST)


@dataclass(frozen=True)
class Output:
    """Output of a command: lines, and warnings beside them."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()


class Tagging(Protocol):
    """Access to the tags of instances; each method raises CloudError."""

    def tags(self, instance_id: str) -> dict[str, str]:
        """Return an instance's tags; empty for an instance that does not exist."""

    def tag(self, ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Set tags."""

    def untag(self, ids: Sequence[str], keys: Sequence[str]) -> None:
        """Remove tags, whatever their value."""


def managed(instance_id: str, tagging: Tagging) -> dict[str, str]:
    """Return the tags of an instance that the reaper may touch.

    Raises:
        ConfigurationError: the reaper never touches the instance.
        CloudError: the cloud does not answer.
    """
    tags = tagging.tags(instance_id)
    if tags.get(TAG_MANAGED) != "true":
        raise ConfigurationError(
            f"{instance_id} does not carry {TAG_MANAGED}=true: the reaper never touches it, or it is not "
            "there"
        )
    return tags


@dataclass(frozen=True)
class KeepTarget:
    """The instance of a user's command.

    Attributes:
        records: returns, for a mark, the exchange of sweep and instance, under the instance's name there.
    """

    id: str
    tagging: Tagging
    records: Callable[[datetime], Exchange]

    def keep(self, wanted: Wish, caller: Caller) -> Output:
        """Set a hold, which replaces an earlier one.

        Raises:
            TooLateError: the sweep has decided to terminate or stop the instance; it is not kept.
            NotHolderError: another user keeps it.
            ConfigurationError, CloudError: as ``managed``.
        """
        hold = self._changeable(caller)
        if not self.withdraw(wanted):
            raise TooLateError(_too_late(self.id))
        tags = wanted.tags(caller.name)
        self.tagging.tag([self.id], tags)
        if not self.withdraw(wanted):  # decided in between
            self.tagging.untag([self.id], list(tags))
            raise TooLateError(_too_late(self.id))
        replaced = (f"{hold.problem}; replaced",) if hold and hold.problem else ()
        return Output((f"{self.id} is kept until {format_time(wanted.until)}: {wanted.reason}",), replaced)

    def release(self, caller: Caller) -> Output:
        """Let a hold end now. Raises NotHolderError, ConfigurationError, CloudError as ``keep``."""
        if self._changeable(caller) is None:
            return Output((f"{self.id} was not kept",))
        # expired, but not removed: an earlier give-back stays void, and users are notified again
        self.tagging.tag([self.id], {TAG_KEEP_UNTIL: format_time(datetime.now(UTC))})
        return Output((f"{self.id} is kept no longer",))

    def _changeable(self, caller: Caller) -> Hold | None:
        """Return the hold in force, if any; errors as of ``release``."""
        tags = managed(self.id, self.tagging)
        hold, owner = hold_in(tags, datetime.now(UTC)), tags.get(TAG_OWNER, "")
        if hold is None or caller.may_change(hold, owner):
            return hold
        until = "" if hold.until is None else f" until {format_time(hold.until)}"
        raise NotHolderError(
            f"{self.id} is kept{until} by {hold.holder or owner or 'a user whom no tag names'} "
            f"({hold.reason}). They, its owner {owner or '(nobody)'} and operators may change that: "
            "on the instance by sudo, elsewhere with --holder NAME"
        )

    def withdraw(self, wanted: Wish) -> bool:
        """Withdraw a mark that is due, unless the sweep has decided to terminate or stop the instance.

        Returns:
            True if the withdrawal stands, or the instance refused the termination. A mark that is not due yet
            needs no withdrawal: the hold is read again before anything is decided.

        Raises:
            CloudError: the decision is unknown; the message says so.
        """
        now = datetime.now(UTC)
        try:
            mark = mark_of(Instance(self.id, "", "running", now, self.tagging.tags(self.id)))
            if mark is None or now < mark.reap_after - _NOT_DUE_YET:
                return True
            exchange = self.records(mark.reap_after)
            decided = exchange.claim(Winner.WITHDRAWN, f"kept: {wanted.reason}", now)
            return decided is Winner.WITHDRAWN or exchange.is_refused()
        except CloudError as error:
            raise CloudError(
                f"{self.id} may be terminated at any moment; the hold could not be confirmed: {error}",
                error.code,
            ) from error


def _too_late(instance_id: str) -> str:
    return (
        f"too late: the sweep has decided to terminate or stop {instance_id}, which was idle. "
        "It is not kept; /scratch/keep is saved"
    )

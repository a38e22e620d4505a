"""Tags of an instance: the sweep's mark, and users' holds. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_fleet_image.core.model import (
    KEEP_AT_MOST,
    TAG_GIVE_BACK,
    TAG_IDLE_SINCE,
    TAG_KEEP_BY,
    TAG_KEEP_REASON,
    TAG_KEEP_UNTIL,
    TAG_REAP_AFTER,
    TAG_TAKEN_AT,
    TAG_USERS,
    Instance,
    User,
)
from gpu_fleet_image.core.times import format_time, parse_time

# Two estimates of one idle instance's ``idle_since`` differ by at most two heartbeats.
_SAME_IDLENESS = timedelta(minutes=2)
# Accounts that images and session managers create, for any holder of a key: they name no user.
EVERYBODYS = frozenset(
    {"admin", "debian", "ec2-user", "ecs-assist-user", "ecs-user", "root", "ssm-user", "ubuntu"}
)


@dataclass(frozen=True)
class Mark:
    """Record on an instance that a sweep found it idle and notified its owner.

    Attributes:
        idle_since: start of the idleness, as the sweep saw it then.
        reap_after: time from which it may be terminated.
    """

    idle_since: datetime
    reap_after: datetime

    def tags(self) -> dict[str, str]:
        """Return the mark as tags."""
        return {TAG_IDLE_SINCE: format_time(self.idle_since), TAG_REAP_AFTER: format_time(self.reap_after)}

    def still_holds(self, idle_since: datetime) -> bool:
        """Return whether the instance has been idle ever since it was marked."""
        return idle_since <= self.idle_since + _SAME_IDLENESS


@dataclass(frozen=True)
class Hold:
    """A user's wish to keep an instance.

    Attributes:
        until: end of the hold; None if the tag cannot be read: the hold counts, and is reported.
        reason: in the owner's words.
        problem: error in the tag, or an empty text.
        is_far: it is longer than allowed; it ends the longest allowed time after a sweep first saw it.
        holder: the user who set it; empty if no tag says so.
    """

    until: datetime | None
    reason: str
    problem: str = ""
    is_far: bool = False
    holder: str = ""


def is_marked(instance: Instance) -> bool:
    """Return whether any trace of a mark is on the instance."""
    return TAG_REAP_AFTER in instance.tags or TAG_IDLE_SINCE in instance.tags


def mark_of(instance: Instance) -> Mark | None:
    """Return the mark, or None if there is none that can be read."""
    try:
        return Mark(parse_time(instance.tags[TAG_IDLE_SINCE]), parse_time(instance.tags[TAG_REAP_AFTER]))
    except (KeyError, ValueError):
        return None


def hold_of(instance: Instance, now: datetime) -> Hold | None:
    """Return the hold in force, or None. An expired hold no longer counts; a malformed one does."""
    return hold_in(instance.tags, now)


def hold_in(tags: Mapping[str, str], now: datetime) -> Hold | None:
    """Return the hold in an instance's tags; as ``hold_of``."""
    text = tags.get(TAG_KEEP_UNTIL)
    if text is None:
        return None
    reason = tags.get(TAG_KEEP_REASON, "no reason given")
    of, _, name = tags.get(TAG_KEEP_BY, "").partition(" ")
    holder = name if of == text else ""
    try:
        until = parse_time(text)
    except ValueError:
        allowed = "an ISO 8601 time with its zone, say 2026-11-21T18:00:00+01:00"
        return Hold(None, reason, f"{TAG_KEEP_UNTIL} = {text!r}; allowed: {allowed}", holder=holder)
    if until <= now:
        return None
    if until > now + KEEP_AT_MOST:
        problem = f"{TAG_KEEP_UNTIL} = {text!r}; allowed: at most {KEEP_AT_MOST.days} days ahead"
        return Hold(until, reason, problem, is_far=True, holder=holder)
    return Hold(until, reason, holder=holder)


@dataclass(frozen=True)
class GiveBack:
    """A user's request to terminate an instance that they no longer need.

    Attributes:
        by: their name.
        others: login names of other users seen on it, if the owner gave it back.
    """

    by: str
    owner: str
    others: tuple[str, ...] = ()

    @property
    def is_the_owners(self) -> bool:
        """True if the owner gave it back."""
        return self.by == self.owner

    @property
    def is_sole(self) -> bool:
        """True if the user who gave it back is its only user: then that suffices."""
        return self.is_the_owners and not self.others

    def __str__(self) -> str:
        if not self.is_the_owners:
            return (
                f"given back by {self.by}, not by its owner {self.owner or 'nobody'}: the pool's times apply"
            )
        also = f", but {', '.join(self.others)} used it too: the pool's times apply" if self.others else ""
        return f"given back by {self.by}{also}"


def give_back_of(instance: Instance) -> GiveBack | None:
    """Return the give-back, if it belongs to this run of the instance and no hold followed; else None.

    Giving back removes a hold's tags. A hold beside a give-back is therefore younger, even if it has expired.
    Nor does it say anything about whoever took the instance since, be it the same user.
    """
    at, by = given_back_at(instance), instance.tags.get(TAG_GIVE_BACK, "").partition(" ")[2]
    if at is None or not by or TAG_KEEP_UNTIL in instance.tags or at < instance.launched_at:
        return None
    if (taken := taken_at(instance)) is not None and at <= taken:
        return None
    return GiveBack(by, instance.owner, _others_on(instance, by))


def given_back_at(instance: Instance) -> datetime | None:
    """Return when the instance was last given back; None if it never was, or if the time cannot be read."""
    try:
        return parse_time(instance.tags.get(TAG_GIVE_BACK, "").partition(" ")[0])
    except ValueError:
        return None


def _others_on(instance: Instance, name: str) -> tuple[str, ...]:
    """Return the users seen on an instance besides one; a shared account alone counts as that user."""
    seen = [user.name for word in instance.tags.get(TAG_USERS, "").split() if (user := User.of(word))]
    others = [user for user in seen if user.partition("@")[0] != name.partition("@")[0]]
    return () if len(seen) == 1 and seen[0] in EVERYBODYS else tuple(others)


def is_given_back(instance: Instance) -> bool:
    """Return whether the owner gave the instance back and no other user was seen on it."""
    given_back = give_back_of(instance)
    return given_back is not None and given_back.is_sole


def taken_at(instance: Instance) -> datetime | None:
    """Return when a user took the instance, or None if nobody did or the time cannot be read."""
    try:
        return parse_time(instance.tags[TAG_TAKEN_AT])
    except (KeyError, ValueError):
        return None


def held_until(tags: Mapping[str, str], now: datetime) -> str:
    """Return the text of the hold that an agent obeys, or an empty one.

    An agent ignores a hold that is too long: only the sweep knows when it was set.
    """
    hold = hold_in(tags, now)
    return tags[TAG_KEEP_UNTIL] if hold and not hold.is_far else ""

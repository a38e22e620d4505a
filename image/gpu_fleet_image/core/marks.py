"""What the tags of an instance say: the sweep's mark, and users' holds. Pure."""

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
SAME_IDLENESS = timedelta(minutes=2)
# Accounts that images and session managers come with, for whoever has the key: they name no user.
EVERYBODYS = frozenset(
    {"admin", "debian", "ec2-user", "ecs-assist-user", "ecs-user", "root", "ssm-user", "ubuntu"}
)


@dataclass(frozen=True)
class Mark:
    """A sweep found the instance idle, notified its owner, and wrote this down on it.

    Attributes:
        idle_since: since when it was idle then.
        reap_after: when it may go.
    """

    idle_since: datetime
    reap_after: datetime

    def tags(self) -> dict[str, str]:
        """The mark as tags."""
        return {TAG_IDLE_SINCE: format_time(self.idle_since), TAG_REAP_AFTER: format_time(self.reap_after)}

    def still_holds(self, idle_since: datetime) -> bool:
        """Whether the instance has been idle all the time since it was marked."""
        return idle_since <= self.idle_since + SAME_IDLENESS


@dataclass(frozen=True)
class Hold:
    """A user's wish to keep an instance.

    Attributes:
        until: when it ends; None where the tag cannot be read, which holds and is reported.
        reason: why, in the owner's words.
        problem: what is wrong with the tag, or an empty text.
        is_far: it is for longer than is allowed, and ends that long after a sweep first saw it.
        holder: who set it; empty where no tag says so.
    """

    until: datetime | None
    reason: str
    problem: str = ""
    is_far: bool = False
    holder: str = ""


def is_marked(instance: Instance) -> bool:
    """Whether any trace of a mark is on the instance."""
    return TAG_REAP_AFTER in instance.tags or TAG_IDLE_SINCE in instance.tags


def mark_of(instance: Instance) -> Mark | None:
    """The mark, or None where there is none that can be read."""
    try:
        return Mark(parse_time(instance.tags[TAG_IDLE_SINCE]), parse_time(instance.tags[TAG_REAP_AFTER]))
    except (KeyError, ValueError):
        return None


def hold_of(instance: Instance, now: datetime) -> Hold | None:
    """The hold in force, or None; one that is over holds no longer, one that is malformed does."""
    return hold_in(instance.tags, now)


def hold_in(tags: Mapping[str, str], now: datetime) -> Hold | None:
    """The hold that an instance's tags say; as ``hold_of``."""
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
    """A user gave an instance back.

    Attributes:
        by: their name; empty where the tag is of before, when it said the time alone.
        owner: whose instance it is.
        others: login names of who else was seen on it, if it is the owner who gave it back.
    """

    by: str
    owner: str
    others: tuple[str, ...] = ()

    @property
    def is_the_owners(self) -> bool:
        """Whether the one whose instance it is said so."""
        return self.by in ("", self.owner)

    @property
    def is_sole(self) -> bool:
        """Whether nobody but who gave it back has to do with the instance: then their word is enough."""
        return self.is_the_owners and not self.others

    def __str__(self) -> str:
        if not self.is_the_owners:
            return (
                f"given back by {self.by}, not by its owner {self.owner or 'nobody'}: the pool's times hold"
            )
        who = f"given back by {self.by or 'its owner'}"
        return (
            f"{who}, but {', '.join(self.others)} used it too: the pool's times hold" if self.others else who
        )


def give_back_of(instance: Instance) -> GiveBack | None:
    """That the instance was given back in this run of it, and was not kept since; else None.

    Giving back takes a hold's tags off, so that one beside it is younger, be it over or not.
    """
    at = given_back_at(instance)
    if at is None or TAG_KEEP_UNTIL in instance.tags or at < instance.launched_at:
        return None
    by = instance.tags[TAG_GIVE_BACK].partition(" ")[2]
    return GiveBack(by, instance.owner, _others_on(instance, by or instance.owner))


def given_back_at(instance: Instance) -> datetime | None:
    """When the instance was last given back; None for never, or where that cannot be read."""
    try:
        return parse_time(instance.tags.get(TAG_GIVE_BACK, "").partition(" ")[0])
    except ValueError:
        return None


def _others_on(instance: Instance, name: str) -> tuple[str, ...]:
    """Who was seen on an instance beside a user; an account of everybody's is theirs where it is alone."""
    seen = [user.name for word in instance.tags.get(TAG_USERS, "").split() if (user := User.of(word))]
    others = [user for user in seen if user.partition("@")[0] != name.partition("@")[0]]
    return () if len(seen) == 1 and seen[0] in EVERYBODYS else tuple(others)


def is_given_back(instance: Instance) -> bool:
    """Whether its owner gave the instance back, and nobody else was seen on it."""
    given_back = give_back_of(instance)
    return given_back is not None and given_back.is_sole


def taken_at(instance: Instance) -> datetime | None:
    """When a user got the instance, or None where nobody did or that cannot be read."""
    try:
        return parse_time(instance.tags[TAG_TAKEN_AT])
    except (KeyError, ValueError):
        return None


def held_until(tags: Mapping[str, str], now: datetime) -> str:
    """The text of a hold that an agent goes by, or an empty one.

    One that is too far is for the sweep to judge, which alone knows since when it stands.
    """
    hold = hold_in(tags, now)
    return tags[TAG_KEEP_UNTIL] if hold and not hold.is_far else ""

"""Input and output of a pass of the mover: ``PoolView`` and ``PlacementDecision``. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

from gpu_fleet_image.core.capacity import Request, Trouble
from gpu_fleet_image.core.holds import account_named
from gpu_fleet_image.core.model import Group, Instance
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.queue_need import PoolNeed
from gpu_fleet_image.core.roster import NO_TEAM


class Action(StrEnum):
    """Kinds of decisions."""

    START = "start"
    WITHDRAW = "withdraw"
    GIVE = "give"
    RELEASE = "release"
    KEEP = "keep"
    ACCEPT = "accept"
    REFUSE = "refuse"
    FAIL = "fail"
    HOLD = "hold"


@dataclass(frozen=True)
class PlacementDecision:
    """One line of the ledger, with everything that is needed to carry it out.

    Attributes:
        group: the scaling group, if one is changed.
        coming: ids of the instances on their way that it is about.
        desired: desired capacity of the group before; None where none is changed.
        instance: that gets tags, if one does.
        owner: who asked; empty for the pool itself.
    """

    action: Action
    pool: str
    reason: str
    group: str = ""
    coming: tuple[str, ...] = ()
    desired: int | None = None
    instance: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    untag: tuple[str, ...] = ()
    owner: str = ""


@dataclass(frozen=True)
class Site:
    """A scaling group where a pool may start instances.

    Attributes:
        label: what its stack calls it: the pool, with the zone where there is a group for each.
        failed: its newest failed launch and what the cloud said; None without any of late.
    """

    group: Group
    label: str
    failed: Trouble | None = None


@dataclass(frozen=True)
class MoneyLeft:
    """Budget that is left this month.

    Attributes:
        left: budget less what is spent; None where nobody knows.
        why: why nobody knows, or why the pool may not grow at all.
        prices: pool -> what an hour of an instance costs at most; None where nobody knows.
        frozen: pools that take no instances now.
        frozen_teams: team that starts nothing now -> why.
        teams: user -> team or ``NO_TEAM``, while a team is frozen; None where nobody knows.
    """

    left: Decimal | None
    prices: Mapping[str, Decimal | None]
    frozen: frozenset[str] = frozenset()
    why: str = ""
    currency: str = "USD"
    frozen_teams: Mapping[str, str] = field(default_factory=dict)
    teams: Mapping[str, str] | None = None

    def frozen_by(self, owner: str) -> str:
        """Return why a user starts nothing now; empty where they do. Without an account there is no team."""
        if not self.frozen_teams:
            return ""
        if self.teams is None:
            return f"nobody knows who is in a frozen team ({', '.join(sorted(self.frozen_teams))}); try again"
        return self.frozen_teams.get(self.teams.get(account_named(owner), NO_TEAM), "")


@dataclass(frozen=True)
class PoolView:
    """Everything that a decision depends on, beside the state.

    Attributes:
        now: aware UTC.
        sites: pool -> its groups in order of preference.
        instances: those of the stack that are not gone.
        requests: that no pass has seen yet.
        firing: pools whose load asks for an instance more.
        queue: pool -> what waits for its instances, on a stack with a queue; None without one.
    """

    now: datetime
    policy: Policy
    sites: Mapping[str, tuple[Site, ...]]
    instances: Sequence[Instance]
    money: MoneyLeft
    requests: Sequence[Request] = ()
    firing: frozenset[str] = frozenset()
    queue: Mapping[str, PoolNeed] | None = None

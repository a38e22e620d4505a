"""A cloud that is nothing but scaling groups with or without room, for the mover's decisions alone."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count

from gpu_fleet_image.controllers.mover.placement import decide, totals
from gpu_fleet_image.controllers.mover.pool_view import Action, MoneyLeft, PlacementDecision, PoolView, Site
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.capacity import Coming, MoverState, Request, Trouble
from gpu_fleet_image.core.model import TAG_POOL, Group, Instance
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.queue_need import PoolNeed
from tests.image.moto_fleet import policy_json, pool_policy

START = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)
NO_ROOM = "We currently do not have sufficient p4d.24xlarge capacity"
LABELS = ("train-us-east-1a", "train-us-east-1b")


def policy(**capacity: object) -> Policy:
    """One pool, ``train``, with a group in each of two zones."""
    own = {"groups": list(LABELS), "max_size": 4, "spare": 0, "together": False, "scale_out_alarms": []}
    pools = {"train": pool_policy(capacity=own | capacity)}
    return policies.parse(json.dumps(policy_json(pools=pools, take_max_per_person=4)))


def request(count: int = 1, hours: float | None = None, who: str = "ada", number: int = 1) -> Request:
    return Request(f"2026-11-22/users/{who}/100000Z-{number:08x}", "train", count, hours, START)


@dataclass
class Cloud:
    """Groups, instances, money and time; ``move`` is one pass of the mover.

    Attributes:
        room: label -> whether the zone has room.
        state: what the mover remembers.
        left: of the budget; None where nobody knows.
        frozen: pools that take nothing.
        frozen_teams: team that starts nothing -> why.
        teams: account -> team; None where nobody knows.
        rises: (group, by how many) of every rise of a desired capacity.
        totals: what each pass said that pools have or are about to have.
    """

    policy: Policy = field(default_factory=policy)
    room: dict[str, bool] = field(default_factory=lambda: dict.fromkeys(LABELS, True))
    state: MoverState = field(default_factory=MoverState)
    now: datetime = START
    left: Decimal | None = Decimal(1000)
    frozen: frozenset[str] = frozenset()
    frozen_teams: dict[str, str] = field(default_factory=dict)
    teams: dict[str, str] | None = field(default_factory=dict)
    firing: frozenset[str] = frozenset()
    queue: dict[str, PoolNeed] | None = None
    instances: dict[str, Instance] = field(default_factory=dict)
    ledger: list[PlacementDecision] = field(default_factory=list)
    rises: list[tuple[str, int]] = field(default_factory=list)
    totals: list[dict[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = {
            label: Group(label, 0, 0, {}, 4, "train", title=f"gpu-fleet-test-{label}") for label in LABELS
        }
        self.failed: dict[str, Trouble] = {}
        self.names = count()

    @property
    def desired(self) -> dict[str, int]:
        return {label: group.desired for label, group in self.groups.items()}

    def later(self, seconds: float = 60) -> None:
        self.now += timedelta(seconds=seconds)
        for label, group in self.groups.items():
            for _ in range(group.desired - len(group.members)):
                if self.room[label]:
                    self.launch(label)
                else:
                    self.failed[label] = Trouble(self.now, NO_ROOM)

    def minutes(self, number: int = 1) -> None:
        """As ``later``, each minute with a pass of the mover."""
        for _ in range(number):
            self.later()
            self.move()

    def launch(self, label: str) -> None:
        name = f"i-{next(self.names):04}"
        tags = {TAG_POOL: "train"}
        self.instances[name] = Instance(name, "p4d.24xlarge", "running", self.now, tags)
        group = self.groups[label]
        self.groups[label] = replace(group, members={**group.members, name: "InService"})

    def move(self, *requests: Request, until: int | None = None) -> list[PlacementDecision]:
        """One pass; one that is cut off carries out some of its decisions, and says of none that it did."""
        sites = [Site(group, group.name, self.failed.get(group.name)) for group in self.groups.values()]
        money = MoneyLeft(
            self.left,
            {"train": Decimal(10)},
            self.frozen,
            why="nobody knows what is spent",
            frozen_teams=self.frozen_teams,
            teams=self.teams,
        )
        new = [request for request in requests if request.key not in self.state.requests]
        everyone = tuple(self.instances.values())
        view = PoolView(
            self.now, self.policy, {"train": tuple(sites)}, everyone, money, new, self.firing, self.queue
        )
        self.totals.append(totals(view, self.state))
        self.state, decisions = decide(view, self.state)
        self.ledger += decisions
        for decision in decisions[:until]:
            self._carry_out(decision)
        if until is None:
            coming = [replace(one, started=one.started or bool(one.group)) for one in self.state.coming]
            self.state = replace(self.state, coming=tuple(coming))
        return decisions

    def _carry_out(self, decision: PlacementDecision) -> None:
        if decision.action is Action.START:
            self._want(decision.group, self.groups[decision.group].desired + len(decision.coming))
        if decision.action is Action.WITHDRAW:
            group = self.groups[decision.group]
            self._want(decision.group, max(len(group.members), group.desired - len(decision.coming)))
        if decision.instance:
            request = self.instances[decision.instance]
            tags = {key: value for key, value in request.tags.items() if key not in decision.untag}
            self.instances[request.id] = replace(request, tags=tags | dict(decision.tags))

    def _want(self, label: str, desired: int) -> None:
        before = self.groups[label].desired
        if desired > before:
            self.rises.append((label, desired - before))
        self.groups[label] = replace(self.groups[label], desired=desired)

    def end(self, name: str) -> None:
        label = self._leave(name)
        self.groups[label] = replace(self.groups[label], desired=self.groups[label].desired - 1)

    def _leave(self, name: str) -> str:
        """An instance leaves its group, which is named, and is gone."""
        del self.instances[name]
        (group,) = [group for group in self.groups.values() if name in group.members]
        members = {key: state for key, state in group.members.items() if key != name}
        self.groups[group.name] = replace(group, members=members)
        return group.name

    def interrupt(self, *names: str) -> None:
        """The cloud takes instances, and has no others there; their groups want as many still."""
        for name in names:
            self.room[self._leave(name)] = False

    def outside(self, state: str = "running") -> str:
        """Return an instance of the pool in no group, of long ago."""
        name = f"i-{next(self.names):04}"
        before = self.now - timedelta(days=1)
        self.instances[name] = Instance(name, "p4d.24xlarge", state, before, {TAG_POOL: "train"})
        return name

    def owned(self, who: str) -> list[str]:
        return [instance.id for instance in self.instances.values() if instance.owner == who]

    def waiting(self) -> tuple[Coming, ...]:
        return self.state.coming

"""A POC in which mover, cloud and instances are played: time passes only while the console waits."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from gpu_fleet_image.console.poc.campaign import Campaign
from gpu_fleet_image.console.poc.measured import PREFIX
from gpu_fleet_image.console.poc.spending import CostMeter
from gpu_fleet_image.console.runs.choice import Criteria
from gpu_fleet_image.console.runs.command import Packed
from gpu_fleet_image.console.users.take import Desk
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.capacity import Fate, Request
from gpu_fleet_image.core.model import TAG_GIVE_BACK, Instance, Inventory
from gpu_fleet_image.core.place import Place
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.runs import Job, NodeState, Phase
from tests.image.moto_fleet import budget_json, policy_json, pool_policy

MOVER_TAKES = 2  # waits from a request to its instances
BEGAN = datetime(2026, 11, 26, 12, tzinfo=UTC)
CALLER = "users/ada"
CAPACITY = {"groups": ["train"], "max_size": 4, "spare": 0, "together": False, "scale_out_alarms": []}


def policy(**changes: Any) -> Policy:
    """A stack whose pool ``train`` costs 1.026 USD an hour an instance."""
    budget = budget_json()
    budget["pools"] = {"train": budget["pools"]["dev"]}
    content = policy_json(
        pools={"train": pool_policy(capacity=CAPACITY)}, take_max_per_person=4, budget=budget
    )
    return policies.parse(json.dumps(content | changes))


def rows(nodes: int) -> str:
    """The log of a run of so many instances."""
    row = {"subject": "gpt2_124m", "metric": "samples_per_s", "value": 90.0 * nodes, "unit": "samples/s"}
    device = {"device": "H100", "ranks_per_node": 1, "backend": "nccl", "torch": "2.13"}
    said = [device, {"row": {**row, "nodes": nodes, "ranks": nodes}}]
    return "".join(f"{PREFIX}{json.dumps(line)}\n" for line in said)


@dataclass
class PlayedCloud:
    """Instances, requests and runs.

    Attributes:
        events: number of a wait -> what happens then.
        room: instances that the mover finds.
        lasts: waits until a run is over.
        ends: phase of each run's end.
    """

    events: dict[int, Callable[[], None]] = field(default_factory=dict)
    room: int = 4
    lasts: int = 3
    ends: Phase = Phase.FINISHED
    now: datetime = BEGAN
    waits: int = 0
    requests: dict[str, Request] = field(default_factory=dict)
    there: dict[str, Instance] = field(default_factory=dict)
    jobs: dict[str, tuple[Job, int]] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    asked: dict[str, int] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)

    def wait(self, seconds: float) -> None:
        """Time passes; the mover fills what is open."""
        self.now += timedelta(seconds=max(60.0, seconds))
        self.waits += 1
        for key, request in self.requests.items():
            if request.fate is Fate.OPEN and not request.withdraws:
                self.requests[key] = self._moved(key, request)
        if event := self.events.get(self.waits):
            event()

    def _moved(self, key: str, request: Request) -> Request:
        """The mover's next word; of what is withdrawn one instance has started already."""
        if key in self.withdrawn:
            return replace(request, fate=Fate.FAILED, reason="withdrawn", instances=self._started(key, 1))
        if self.waits - self.asked.setdefault(key, self.waits - 1) < MOVER_TAKES:
            return request
        if len(self.there) + request.count > self.room:
            return replace(request, fate=Fate.FAILED, reason="no room in any zone")
        return replace(request, fate=Fate.FILLED, instances=self._started(key, request.count))

    def _started(self, key: str, count: int) -> tuple[str, ...]:
        names = tuple(f"i-{len(self.there) + number}" for number in range(count))
        for name in names:
            tags = {"gpu-fleet:taken": key, "gpu-fleet:stack": "test", "gpu-fleet:pool": "train"}
            self.there[name] = Instance(name, "g5.xlarge", "running", self.now, tags)
        return names

    def fleet(self) -> Inventory:
        """What the cloud lists."""
        return Inventory(tuple(self.there.values()))

    def tag(self, ids: Iterable[str], tags: dict[str, str]) -> None:
        """Set tags."""
        for each in ids:
            self.there[each] = replace(self.there[each], tags=self.there[each].tags | tags)

    def untag(self, ids: Iterable[str], _keys: Iterable[str]) -> None:
        """Forget nothing: no instance has a hold."""

    @property
    def kept(self) -> set[str]:
        """Instances that nobody gave back."""
        return {name for name, each in self.there.items() if TAG_GIVE_BACK not in each.tags}


class PlayedDesk(Desk):
    """Requests and their results, without a bucket."""

    def ask(self, pool: str, count: int, hours: float | None, caller: str) -> str:
        key = f"2026-11-26/{caller}/12000{len(self.cloud.requests)}Z-0a"
        self.cloud.requests[key] = Request(key, pool, count, hours, self.now())
        return key

    def withdraw(self, key: str, caller: str) -> None:
        del caller
        self.cloud.instances.withdrawn.add(key)

    def fate(self, key: str) -> Request | None:
        return self.cloud.requests[key]

    def ready(self, ids: Iterable[str]) -> dict[str, str]:
        return dict.fromkeys(ids, "ready")


@dataclass
class PlayedBucket:
    """Runs that are over after some waits."""

    cloud: PlayedCloud

    def submit(self, job: Job, _archive: bytes) -> None:
        self.cloud.jobs[job.run] = job, self.cloud.waits

    def states(self, job: Job) -> list[NodeState]:
        begun = self.cloud.jobs[job.run][1]
        over = self.cloud.waits - begun >= self.cloud.lasts
        phase = self.cloud.ends if over else Phase.RUNNING
        phase = Phase.CANCELLED if job.run in self.cloud.cancelled else phase
        return [NodeState(phase, self.cloud.now.isoformat(), "as played") for _ in job.instances]

    def log_keys(self, _place: str, _account: str) -> list[str]:
        return [next(reversed(self.cloud.jobs))]

    def part(self, key: str, _account: str) -> bytes:
        return rows(len(self.cloud.jobs[key][0].instances)).encode()

    def cancel(self, _account: str, run: str, _by: str, _now: datetime) -> None:
        self.cloud.cancelled.append(run)


def campaign(cloud: PlayedCloud, cap: str = "100", price: str = "1.026") -> Campaign:
    """A POC on a played cloud."""
    own = SimpleNamespace(instances=cloud, calls=None, store=None, requests=cloud.requests)
    desk = PlayedDesk(own, policy(), Place("test", "aws", "us-east-1"), lambda: cloud.now, cloud.wait)
    meter = CostMeter(Decimal(price), Decimal(cap), desk.now)
    criteria = Criteria("train", 4, (), "ada", CALLER)
    packed = Packed(b"", ("measure",), "", "poc", ())
    return Campaign(desk, PlayedBucket(cloud), criteria, meter, lambda _: packed, cloud.said.append)

"""Stage of the plays: a world, the policy that sweeps it, and common actions."""

import contextlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from gpu_fleet_image.controllers.sweep.lease import KEY as LEASE_KEY
from gpu_fleet_image.controllers.sweep.results import Result
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.providers.alicloud.oss import OssStore
from tests.image.alicloud_world import Bucket
from tests.image.moto_fleet import TAGS
from tests.image.sweeping import CLOUDS, TERMS, policy, sweep_world
from tests.image.world import SimulatedInstance, World
from tests.image.world_agents import LEDGER
from tests.image.world_clients import clients

POOL = TERMS
EVERY = 10  # minutes between two sweeps
PLAYS: dict[str, type["Stage"]] = {}


def plays(holder: type["Stage"]) -> type["Stage"]:
    """Register the methods of a class as plays."""
    PLAYS.update({name: holder for name in vars(holder) if not name.startswith("_")})
    return holder


class Stage:
    """A world on one of the clouds, and the policy that sweeps it."""

    def __init__(self, cloud: str) -> None:
        self.cloud, self.world = cloud, World()
        self.failures: list[Any] = []
        self.terms()

    def terms(self, top: dict[str, Any] | None = None, **pool: Any) -> None:
        """Change the policy: a key of its top level, or of its pool."""
        self.policy = policy(top=CLOUDS[self.cloud] | (top or {}), **(POOL | pool))

    def start(self, count: int = 1, group: str | None = None, **more: Any) -> list[SimulatedInstance]:
        """Start instances that are in use for five minutes, in no group or in one with a minimum of 0."""
        if group is not None and group not in self.world.groups:
            self.world.group(group, min_size=0)
        tags = TAGS | more.pop("tags", {})
        made = [
            self.world.join(group, tags, **more) if group else self.world.start(tags, **more)
            for _ in range(count)
        ]
        self.world.pass_minutes(5)
        return made

    def forget(self, instances: list[SimulatedInstance], minutes: int = 80) -> None:
        for instance in instances:
            instance.leave()
        self.world.pass_minutes(minutes)

    def use(self, instance: SimulatedInstance, minutes: int) -> None:
        instance.busy = True
        self.world.pass_minutes(minutes)

    def marked(
        self, count: int = 1, group: str | None = None, *, due: bool = True
    ) -> list[SimulatedInstance]:
        """Create idle instances whose owner was notified; their grace is over, or nearly."""
        made = self.start(count, group)
        self.forget(made)
        self.sweep(override_breaker=True)
        self.world.pass_minutes(21 if due else 19)
        return made

    def sweep(self, **options: Any) -> Result | None:
        """Sweep once; return None if it reports that it could not."""
        with contextlib.suppress(InstanceError):
            result = sweep_world(self.world, self.policy, unseen=timedelta(0), **options)
            self.failures += result.done.failures
            return result
        return None

    def report(self, **options: Any) -> Result:
        result = self.sweep(**options)
        assert result is not None, "the sweep fails"
        return result

    def sweep_for(self, minutes: int, **options: Any) -> None:
        for _ in range(minutes // EVERY):
            self.sweep(**options)
            self.world.pass_minutes(EVERY)

    @property
    def ended(self) -> list[str]:
        return [instance.id for _, instance, _ in self.world.ends]

    def begins(self, instance: SimulatedInstance, seconds: float) -> Callable[[], object]:
        """Return an action: a job begins behind its door, and time passes."""

        def begin() -> None:
            instance.begin_behind_the_door()
            self.world.pass_seconds(seconds)

        return begin

    def as_its_end_is_called(self, act: Callable[[], object]) -> None:
        """Run an action right before the next call that terminates, on either cloud."""
        for end in ("TerminateInstances", "DeleteInstances"):
            self.world.on_call(end, act, number=1)

    def before_second_look(self, act: Callable[[], object]) -> None:
        """Run an action once the plan is made, a minute before the sweep's second look."""
        left = [act]

        def once() -> None:
            for first in left[:1]:
                left.clear()
                first()
                self.world.pass_minutes(1)

        self.world.on_call("DescribeInstances", once)
        self.world.on_call("PutObject", once)  # the lease is renewed after the second look

    def lease(self) -> str:
        """Return the key of the lease for a sweep; in a store without conditional writes, the newest one."""
        versions = sorted(key for key in self.world.objects if key.startswith(f"reaper/{LEASE_KEY}."))
        return versions[0] if versions else f"reaper/{LEASE_KEY}"

    def reasons(self, word: str) -> list[str]:
        written = [body for key, (body, _) in self.world.objects.items() if key.endswith(f"/{word}.json")]
        return [json.loads(body)["reason"] for body in written]

    def store(self) -> Store:
        """Return the stack's records, to which `gpu-fleet keep` writes."""
        bucket = Bucket(self.world) if self.cloud == "alicloud" else clients(self.world).s3
        made = OssStore if self.cloud == "alicloud" else Store
        return made(bucket, Calls(self.world.clock), LEDGER)

    def heard(self, words: str) -> list[str]:
        return [text for _, text in self.world.messages if words in text]

    def notices(self) -> int:
        return sum(len(instance.line.notices) for instance in self.world.instances.values())

    def asked(self, group: str | None = None) -> SimulatedInstance:
        """Return an instance whose mark is due and whose agent has replied that nothing runs there."""
        self.terms(require_acknowledgement=True)
        (instance,) = self.marked(1, group)
        return instance

    def stopped_and_due(self, count: int = 1) -> list[SimulatedInstance]:
        """Return instances that a sweep has stopped, whose owner was notified of their termination."""
        self.terms(action="stop", instance_store_scratch=False, terminate_stopped_after_days=1)
        made = self.marked(count)
        self.sweep()
        self.world.pass_minutes(25 * 60)
        self.sweep()
        self.world.pass_minutes(21)
        return made

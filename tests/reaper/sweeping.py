"""Run sweeps in a world."""

import itertools
import json
from datetime import timedelta
from typing import Any

from image.reaper import policy as policies
from image.reaper.environment import connect
from image.reaper.policy import Policy
from image.reaper.results import Result
from image.reaper.sweep import Cloud, Options, sweep
from tests.reaper.moto_fleet import policy_json, pool_policy
from tests.reaper.world import World
from tests.reaper.world_clients import clients

ENVIRON = {"GPU_FLEET_LEDGER_URI": "s3://records/reaper", "GPU_FLEET_TOPIC_ARN": "arn:aws:sns:::alarms"}
_holders = itertools.count()


def policy(pools: dict[str, Any] | None = None, top: dict[str, Any] | None = None, **pool: Any) -> Policy:
    """A checked policy, with some keys of its one pool or of its top level replaced."""
    content = policy_json(pools=pools or {"dev": pool_policy(**pool)}, **(top or {}))
    return policies.parse(json.dumps(content))


def connect_world(
    world: World, checked: Policy, *, deadline_after: timedelta | None = None, read_only: bool = False
) -> Cloud:
    """The cloud of a world."""
    return connect(
        checked,
        world.clock,
        deadline=world.clock() + deadline_after if deadline_after else None,
        read_only=read_only,
        environ=ENVIRON,
        made=clients(world),
    )


def sweep_world(
    world: World, checked: Policy, *, deadline_after: timedelta | None = None, **options: Any
) -> Result:
    """Sweep a world once; errors as of ``sweep``."""
    read_only = options.get("dry_run", False)
    cloud = connect_world(world, checked, deadline_after=deadline_after, read_only=read_only)
    return sweep(cloud, checked, Options(clock=world.clock, holder=f"sweep {next(_holders)}", **options))

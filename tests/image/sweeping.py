"""Sweeps in a world."""

import atexit
import itertools
import json
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

from gpu_fleet_image.controllers.sweep.carry_out import CHECK_LASTS
from gpu_fleet_image.controllers.sweep.idle_rules import OLDEST_HEARTBEAT
from gpu_fleet_image.controllers.sweep.results import Result
from gpu_fleet_image.controllers.sweep.sweep import SweepOptions, sweep
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.cloud import SweepCloud, connect
from gpu_fleet_image.core.notify.notifier import Notifier
from gpu_fleet_image.core.policy import Policy, PoolPolicy
from gpu_fleet_image.instance.agent.answers import CLOSED_FORGOTTEN, SAVE_AGAIN_AFTER
from gpu_fleet_image.providers.alicloud.session import Clients
from tests.image.alicloud_server import Server, serving
from tests.image.alicloud_server import clients as rpc_clients
from tests.image.alicloud_world import Actions, Bucket, RecordedNotifier
from tests.image.moto_fleet import policy_json, pool_policy
from tests.image.oracle import Rules
from tests.image.world import World
from tests.image.world_agents import Agent, patience
from tests.image.world_clients import clients

TERMS = {"idle_after_hours": 1, "grace_minutes": 20, "min_uptime_minutes": 30}
CLOUDS: dict[str, dict[str, str]] = {"aws": {}, "alicloud": {"cloud": "alicloud", "region": "cn-wulanchabu"}}
ENVIRON = {
    "GPU_FLEET_LEDGER_URI": "s3://records/reaper",
    "GPU_FLEET_TOPIC_ARN": "arn:aws:sns:::alarms",
    "GPU_FLEET_ACCOUNT_ID": "1",
}
# No sweep alone can know of a use that began after the newest heartbeat that it accepts.
SLOWEST_CALL = timedelta(minutes=1)
BLIND = OLDEST_HEARTBEAT + CHECK_LASTS + SLOWEST_CALL
_holders = itertools.count()


def policy(pools: dict[str, Any] | None = None, top: dict[str, Any] | None = None, **pool: Any) -> Policy:
    """Return a checked policy, with some keys of its only pool or of its top level replaced."""
    content = policy_json(pools=pools or {"dev": pool_policy(**pool)}, **(top or {}))
    return policies.parse(json.dumps(content))


def connect_world(
    world: World, checked: Policy, *, deadline_after: timedelta | None = None, read_only: bool = False
) -> SweepCloud:
    made = alicloud_clients(world) if checked.cloud == "alicloud" else clients(world)
    cloud = connect(
        checked,
        world.clock,
        deadline=world.clock() + deadline_after if deadline_after else None,
        read_only=read_only,
        environ=ENVIRON,
        made=made,
    )
    if checked.cloud == "alicloud" and cloud.notifier is not None:
        return replace(cloud, notifier=Notifier(RecordedNotifier(world, cloud.notifier)))
    return cloud


def promised(pool: PoolPolicy, unseen: timedelta | None = None) -> Rules:
    """Return the promises to a pool's users; if agents are asked, no use may be missed."""
    asked = timedelta(0) if pool.require_acknowledgement else BLIND
    stopped_days = pool.terminate_stopped_after_days
    return Rules(
        idle_after=timedelta(hours=pool.idle_after_hours),
        grace=timedelta(minutes=pool.grace_minutes),
        min_uptime=timedelta(minutes=pool.min_uptime_minutes),
        lifetime=None if pool.max_lifetime_hours is None else timedelta(hours=pool.max_lifetime_hours),
        stopped_for=None if stopped_days is None else timedelta(days=stopped_days),
        # an agent that looks every five seconds saves again then, and waits before that behind a shut door
        unsaved=SAVE_AGAIN_AFTER + CLOSED_FORGOTTEN + timedelta(seconds=10)
        if pool.require_acknowledgement
        else None,
        unseen=asked if unseen is None else unseen,
    )


@cache
def server() -> tuple[Server, Clients]:
    """Return the process's only server, for all worlds; a child process needs its own."""
    stack = ExitStack()
    answering = stack.enter_context(serving())
    atexit.register(stack.close)
    return answering, rpc_clients(answering)


def alicloud_clients(world: World) -> Clients:
    """Return the real SDK's clients, connected to a server that answers from this world."""
    answering, made = server()
    answering.actions = Actions(world)
    return replace(made, s3=Bucket(world))


def sweep_world(
    world: World,
    checked: Policy,
    *,
    deadline_after: timedelta | None = None,
    unseen: timedelta | None = None,
    **options: Any,
) -> Result:
    """Sweep a world once, until it is cut off; raises as ``sweep`` does."""
    read_only = options.get("dry_run", False)
    if any(pool.require_acknowledgement for pool in checked.pools.values()):
        bucket = Bucket(world) if checked.cloud == "alicloud" else clients(world).s3
        world.answering = lambda instance: Agent(world, instance, bucket, checked.cloud)
        world.patience = cache(lambda: patience(checked.cloud))
    world.rules = {name: promised(pool, unseen) for name, pool in checked.pools.items()}
    cloud = connect_world(world, checked, deadline_after=deadline_after, read_only=read_only)
    made = SweepOptions(
        clock=world.clock, holder=f"sweep {next(_holders)}", wait=world.pass_seconds, **options
    )
    return sweep(cloud, checked, made)

"""Steps on one instance: launch, heartbeat, gate, hold."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import cast

from gpu_fleet_image.core.model import TAG_KEEP_REASON, TAG_KEEP_UNTIL, Instance
from gpu_fleet_stacks.acceptance import on_instance, remote
from gpu_fleet_stacks.acceptance.errors import StepError
from gpu_fleet_stacks.acceptance.runner import AcceptanceRun, StepResult
from gpu_fleet_stacks.acceptance.variant import IDLE_POOL, SPOT_POOL
from gpu_fleet_stacks.clients.errors import CannotCheckError

# An agent sends a heartbeat every minute; after four silent minutes the sweep counts it as unknown.
FRESH = timedelta(minutes=4)
HELD_FOR = timedelta(hours=12)


def launch(run: AcceptanceRun, pool: str) -> StepResult:
    """Wait for a running instance of the pool; the failure holds the group's own message."""
    gone = run.memory.setdefault("gone", [])

    def running() -> Instance | None:
        instances = [
            instance for instance in run.instances() if instance.pool == pool and instance.state == "running"
        ]
        return next((instance for instance in instances if instance.id not in gone), None)

    try:
        instance = run.wait(f"a running instance of pool {pool}", running)
    except StepError as error:
        raise StepError(f"{error}; its group says: {_why_none(run, pool)}") from error
    run.memory[pool] = instance.id
    run.memory.setdefault("launched", {})[instance.id] = instance.launched_at
    facts = {"instance": instance.id, "type": instance.type, "spot": instance.spot}
    if instance.spot is not (pool == SPOT_POOL):
        raise StepError(
            f"{instance.id} is bought {'on spot' if instance.spot else 'on demand'}, and should not be"
        )
    return StepResult(f"one running instance of pool {pool}", f"{instance.id}, {instance.type}", facts)


def _why_none(run: AcceptanceRun, pool: str) -> str:
    groups = group_ids(run)[pool]
    try:
        return "; ".join(run.account.why_none(str(group)) or "nothing" for group in groups)
    except CannotCheckError as error:
        return str(error)


def heartbeat(run: AcceptanceRun, pool: str) -> StepResult:
    instance: str = run.memory[pool]
    launched: datetime = run.memory["launched"][instance]
    first = run.wait(f"a heartbeat of {instance}", lambda: run.account.first_heartbeat(instance, launched))
    newest = run.account.newest_heartbeat(instance, launched) or first
    silent_s = (run.clock.now() - newest).total_seconds()
    if silent_s > FRESH.total_seconds():
        raise StepError(f"{instance} sent its last heartbeat {silent_s:.0f} s ago: its agent is silent")
    seconds = (first - launched).total_seconds()
    facts = {"instance": instance, "first_heartbeat_after_s": round(seconds)}
    return StepResult(
        "a heartbeat, and a fresh one", f"first heartbeat {seconds:.0f} s after its launch", facts
    )


def gate(run: AcceptanceRun, pool: str) -> StepResult:
    instance: str = run.memory[pool]
    report = json.loads(remote.there(run, instance, on_instance.gate(), "the gate's report"))
    bad = [f"{name}: {check['detail']}" for name, check in report["checks"].items() if not check["ok"]]
    if not report["ready"]:
        raise StepError(f"the gate refused {instance}: {'; '.join(bad)}")
    checks = {name: check["detail"] for name, check in report["checks"].items()}
    return StepResult("ready.json says ready", f"ready, {len(checks)} checks passed", {"checks": checks})


def keep(run: AcceptanceRun) -> StepResult:
    until = run.clock.now() + HELD_FOR
    text = until.strftime("%Y-%m-%dT%H:%M:%SZ")
    run.account.tag(run.memory[IDLE_POOL], {TAG_KEEP_UNTIL: text, TAG_KEEP_REASON: "gpu-fleet accept"})
    return StepResult("the tags are set", f"kept until {text}", {"keep_until": text})


def group_ids(run: AcceptanceRun) -> Mapping[str, list[str]]:
    outputs = run.outputs
    return cast("Mapping[str, list[str]]", outputs.get("group_ids", outputs["group_names"]))

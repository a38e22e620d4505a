"""Steps of the sweep: mark, termination, meter, logs."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from gpu_fleet_image.core.counting import counted
from gpu_fleet_image.core.model import TAG_KEEP_REASON, TAG_KEEP_UNTIL, TAG_REAP_AFTER, Instance
from gpu_fleet_stacks.acceptance.errors import StepError
from gpu_fleet_stacks.acceptance.runner import AcceptanceRun, StepResult
from gpu_fleet_stacks.acceptance.variant import IDLE_POOL

# A reading is at most one sweep period away from the truth; an instance's clock starts a little later.
METER_PERIOD_S, METER_PERCENT = 300.0, 10.0
METER = "reaper/meter.json"


def _idle_instance(run: AcceptanceRun) -> Instance:
    """Return the instance of the idle pool. Raises StepError if the cloud no longer lists it."""
    instances = [instance for instance in run.instances() if instance.id == run.memory[IDLE_POOL]]
    if not instances:
        raise StepError(f"{run.memory[IDLE_POOL]} is not there any more")
    return instances[0]


def release(run: AcceptanceRun) -> StepResult:
    instance = _idle_instance(run)
    if instance.ended:
        raise StepError(f"{instance.id} was terminated although it was kept")
    run.account.untag(instance.id, [TAG_KEEP_UNTIL, TAG_KEEP_REASON])
    return StepResult("the held instance still runs", f"{instance.id} runs; the hold is lifted")


def mark(run: AcceptanceRun) -> StepResult:
    def marked() -> str | None:
        instance = _idle_instance(run)
        if instance.ended and TAG_REAP_AFTER not in instance.tags:
            raise StepError(f"{instance.id} was terminated without a mark")
        return instance.tags.get(TAG_REAP_AFTER)

    reap_after = run.wait("the sweep's mark", marked)
    return StepResult("the tag gpu-fleet:reap-after", f"reap-after {reap_after}", {"reap_after": reap_after})


def terminate(run: AcceptanceRun) -> StepResult:
    instance: str = run.memory[IDLE_POOL]
    run.wait(f"{instance} to be terminated", lambda: _idle_instance(run).ended or None)
    run.memory["ended_at"] = run.clock.now()
    records: str = run.outputs["bucket_uris"]["records"]

    def record() -> str | None:
        keys = run.account.keys(f"{records}/reaper/ledger/")
        return next((key for key in keys if f"/{instance}-" in key and key.endswith("-terminate.json")), None)

    key = run.wait(f"the ledger's record of {instance}", record)
    written = json.loads(run.account.read(f"{records}/{key}"))
    facts = {"key": key, "record": written}
    return StepResult("terminated, with a record", f"{written['reason']}; record {key}", facts)


def _newest_meter(run: AcceptanceRun, records: str) -> str:
    """Return the URI of the meter's newest state; OSS has a key for each state, the newest first by name."""
    numbered = run.account.keys(f"{records}/{METER}.")
    return f"{records}/{min(numbered, default=METER)}"


def meter(run: AcceptanceRun) -> StepResult:
    """Compare the meter's seconds of each instance with the run's own, at the time of the meter's reading."""
    records: str = run.outputs["bucket_uris"]["records"]
    ended_at: datetime = run.memory["ended_at"]

    def reading() -> dict[str, Any] | None:
        day_reading: dict[str, Any] = json.loads(run.account.read(_newest_meter(run, records)))
        return day_reading if datetime.fromisoformat(day_reading["until"]) >= ended_at else None

    day_reading = run.wait("a reading of the meter after the termination", reading)
    until = datetime.fromisoformat(day_reading["until"])
    midnight = until.replace(hour=0, minute=0, second=0, microsecond=0)
    facts: dict[str, Any] = {"until": day_reading["until"], "month": day_reading["month"], "instances": {}}
    wrong = []
    for instance, launched in run.memory["launched"].items():
        ended = ended_at if instance == run.memory[IDLE_POOL] else until
        if instance in run.memory.get("gone", []):
            continue  # EC2 may have forgotten it; the meter holds it on the day it ran
        expected = max(0.0, (min(ended, until) - max(launched, midnight)).total_seconds())
        metered = float(day_reading["day"]["machines"].get(instance, {}).get("seconds", 0))
        facts["instances"][instance] = {"expected_s": round(expected), "metered_s": round(metered)}
        if abs(metered - expected) > METER_PERIOD_S + expected * METER_PERCENT / 100:
            wrong.append(f"{instance}: metered {metered:.0f} s, seen {expected:.0f} s")
    if wrong:
        raise StepError("; ".join(wrong))
    within = f"within {METER_PERCENT:.0f} % and a sweep's period of the hours seen"
    return StepResult(
        within, f"{counted(len(facts['instances']), 'instance')}, {day_reading['month']} this month", facts
    )


def logs(run: AcceptanceRun) -> StepResult:
    """Wait until something arrived in every log store that the cloud lists."""

    def arrived() -> Mapping[str, float] | None:
        rates = run.account.logged()
        return rates if all(rates.values()) else None

    rates = run.wait("something in every log store", arrived)
    observed = (
        ", ".join(f"{store} {most:g} bytes/s" for store, most in rates.items()) or "no store to ask for"
    )
    return StepResult("something in every log store", observed, dict(rates))

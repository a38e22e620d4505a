"""Actions of the steps of an acceptance run."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from gpu_fleet_image.core.model import TAG_KEEP_REASON, TAG_KEEP_UNTIL, TAG_REAP_AFTER
from gpu_fleet_stacks.acceptance import on_instance
from gpu_fleet_stacks.acceptance.account import CommandOutput, TestedInstance
from gpu_fleet_stacks.acceptance.errors import NotReachableError, StepError
from gpu_fleet_stacks.acceptance.on_instance import Progress, TrainerJob
from gpu_fleet_stacks.acceptance.runner import AcceptanceRun, Action, StepResult
from gpu_fleet_stacks.acceptance.variant import IDLE_POOL, SPOT_POOL
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.preflight.command import look as preflight_look
from gpu_fleet_stacks.preflight.findings import Finding, Rating

RANKS = 2
# An agent sends a heartbeat every minute; after four silent minutes the sweep counts it as unknown.
FRESH = timedelta(minutes=4)
HELD_FOR = timedelta(hours=12)
# A reading is at most one sweep period away from the truth; an instance's clock starts a little later.
METER_PERIOD_S, METER_PERCENT = 300.0, 10.0
# S3 stamps an object with its own clock.
CLOCKS_DIFFER = timedelta(seconds=30)
METER = "reaper/meter.json"
MISSING = 3  # exit code of a script of on_instance: what it prints does not exist yet
GPU_RUN_EPOCHS = 2.0
# digits.toml saves every 50 steps; the run is interrupted after the first checkpoint is committed.
STEP_KEY = re.compile(r"/step-(\d+)/manifest\.json$")
LOOK_EVERY_S = 5.0
KNOWN_AFTER_S = 1.0  # an invocation can be read a moment after its command


def actions(look: Callable[[Any], Any] = preflight_look) -> dict[str, Action]:
    """Return each step's action.

    Args:
        look: asks the cloud whether there is room; returns findings.
    """
    return {
        "preflight": lambda run: _preflight(run, look),
        "up": _up,
        "watchers": _watchers,
        "groups": _groups,
        **{f"{pool}: launch": _of_pool(_launch, pool) for pool in (IDLE_POOL, SPOT_POOL)},
        **{f"{pool}: heartbeat": _of_pool(_heartbeat, pool) for pool in (IDLE_POOL, SPOT_POOL)},
        **{f"{pool}: gate": _of_pool(_gate, pool) for pool in (IDLE_POOL, SPOT_POOL)},
        "keep": _keep,
        "trainer": _trainer,
        "train on a GPU": _train_on_gpu,
        "train two ranks": _train_two_ranks,
        "interrupt": _interrupt,
        "resume": _resume,
        "release": _release,
        "mark": _mark,
        "terminate": _terminate,
        "meter": _meter,
        "logs": _logs,
    }


def _of_pool(action: Callable[[AcceptanceRun, str], StepResult], pool: str) -> Action:
    return lambda run: action(run, pool)


def _preflight(run: AcceptanceRun, look: Callable[[Any], Any]) -> StepResult:
    findings = cast("list[Finding]", list(look(run.variant)))
    problems = [finding for finding in findings if finding.rating is Rating.PROBLEM]
    unchecked = [finding for finding in findings if finding.rating is Rating.UNCHECKED]
    if problems:
        raise StepError(
            "; ".join(f"{finding.subject}: {finding.says} {finding.remedy}".strip() for finding in problems)
        )
    observed = f"{len(findings)} questions, no problem" + (
        f", {len(unchecked)} could not be checked" if unchecked else ""
    )
    facts = {finding.subject: f"{finding.rating}: {finding.says}" for finding in findings}
    return StepResult("no question of the preflight finds a problem", observed, facts)


def _up(run: AcceptanceRun) -> StepResult:
    run.metering.began = run.clock.now()
    seconds = (run.deadline - run.clock.now()).total_seconds() if run.deadline else 0.0
    run.engine.up(seconds)
    outputs = run.engine.outputs()
    run.memory["outputs"] = outputs
    return StepResult(
        "the engine agrees, and gives outputs", f"{len(outputs)} outputs", {"outputs": sorted(outputs)}
    )


def _outputs(run: AcceptanceRun) -> dict[str, Any]:
    return cast("dict[str, Any]", run.memory["outputs"])


def _watchers(run: AcceptanceRun) -> StepResult:
    outputs = _outputs(run)
    watching = run.account.watched(str(outputs.get("topic_arn") or outputs["contact_group"]))
    kinds = run.account.watches
    missing = [kind for kind in kinds if not watching.get(kind)]
    if missing:
        raise StepError(f"the stack has no {', no '.join(missing)}")
    recipients = list(watching["recipients"])
    counts = ", ".join(f"{len(watching[kind])} {kind}" for kind in kinds)
    observed = f"{counts}; {recipients.count('pending')} of {len(recipients)} recipients have yet to confirm"
    expected = f"at least one of each: {', '.join(kinds)}"
    return StepResult(expected, observed, {kind: list(names) for kind, names in watching.items()})


def _group_ids(run: AcceptanceRun) -> Mapping[str, list[str]]:
    outputs = _outputs(run)
    return cast("Mapping[str, list[str]]", outputs.get("group_ids", outputs["group_names"]))


def _groups(run: AcceptanceRun) -> StepResult:
    """Compare the groups' settings with the requested ones; the failure lists every difference."""
    groups = _group_ids(run)
    raised = list(run.account.raise_empty(groups))
    kept = run.account.kept(groups)
    wrong = [
        f"{row.group}: {row.setting} {row.actual}, asked {row.asked}"
        for row in kept
        if row.asked != row.actual
    ]
    if wrong:
        raise StepError("; ".join(wrong))
    facts = {f"{row.group} {row.setting}": str(row.actual) for row in kept}
    observed = f"{len(kept)} settings as asked; raised by request: {', '.join(raised) or 'none'}"
    return StepResult("each setting as it was asked for", observed, facts | {"raised": raised})


def _launch(run: AcceptanceRun, pool: str) -> StepResult:
    """Wait for a running instance of the pool; the failure holds the group's own message."""
    gone = run.memory.setdefault("gone", [])

    def running() -> TestedInstance | None:
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
    groups = _group_ids(run)[pool]
    try:
        return "; ".join(run.account.why_none(str(group)) or "nothing" for group in groups)
    except CannotCheckError as error:
        return str(error)


def _heartbeat(run: AcceptanceRun, pool: str) -> StepResult:
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


def ask(run: AcceptanceRun, instance: str, script: str, poll_s: float = LOOK_EVERY_S) -> CommandOutput:
    """Run a script on an instance to its end; wait while the instance's agent has not registered."""

    def sent() -> str | None:
        try:
            return run.account.run(instance, script)
        except NotReachableError:
            return None

    command = run.wait(f"{instance} to take commands", sent)
    run.clock.sleep(KNOWN_AFTER_S)
    return run.wait(f"the answer of {instance}", lambda: run.account.said(command, instance), poll_s)


def ordered(run: AcceptanceRun, instance: str, script: str, what: str) -> CommandOutput:
    """Run a script that must succeed, as ``ask`` does.

    Raises:
        StepError: its exit code is not 0.
    """
    said = ask(run, instance, script)
    if said.code != 0:
        raise StepError(f"{what} on {instance}: exit code {said.code}: {(said.error or said.output)[-800:]}")
    return said


def _there(run: AcceptanceRun, instance: str, script: str, what: str) -> str:
    """Run the script again until its output exists; return the output."""

    def look() -> str | None:
        said = ask(run, instance, script)
        if said.code == MISSING:
            return None
        if said.code != 0:
            raise StepError(
                f"{what} on {instance}: exit code {said.code}: {(said.error or said.output)[-800:]}"
            )
        return said.output

    return run.wait(f"{what} on {instance}", look)


def _gate(run: AcceptanceRun, pool: str) -> StepResult:
    instance: str = run.memory[pool]
    report = json.loads(_there(run, instance, on_instance.gate(), "the gate's report"))
    bad = [f"{name}: {check['detail']}" for name, check in report["checks"].items() if not check["ok"]]
    if not report["ready"]:
        raise StepError(f"the gate refused {instance}: {'; '.join(bad)}")
    checks = {name: check["detail"] for name, check in report["checks"].items()}
    return StepResult("ready.json says ready", f"ready, {len(checks)} checks passed", {"checks": checks})


def _keep(run: AcceptanceRun) -> StepResult:
    until = run.clock.now() + HELD_FOR
    text = until.strftime("%Y-%m-%dT%H:%M:%SZ")
    run.account.tag(run.memory[IDLE_POOL], {TAG_KEEP_UNTIL: text, TAG_KEEP_REASON: "gpu-fleet accept"})
    return StepResult("the tags are set", f"kept until {text}", {"keep_until": text})


def _trainer(run: AcceptanceRun) -> StepResult:
    instance: str = run.memory[SPOT_POOL]
    printed = _there(run, instance, on_instance.environment(), "the trainer's environment").split()
    version, gpus = printed[-2], int(printed[-1])
    if gpus < 1:
        raise StepError(f"torch {version} on {instance} sees no GPU")
    run.memory["gpus"] = gpus
    return StepResult("torch sees a GPU", f"torch {version}, {gpus} GPUs", {"torch": version, "gpus": gpus})


def _job(run: AcceptanceRun, name: str, *, ranks: int, epochs: float, on_gpu: bool) -> TrainerJob:
    buckets: Mapping[str, str] = _outputs(run)["bucket_uris"]
    uri = f"{buckets['checkpoints']}/{SPOT_POOL}/accept/{name}"
    return TrainerJob(name, uri, ranks, epochs, on_gpu)


def _two_ranks(run: AcceptanceRun, name: str) -> TrainerJob:
    """Return a job of two ranks: on the GPUs if the instance has two, or else on its processors."""
    return _job(run, name, ranks=RANKS, epochs=run.epochs, on_gpu=run.memory["gpus"] >= RANKS)


def _started(run: AcceptanceRun, job: TrainerJob) -> None:
    instance: str = run.memory[SPOT_POOL]
    script = on_instance.start(job, on_instance.EXAMPLE.read_text(encoding="utf-8"))
    ordered(run, instance, script, f"starting {job.unit}")


def _progress(run: AcceptanceRun, job: TrainerJob) -> Progress:
    """Return the run's state; a failed unit fails the step with the end of its log."""
    instance: str = run.memory[SPOT_POOL]
    said = ordered(run, instance, on_instance.look(job), f"looking at {job.unit}")
    try:
        state = on_instance.progress(said.output)
    except (ValueError, KeyError) as error:
        raise StepError(
            f"{job.unit} on {instance}: what it printed cannot be read: {said.output!r}"
        ) from error
    if state.failed:
        log = ask(run, instance, on_instance.journal(job)).output
        raise StepError(f"{job.unit} on {instance} failed ({state.result}): {log[-1500:]}")
    return state


def _finished(run: AcceptanceRun, job: TrainerJob) -> dict[str, Any]:
    """Wait for the run's own end; return its result."""

    def over() -> dict[str, Any] | None:
        state = _progress(run, job)
        return state.outcome if state.over else None

    result = run.wait(f"the end of {job.unit}", over)
    if result["outcome"] != "finished":
        raise StepError(
            f"{job.unit} ended as {result['outcome']}: {result['reason']} {result.get('detail', '')}"
        )
    return result


def _train_on_gpu(run: AcceptanceRun) -> StepResult:
    job = _job(run, "accept-gpu", ranks=1, epochs=GPU_RUN_EPOCHS, on_gpu=True)
    _started(run, job)
    result = _finished(run, job)
    observed = f"{result['step']} steps, {result['metric_name']} {result['metric']:.4f}"
    return StepResult("the run finishes", observed, result)


def _train_two_ranks(run: AcceptanceRun) -> StepResult:
    job = _two_ranks(run, "accept-straight")
    _started(run, job)
    result = _finished(run, job)
    run.memory["straight"] = result
    where = "GPUs" if job.on_gpu else "processors"
    observed = f"{result['step']} steps on two {where}, {result['metric_name']} {result['metric']:.4f}"
    return StepResult("the run finishes", observed, result)


def _committed(run: AcceptanceRun, job: TrainerJob) -> dict[int, datetime]:
    """Return the committed steps: step -> time of its manifest."""
    steps = {STEP_KEY.search(f"/{key}"): at for key, at in run.account.keys(f"{job.checkpoint_uri}/").items()}
    return {int(match[1]): at for match, at in steps.items() if match}


def _interrupt(run: AcceptanceRun) -> StepResult:
    job = _two_ranks(run, "accept-broken")
    instance: str = run.memory[SPOT_POOL]
    _started(run, job)
    run.wait("a first checkpoint in the bucket", lambda: _committed(run, job) or None, LOOK_EVERY_S)
    asked_at = run.clock.now()
    how, by_cloud = _notice(run, instance)
    stopped = _stopped(run, job, instance)
    if by_cloud:
        run.wait(f"{instance} to be interrupted", lambda: _is_gone(run, instance) or None)
    committed = _committed(run, job)
    saved, of_steps = max(committed), run.memory["straight"]["step"]
    if saved >= of_steps:
        raise StepError(f"the run was over before the notice arrived: step {saved}")
    if stopped.get("step", saved) != saved or committed[saved] < asked_at - CLOCKS_DIFFER:
        raise StepError(f"{how}: nothing was saved after the notice; the newest step is {saved}")
    run.memory |= {"job": job, "saved": saved, "by_cloud": by_cloud}
    reason = stopped.get("reason", "the instance was gone before its result could be read")
    facts = {"how": how, "saved_step": saved, "of_steps": of_steps, "result": stopped}
    observed = f"{how}; step {saved} of {of_steps} was saved ({reason})"
    return StepResult("the step at which the run stopped is in the bucket", observed, facts)


def _stopped(run: AcceptanceRun, job: TrainerJob, instance: str) -> dict[str, Any]:
    """Wait until the run has stopped; return its result, or nothing if the instance is gone before."""

    def look() -> dict[str, Any] | None:
        if _is_gone(run, instance):
            return {}
        try:
            command = run.account.run(instance, on_instance.look(job))
        except NotReachableError:  # the instance is shutting down
            return None
        run.clock.sleep(KNOWN_AFTER_S)
        said = run.wait(
            f"the answer of {instance}", lambda: _said_or_gone(run, command, instance), LOOK_EVERY_S
        )
        try:
            state = on_instance.progress(said.output)
        except (ValueError, KeyError):  # the output was cut off with its instance
            return None
        return state.outcome if state.over else None

    return run.wait(f"{job.unit} to stop", look, LOOK_EVERY_S)


def _said_or_gone(run: AcceptanceRun, command: str, instance: str) -> CommandOutput | None:
    said = run.account.said(command, instance)
    return CommandOutput(MISSING, "") if said is None and _is_gone(run, instance) else said


def _notice(run: AcceptanceRun, instance: str) -> tuple[str, bool]:
    """Interrupt the run; return a description, and whether the cloud interrupts the instance."""
    refused = "asked for with --interrupt stop-file"
    if run.account.interrupts_spot and not run.stop_file_only:
        try:
            return run.account.interrupt(instance), True
        except CannotCheckError as error:
            refused = str(error)
    elif not run.account.interrupts_spot:
        refused = "this cloud has no way to ask for a spot interruption"
    ordered(run, instance, on_instance.ask_to_stop(), "leaving the stop file")
    run.evidence.notes.append(f"the interruption was the stop file, not the cloud's: {refused}")
    return f"stop file ({refused})", False


def _is_gone(run: AcceptanceRun, instance: str) -> bool:
    return all(known.ended for known in run.instances() if known.id == instance)


def _resume(run: AcceptanceRun) -> StepResult:
    job: TrainerJob = run.memory["job"]
    if run.memory["by_cloud"]:
        run.memory["gone"].append(run.memory[SPOT_POOL])
        _launch(run, SPOT_POOL)
        _gate(run, SPOT_POOL)
        _trainer(run)
    else:
        ordered(run, run.memory[SPOT_POOL], on_instance.forget(job), "removing the run from the disk")
    _started(run, job)
    result = _finished(run, job)
    straight: dict[str, Any] = run.memory["straight"]
    equal = result["parameters_sha256"] == straight["parameters_sha256"]
    facts = {"result": result, "instance": run.memory[SPOT_POOL], "weights_equal": equal}
    if result["resumed_from_step"] != run.memory["saved"]:
        raise StepError(f"resumed from step {result['resumed_from_step']}, saved was {run.memory['saved']}")
    if not equal and not job.on_gpu:
        raise StepError("the resumed run's weights differ from those of the undisturbed one")
    if result["metric"] != straight["metric"]:
        raise StepError(f"{result['metric_name']} {result['metric']}, undisturbed {straight['metric']}")
    weights = "weights equal, bit for bit" if equal else "equal metric, weights differ in rounding"
    observed = f"from step {result['resumed_from_step']} to {result['step']}; {weights}"
    return StepResult("the undisturbed run's result, from the saved step on", observed, facts)


def _idle_instance(run: AcceptanceRun) -> TestedInstance:
    """Return the instance of the idle pool.

    Raises:
        StepError: the cloud no longer lists it.
    """
    instances = [instance for instance in run.instances() if instance.id == run.memory[IDLE_POOL]]
    if not instances:
        raise StepError(f"{run.memory[IDLE_POOL]} is not there any more")
    return instances[0]


def _release(run: AcceptanceRun) -> StepResult:
    instance = _idle_instance(run)
    if instance.ended:
        raise StepError(f"{instance.id} was terminated although it was kept")
    run.account.untag(instance.id, [TAG_KEEP_UNTIL, TAG_KEEP_REASON])
    return StepResult("the held instance still runs", f"{instance.id} runs; the hold is lifted")


def _mark(run: AcceptanceRun) -> StepResult:
    def marked() -> str | None:
        instance = _idle_instance(run)
        if instance.ended and TAG_REAP_AFTER not in instance.tags:
            raise StepError(f"{instance.id} was terminated without a mark")
        return instance.tags.get(TAG_REAP_AFTER)

    reap_after = run.wait("the sweep's mark", marked)
    return StepResult("the tag gpu-fleet:reap-after", f"reap-after {reap_after}", {"reap_after": reap_after})


def _terminate(run: AcceptanceRun) -> StepResult:
    instance: str = run.memory[IDLE_POOL]
    run.wait(f"{instance} to be terminated", lambda: _idle_instance(run).ended or None)
    run.memory["ended_at"] = run.clock.now()
    records: str = _outputs(run)["bucket_uris"]["records"]

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


def _meter(run: AcceptanceRun) -> StepResult:
    """Compare the meter's seconds of each instance with the run's own, at the time of the meter's reading."""
    records: str = _outputs(run)["bucket_uris"]["records"]
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
        within, f"{len(facts['instances'])} instances, {day_reading['month']} this month", facts
    )


def _logs(run: AcceptanceRun) -> StepResult:
    """Wait until something arrived in every log store that the cloud lists."""

    def arrived() -> Mapping[str, float] | None:
        rates = run.account.logged()
        return rates if all(rates.values()) else None

    rates = run.wait("something in every log store", arrived)
    observed = (
        ", ".join(f"{store} {most:g} bytes/s" for store, most in rates.items()) or "no store to ask for"
    )
    return StepResult("something in every log store", observed, dict(rates))

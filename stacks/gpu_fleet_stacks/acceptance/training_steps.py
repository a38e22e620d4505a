"""Steps that train, interrupt a run and resume it."""

import re
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_stacks.acceptance import instance_steps, on_instance, remote
from gpu_fleet_stacks.acceptance.account import CommandOutput
from gpu_fleet_stacks.acceptance.errors import NotReachableError, StepError
from gpu_fleet_stacks.acceptance.on_instance import Progress, TrainerJob
from gpu_fleet_stacks.acceptance.remote import KNOWN_AFTER_S, LOOK_EVERY_S, MISSING
from gpu_fleet_stacks.acceptance.runner import AcceptanceRun, StepResult
from gpu_fleet_stacks.acceptance.variant import SPOT_POOL
from gpu_fleet_stacks.clients.errors import CannotCheckError

RANKS = 2
# S3 stamps an object with its own clock.
CLOCKS_DIFFER = timedelta(seconds=30)
GPU_RUN_EPOCHS = 2.0
# digits.toml saves every 50 steps; the run is interrupted after the first checkpoint is committed.
STEP_KEY = re.compile(r"/step-([0-9]+)/manifest\.json$")


def trainer(run: AcceptanceRun) -> StepResult:
    instance: str = run.memory[SPOT_POOL]
    printed = remote.there(run, instance, on_instance.environment(), "the trainer's environment").split()
    version, gpus = printed[-2], int(printed[-1])
    if gpus < 1:
        raise StepError(f"torch {version} on {instance} sees no GPU")
    run.memory["gpus"] = gpus
    return StepResult("torch sees a GPU", f"torch {version}, {gpus} GPUs", {"torch": version, "gpus": gpus})


def _job(run: AcceptanceRun, name: str, *, ranks: int, epochs: float, on_gpu: bool) -> TrainerJob:
    buckets = run.outputs["bucket_uris"]
    uri = f"{buckets['checkpoints']}/{SPOT_POOL}/accept/{name}"
    return TrainerJob(name, uri, ranks, epochs, on_gpu)


def _two_ranks(run: AcceptanceRun, name: str) -> TrainerJob:
    """Return a job of two ranks: on the GPUs if the instance has two, or else on its processors."""
    return _job(run, name, ranks=RANKS, epochs=run.epochs, on_gpu=run.memory["gpus"] >= RANKS)


def _started(run: AcceptanceRun, job: TrainerJob) -> None:
    instance: str = run.memory[SPOT_POOL]
    script = on_instance.start(job, on_instance.EXAMPLE.read_text(encoding="utf-8"))
    remote.ordered(run, instance, script, f"starting {job.unit}")


def _progress(run: AcceptanceRun, job: TrainerJob) -> Progress:
    """Return the run's state; a failed unit fails the step with the end of its log."""
    instance: str = run.memory[SPOT_POOL]
    said = remote.ordered(run, instance, on_instance.look(job), f"looking at {job.unit}")
    try:
        state = on_instance.progress(said.output)
    except (ValueError, KeyError) as error:
        raise StepError(
            f"{job.unit} on {instance}: what it printed cannot be read: {said.output!r}"
        ) from error
    if state.failed:
        log = remote.ask(run, instance, on_instance.journal(job)).output
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


def train_on_gpu(run: AcceptanceRun) -> StepResult:
    job = _job(run, "accept-gpu", ranks=1, epochs=GPU_RUN_EPOCHS, on_gpu=True)
    _started(run, job)
    result = _finished(run, job)
    observed = f"{result['step']} steps, {result['metric_name']} {result['metric']:.4f}"
    return StepResult("the run finishes", observed, result)


def train_two_ranks(run: AcceptanceRun) -> StepResult:
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


def interrupt(run: AcceptanceRun) -> StepResult:
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
    interruption = run.account.interruption
    if interruption is None:
        refused = "this cloud has no way to ask for a spot interruption"
    elif not run.stop_file_only:
        try:
            return interruption.interrupt(instance), True
        except CannotCheckError as error:
            refused = str(error)
    remote.ordered(run, instance, on_instance.ask_to_stop(), "leaving the stop file")
    run.evidence.notes.append(f"the interruption was the stop file, not the cloud's: {refused}")
    return f"stop file ({refused})", False


def _is_gone(run: AcceptanceRun, instance: str) -> bool:
    return all(known.ended for known in run.instances() if known.id == instance)


def resume(run: AcceptanceRun) -> StepResult:
    job: TrainerJob = run.memory["job"]
    if run.memory["by_cloud"]:
        run.memory["gone"].append(run.memory[SPOT_POOL])
        instance_steps.launch(run, SPOT_POOL)
        instance_steps.gate(run, SPOT_POOL)
        trainer(run)
    else:
        remote.ordered(run, run.memory[SPOT_POOL], on_instance.forget(job), "removing the run from the disk")
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

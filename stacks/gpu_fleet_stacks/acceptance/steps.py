"""The action of each step of an acceptance run, and the steps of the stack."""

from collections.abc import Callable
from typing import Any, cast

from gpu_fleet_stacks.acceptance import instance_steps, sweep_steps, training_steps
from gpu_fleet_stacks.acceptance.errors import StepError
from gpu_fleet_stacks.acceptance.runner import AcceptanceRun, Action, StepResult
from gpu_fleet_stacks.acceptance.variant import IDLE_POOL, SPOT_POOL
from gpu_fleet_stacks.preflight.command import look as preflight_look
from gpu_fleet_stacks.preflight.findings import Finding, Rating


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
        **{f"{pool}: launch": _of_pool(instance_steps.launch, pool) for pool in (IDLE_POOL, SPOT_POOL)},
        **{f"{pool}: heartbeat": _of_pool(instance_steps.heartbeat, pool) for pool in (IDLE_POOL, SPOT_POOL)},
        **{f"{pool}: gate": _of_pool(instance_steps.gate, pool) for pool in (IDLE_POOL, SPOT_POOL)},
        "keep": instance_steps.keep,
        "trainer": training_steps.trainer,
        "train on a GPU": training_steps.train_on_gpu,
        "train two ranks": training_steps.train_two_ranks,
        "interrupt": training_steps.interrupt,
        "resume": training_steps.resume,
        "release": sweep_steps.release,
        "mark": sweep_steps.mark,
        "terminate": sweep_steps.terminate,
        "meter": sweep_steps.meter,
        "logs": sweep_steps.logs,
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


def _watchers(run: AcceptanceRun) -> StepResult:
    outputs = run.outputs
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


def _groups(run: AcceptanceRun) -> StepResult:
    """Compare the groups' settings with the requested ones; the failure lists every difference."""
    groups = instance_steps.group_ids(run)
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

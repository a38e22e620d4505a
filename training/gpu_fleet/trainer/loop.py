"""The training loop. Read it from top to bottom."""

import logging
import math
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from itertools import islice

from torch import Tensor

from gpu_fleet.core import config, outcome
from gpu_fleet.core.errors import CorruptLimitError
from gpu_fleet.core.outcome import Outcome
from gpu_fleet.core.user_code import explained
from gpu_fleet.core.world import World
from gpu_fleet.data.loader import Batch, CorruptionCounter
from gpu_fleet.metrics.goodput import PRODUCTIVE, STALL
from gpu_fleet.metrics.meter import Meter
from gpu_fleet.metrics.profiling import marked
from gpu_fleet.metrics.records import JSON_LINES, named, read_json_lines
from gpu_fleet.models import registry
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.preemption.interrupt import Interruption, Reason
from gpu_fleet.preemption.tries import Tries
from gpu_fleet.preemption.watchdog import LOOKS_PER_LIMIT, SOONER, Watchdog, of_world
from gpu_fleet.step import optimization, precision
from gpu_fleet.step.checks import BufferCheck, check_finite, check_gradients, check_of_optimizer, look
from gpu_fleet.step.spread import mean_loss
from gpu_fleet.step.state import (
    State,
    not_finite,
    parameters_sha256,
    plain_optimizer,
    tensors_of,
    undisturbed,
    whole_weights,
)
from gpu_fleet.step.task import Task
from gpu_fleet.trainer.initial_state import fresh_state, rehearse
from gpu_fleet.trainer.prepared_run import PreparedRun, opened
from gpu_fleet.trainer.scoring import HeldOutScore, scored

MODEL_FOLDER = "model"
log = logging.getLogger(__name__)


def train(
    settings: config.Config, where: World, interruption: Interruption, tries: Tries | None = None
) -> Outcome:
    """Train from the newest checkpoint to the end or a notice, and save; raises TrainingError."""
    with opened(settings, where, lambda: interruption.reason is not Reason.NONE) as run:
        state = fresh_state(run)
        resumed_from_step = run.checkpoints.restore(state)
        where.together(run.keep_code)
        if tries is not None:
            run.checkpoints.begin_try(tries, state.step)
        limit_s, every_s = SOONER * settings.parallel.timeout_s, settings.interrupt.agree_every_s
        peers = of_world(where.rank, where.size, limit_s / LOOKS_PER_LIMIT)
        with Watchdog(where.rank, limit_s, run.directory, lambda: state.step, peers=peers) as watchdog:
            stop = Stop(where, interruption, every_s, run.checkpoints.due_by_time, watchdog.beat)
            rehearse(run, state)
            run.book.resumed_from_step = state.step
            run.book.switch(PRODUCTIVE)
            run.writer.write(run.book.record(state.step))
            if where.local_rank == 0:
                outcome.remove(run.directory, outcome.RESULT)
                outcome.note_begin(run.directory)
            try:
                stopped = train_steps(run, state, stop)
            except CorruptLimitError:  # a run with a higher limit continues from here
                watchdog.rest()
                check_weights(run, state)
                run.checkpoints.save(state)
                run.checkpoints.flush()
                raise
            watchdog.rest()
            check_weights(run, state)
            run.book.shift(STALL, run.checkpoints.save(state))
            score = None if stopped else measure(run, state, stop)
            watchdog.rest()
            if score is not None:
                run.checkpoints.check_held()
                export(run, state)
        run.book.switch(STALL)
        run.checkpoints.flush()
        run.writer.write(run.book.record(state.step))
        result = conclude(run, state, stop, score, resumed_from_step)
        run.checkpoints.conclude(result)
        if tries is not None:
            tries.end()
        text = ""
        if score and score.value is not None:
            text = f" metric_name={score.name!r} metric={score.value:.6g}"
        log.info("event=%s reason=%r step=%d%s", result.outcome, result.reason, state.step, text)
        return result


def train_steps(run: PreparedRun, state: State, stop: Stop) -> bool:
    """Run steps until the end of the run. Return whether the ranks agreed to stop before."""
    settings = run.settings
    begun_at, last_step = state.step, state.step + run.steps_left(state)
    batches = run.batches(state)
    corrupt = CorruptionCounter(settings.data.corrupt_limit)
    meter = Meter(run.where, run.share.world, corrupt, run.book, utilisation=state.utilisation)
    state.model.train()
    begin_checks(run, state)
    if state.step < last_step and stop.agreed_now():
        return True
    if evaluation_due(run, state, last_step) and not run.where.on_first(lambda: measured(run, state.step)):
        evaluate_between(run, state, stop, meter)  # an earlier try ended during it
    while state.step < last_step:
        if stop.agreed_soon():
            meter.check()  # a diverged state is not worth saving
            return True
        factor = optimization.learning_rate_factor(state.step, last_step, settings.schedule)
        rate = optimization.set_learning_rate(
            state.optimizer, state.chosen, factor, settings.optimizer.learning_rate
        )
        logged = (state.step + 1) % settings.run.log_every_steps == 0 or state.step + 1 == last_step
        run.trace.before_step(state.step + 1)
        with marked(f"step {state.step + 1}"):
            norm = take_step(run, state, batches, meter, with_norm=logged, first=state.step == begun_at)
        run.trace.after_step(state.step)
        check_attributes(run)
        if logged:
            run.writer.write(meter.report(state.step, state.position, run.epoch(state), rate, norm))
            if run.book.due():
                run.writer.write(run.book.record(state.step))
        if stop.take_save_request() or run.checkpoints.due_by_step(state.step):
            save(run, state, meter)
        if evaluation_due(run, state, last_step):
            evaluate_between(run, state, stop, meter)
    return False


def begin_checks(run: PreparedRun, state: State) -> None:
    settings = run.settings
    run.checks.append(check_of_optimizer(state.optimizer, f"optimizer.name = {settings.optimizer.name!r}"))
    if run.own.model:
        run.checks.append(BufferCheck(state.model, f"model.name = {settings.model.name!r}"))


def check_attributes(run: PreparedRun, *, saving: bool = False) -> None:
    """Name a user's state that no checkpoint holds; raises ConfigError if it could not be loaded again."""
    look(run.checks, says=run.where.leads, saving=saving)


def evaluation_due(run: PreparedRun, state: State, last_step: int) -> bool:
    """Return whether an evaluation is due after this step; False after the last one."""
    every = run.settings.run.evaluate_every_steps
    return bool(every) and 0 < state.step < last_step and state.step % every == 0


def measured(run: PreparedRun, step: int) -> bool:
    """Return whether metrics.jsonl has the score of a step; on a new disk it has none. Raises ConfigError."""
    file = run.directory / JSON_LINES
    with named("run.directory", file):
        records = read_json_lines(file)
    return any(record.get("kind") == "evaluation" and record.get("step") == step for record in records)


def evaluate_between(run: PreparedRun, state: State, stop: Stop, meter: Meter) -> None:
    """Evaluate between two steps; the time counts for neither."""
    paused_at = meter.pause()
    measure(run, state, stop)
    meter.go_on(paused_at)


def take_step(
    run: PreparedRun, state: State, batches: Iterator[Batch], meter: Meter, *, with_norm: bool, first: bool
) -> Tensor | None:
    """Take one optimizer step over all micro-batches. Return the norm of the gradients () if computed."""
    settings = run.settings
    with marked("forward and backward"):
        # not named here, so that its memory is free before the update
        loss = state.spread.accumulate(
            read_step(batches, settings.run.accumulation, meter), state.scaler.scale, mean_loss
        )
    meter.add_step(state.step + 1, loss)
    if first:
        check_gradients(state.parameters, run.where)
    norm = None
    if with_norm or settings.optimizer.clip_norm > 0:
        state.scaler.unscale_(state.optimizer)
        norm = precision.clip(state.parameters, settings.optimizer.clip_norm, state.spread.other_layers)
    if stall_s := run.checkpoints.before_change():
        meter.add_stall(stall_s)
    own = run.own.optimizer
    with marked("update"), explained(f"{own.key} = {own.name!r}") if own else nullcontext():
        state.scaler.step(state.optimizer)
        state.scaler.update()
    if own:  # it may reset more than gradients, or fewer of them
        state.optimizer.zero_grad(set_to_none=True)
    else:  # in a fifth of the time
        for parameter in state.parameters:
            parameter.grad = None
    state.step += 1
    state.position += settings.run.batch_size
    optimization.update_average(state.average, state.model, settings.average, state.step)
    if first:
        run.where.together(lambda: plain_optimizer(state, run.settings))
    return norm


def read_step(batches: Iterator[Batch], count: int, meter: Meter) -> list[Batch]:
    """Return the micro-batches of a step; measure the wait for them, and count their corrupt samples."""
    begin = meter.clock()
    with marked("data"):
        micro_batches = list(islice(batches, count))
    meter.add_batches(micro_batches, meter.clock() - begin)
    return micro_batches


def save(run: PreparedRun, state: State, meter: Meter) -> None:
    """Check loss and weights, then save a checkpoint: a diverged state must not replace a good one."""
    meter.check()
    check_weights(run, state)
    with marked("checkpoint"):
        stall_s = run.checkpoints.save(state)
    meter.add_stall(stall_s)
    run.writer.write({"kind": "checkpoint", "step": state.step, "checkpoint_stall_s": stall_s})
    run.writer.write(run.book.record(state.step))  # a try that is killed later keeps the time so far


def check_weights(run: PreparedRun, state: State) -> None:
    """Raise DivergenceError naming step and rank; a finite loss may have gradients that are not finite."""
    run.where.together(partial(check_attributes, run, saving=True))
    tensors = tensors_of(state.model)
    if state.average is not None:
        tensors |= {f"average.{name}": value for name, value in tensors_of(state.average.module).items()}
    spared = {*state.not_finite_at_start, *(f"average.{name}" for name in state.not_finite_at_start)}
    check_finite(
        run.where,
        not_finite(tensors, spared),
        f"after step {state.step}, which is not saved; a gradient was none: look for a root of 0 or a "
        "quotient 0 / 0 in the loss, or lower optimizer.learning_rate, or set optimizer.clip_norm",
    )


def measure(run: PreparedRun, state: State, stop: Stop) -> HeldOutScore | None:
    """Measure and write the score, with the buffers of rank 0; None if the ranks agreed to stop."""
    with undisturbed(state.model):
        run.where.share_buffers(state.model)
        if state.averaged is not None:
            run.settle_batch_norm(state.averaged)
            check_finite(
                run.where,
                not_finite(tensors_of(state.averaged.module), state.not_finite_at_start),
                f"in the averaged model of step {state.step}, whose batch-norm statistics are computed anew: "
                "look for samples that are not finite, or set average.batch_norm_batches = 0",
            )
        score, further = scored(run, state, stop)
    if score is not None and score.value is not None:
        run.writer.write(
            {
                "kind": "evaluation",
                "step": state.step,
                "epoch": round(run.epoch(state), 6),
                "metric_name": score.name,
                "metric": score.value,
                **({"loss": score.loss} if math.isfinite(score.loss) else {}),
                **further,
            }
        )
    return score


def export(run: PreparedRun, state: State) -> None:
    """Write the finished model into the run's folder, for model.weights of another run."""
    module = run.evaluated(state).module
    weights = whole_weights(module, run.where, state.spread.other_layers)
    kept = f"after step {state.step}: the model is not exported, its checkpoint of this step is kept"
    check_finite(run.where, not_finite(weights, state.not_finite_at_start), kept)
    if isinstance(module, Task):
        weights = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    source = run.settings.model.weights or run.settings.model.config
    model = module.model if isinstance(module, Task) else module
    run.where.on_first(lambda: registry.save(model, weights, run.directory / MODEL_FOLDER, source))


def conclude(
    run: PreparedRun, state: State, stop: Stop, score: HeldOutScore | None, resumed_from_step: int | None
) -> Outcome:
    """Return the content of result.json for this run; a score means that the run has finished."""
    return Outcome(
        outcome="stopped" if score is None else "finished",
        reason=stop.reason.label if score is None else "all steps done",
        detail=stop.detail() if score is None else "",
        step=state.step,
        epoch=round(run.epoch(state), 6),
        parameters_sha256=parameters_sha256(state.model, run.where),
        resumed_from_step=resumed_from_step,
        checkpoint=run.checkpoints.location,
        metric_name=score.name if score else "",
        metric=score.value if score else None,
        baseline_name=run.description.baseline_name,
        baseline=run.description.baseline,
        left_out=run.left_out.table(),
    )

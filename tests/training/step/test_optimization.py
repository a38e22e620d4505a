"""From gradients to weights: the rate of every step, averages, number formats, memory."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from gpu_fleet.checkpoint import names
from gpu_fleet.core import config
from gpu_fleet.core.containers import read_state
from gpu_fleet.core.errors import ModelError
from gpu_fleet.metrics.records import read_json_lines
from gpu_fleet.models import definitions, registry
from gpu_fleet.preemption.agreement import Stop
from gpu_fleet.step import optimization, precision
from gpu_fleet.step.state import State
from gpu_fleet.trainer import loop
from gpu_fleet.trainer.prepared_run import PreparedRun
from tests.training.examples import (
    changed,
    few_digits,
    gpt_table,
    losses,
    resnet_table,
    train_rank,
)
from tests.training.ranks import run_ranks

STEPS = 1000


@pytest.fixture(scope="module")
def pictures(digits, tmp_path_factory) -> Path:
    return few_digits(digits, tmp_path_factory.mktemp("few"), count=128)


def factor(step: int, **schedule: Any) -> float:
    return optimization.learning_rate_factor(step, STEPS, config.Schedule(**schedule))


@given(
    name=st.sampled_from(["constant", "cosine", "linear", "step"]),
    warmup=st.integers(0, 500),
    final=st.floats(0, 1),
    step=st.integers(0, STEPS),
)
def test_a_rate_never_leaves_its_bounds(name: Any, warmup: int, final: float, step: int) -> None:
    falls = {"final_fraction": final} if name in ("cosine", "linear") else {}
    assert 0 <= factor(step, name=name, warmup_steps=warmup, **falls) <= 1


RATES: list[tuple[dict[str, Any], dict[int, float]]] = [
    ({"name": "constant"}, {0: 1, 999: 1}),
    ({"name": "constant", "warmup_steps": 4}, {0: 0.25, 1: 0.5, 3: 1, 4: 1}),
    ({"name": "linear", "final_fraction": 0.2}, {0: 1, 500: 0.6, 1000: 0.2}),
    ({"name": "cosine"}, {0: 1, 500: 0.5, 1000: 0}),
    ({"name": "cosine", "warmup_steps": 100, "final_fraction": 0.1}, {99: 1, 100: 1, 550: 0.55, 1000: 0.1}),
    ({"name": "step", "step_every": 300, "step_factor": 0.1}, {299: 1, 300: 0.1, 600: 0.01}),
]


def test_the_rate_of_chosen_steps():
    for schedule, expected in RATES:
        assert {step: factor(step, **schedule) for step in expected} == pytest.approx(expected), schedule


def test_weight_decay_spares_biases_and_norms_and_momentum_may_be_none():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    decayed, spared = optimization.build_optimizer(model, config.Optimizer()).param_groups

    assert [tuple(p.shape) for p in decayed["params"]] == [(4, 4)]
    assert decayed["weight_decay"] > spared["weight_decay"] == 0
    assert len(spared["params"]) == 3
    plain = config.Optimizer(name="sgd", momentum=0.0)
    assert optimization.build_optimizer(model, plain).param_groups[0]["momentum"] == 0


@pytest.mark.parametrize(
    ("settings", "values", "expected"),
    [
        (config.Average(name="ema", decay=0.9), (1.0, 2.0), 0.9 * 1 + 0.1 * 2),  # it begins with the first
        (config.Average(name="swa", start_step=2), (100.0, 1.0, 2.0, 6.0), 3.0),
    ],
    ids=["exponential", "stochastic"],
)
def test_an_average_follows_the_weights_from_its_first_step_on(settings, values, expected):
    model = nn.Linear(1, 1, bias=False)
    average = optimization.build_average(model, settings)

    for step, value in enumerate(values, 1):
        nn.init.constant_(model.weight, value)
        optimization.update_average(average, model, settings, step)

    assert average.module.weight.item() == pytest.approx(expected)


def test_averaged_weights_are_measured_with_batch_norm_of_their_own(pictures, tmp_path):
    table = changed(
        resnet_table(pictures, tmp_path, steps=40),
        run={"batch_size": 32, "accumulation": 1},
        model={"options": {"widths": [8, 16]}},
        data={"augmentation": "none"},
        optimizer={"learning_rate": 0.05},
    )
    swa = {"name": "swa", "start_step": 20, "batch_norm_batches": 4}

    plain = train_rank(changed(table, run={"directory": str(tmp_path / "plain")}))
    averaged = train_rank(changed(table, run={"directory": str(tmp_path / "averaged")}, average=swa))

    assert averaged["parameters_sha256"] == plain["parameters_sha256"]  # averaging disturbs no step
    assert evaluated(tmp_path / "averaged") != evaluated(tmp_path / "plain")
    assert averaged["metric"] > 0.9  # with the statistics of other weights it would be chance: 0.1


def test_weights_are_measured_as_they_are_until_an_average_begins(pictures: Path, tmp_path: Path) -> None:
    table = changed(resnet_table(pictures, tmp_path, steps=4), run={"evaluate_every_steps": 2})
    late = {"name": "swa", "start_step": 4}

    train_rank(changed(table, run={"directory": str(tmp_path / "plain")}))
    train_rank(changed(table, run={"directory": str(tmp_path / "averaged")}, average=late))

    assert evaluated(tmp_path / "averaged")[0] == evaluated(tmp_path / "plain")[0]


def largest_batch(table: dict[str, Any]) -> tuple[int, str]:
    """Train on this rank; return the largest batch of the model, and the hash of the buffers."""
    sizes, buffers = [], []

    scored = loop.scored

    def noted(run: PreparedRun, state: State, stop: Stop) -> Any:
        buffers.append([value.clone() for value in run.evaluated(state).module.buffers()])
        return scored(run, state, stop)

    def noting(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        sizes.append(len(inputs[0]))

    loop.scored = noted
    with nn.modules.module.register_module_forward_pre_hook(noting):
        train_rank(table)
    content = b"".join(value.numpy().tobytes() for value in buffers[0])
    return max(sizes), sha256(content).hexdigest()


@pytest.mark.parametrize("batch_norm_batches", [0, 3])
def test_an_average_needs_no_larger_batch_than_a_step_and_is_the_same_on_all_ranks(
    batch_norm_batches, pictures, tmp_path
):
    average = {"name": "ema", "batch_norm_batches": batch_norm_batches}
    run = {"batch_size": 64, "accumulation": 2}
    table = changed(resnet_table(pictures, tmp_path, steps=1), average=average, run=run)

    rank_0, other = run_ranks(largest_batch, 2, table)

    assert rank_0 == other
    assert rank_0[0] == 64 / (2 * 2)


def evaluated(directory: Path) -> list[float]:
    """Return the losses on the held-out data."""
    records = read_json_lines(directory / "metrics.jsonl")
    return [float(record["loss"]) for record in records if record["kind"] == "evaluation"]


def test_clipping_scales_all_gradients_to_the_limit_and_a_limit_of_zero_only_measures():
    model = nn.Linear(2, 1)
    model.weight.grad, model.bias.grad = torch.tensor([[3.0, 0.0]]), torch.tensor([4.0])

    assert precision.clip(list(model.parameters()), limit=0.0).item() == pytest.approx(5.0)
    assert model.bias.grad.item() == 4.0
    assert precision.clip(list(model.parameters()), limit=1.0).item() == pytest.approx(5.0)

    assert model.weight.grad.tolist() == [[pytest.approx(0.6), 0.0]]
    assert model.bias.grad.tolist() == [pytest.approx(0.8)]


@pytest.mark.parametrize(
    ("saving", "tolerance"),
    [
        ({"run": {"accumulation": 4}}, 2e-5),
        ({"precision": {"activation_checkpointing": True}}, 1e-6),
        ({"precision": {"dtype": "tf32"}}, 1e-6),  # no effect on a CPU, and no error
        ({"precision": {"dtype": "bf16"}}, 0.02),  # 8 bits of mantissa
        ({"precision": {"dtype": "fp16"}}, 0.005),  # 11 bits
    ],
    ids=["accumulation", "activation checkpointing", "tf32", "bf16", "fp16"],
)
def test_memory_savings_learn_the_same(saving, tolerance, tokens, tmp_path):
    table = changed(gpt_table(tokens, tmp_path / "plain"), run={"accumulation": 1})

    train_rank(table)
    train_rank(changed(changed(table, **saving), run={"directory": str(tmp_path / "saving")}))

    assert losses(tmp_path / "saving") == pytest.approx(losses(tmp_path / "plain"), rel=tolerance)


def test_the_scale_of_fp16_resumes_where_it_was(tokens, tmp_path):
    table = changed(gpt_table(tokens, tmp_path), precision={"dtype": "fp16"})

    train_rank(table, stop_at=3)
    train_rank(table)

    saved = read_state(tmp_path / "checkpoints/step-6" / names.STATE)
    assert saved["scaler"]["_growth_tracker"] == 6  # steps since its last change, on both sides of the stop


def test_channels_last_learns_the_same(pictures, tmp_path):
    table = changed(resnet_table(pictures, tmp_path / "plain", steps=4), model={"options": {"widths": [8]}})
    last = changed(table, run={"directory": str(tmp_path / "last")}, precision={"channels_last": True})

    train_rank(table)
    train_rank(last)

    assert losses(tmp_path / "last") == pytest.approx(losses(tmp_path / "plain"), rel=1e-4)


def test_a_finished_model_is_where_another_run_starts(tokens, tmp_path):
    table = gpt_table(tokens, tmp_path / "first", steps=20)
    first = train_rank(table)
    again = changed(
        table,
        run={"directory": str(tmp_path / "second"), "steps": 1},
        model={"weights": str(tmp_path / "first/model")},
        optimizer={"learning_rate": 1e-9},
    )

    second = train_rank(again)

    assert second["metric"] == pytest.approx(first["metric"], rel=1e-3)


def test_weights_of_another_shape_are_refused_by_name(tokens, tmp_path):
    save_file({"network.lm_head.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    small = {"hidden_size": 8, "layers": 1, "heads": 1, "intermediate_size": 8}

    with pytest.raises(ModelError, match="does not fit the model"):
        registry.build(
            "gpt", small, definitions.Facts(vocabulary=4, sequence_length=4), "tokens", str(tmp_path)
        )


def test_every_model_gives_logits():
    sizes = {"hidden_size": 8, "layers": 1, "heads": 2}
    pixels, ids = torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.tensor([[3, 4, 0]])
    for name, options, inputs, shape in [
        ("resnet50", {}, pixels, (2, 5)),
        ("resnet_small", {"widths": [4, 8]}, pixels, (2, 5)),
        ("bert", {**sizes, "intermediate_size": 8}, ids, (1, 5)),
        ("gpt", {**sizes, "intermediate_size": 8}, ids, (1, 3, 11)),
        ("gpt2", sizes, ids, (1, 3, 11)),
    ]:
        facts = definitions.Facts(classes=5, vocabulary=11, sequence_length=3)
        model = registry.build(name, options, facts, registry.REGISTRY[name].data[0]).eval()

        with torch.no_grad():
            assert tuple(model(inputs).shape) == shape, name
        assert registry.blocks(model, name), name


def test_bert_takes_no_notice_of_padding():
    options = {"hidden_size": 8, "layers": 1, "heads": 2, "intermediate_size": 8}
    model = registry.build("bert", options, definitions.Facts(classes=2, vocabulary=9), "text").eval()

    with torch.no_grad():
        short, padded = model(torch.tensor([[3, 4]])), model(torch.tensor([[3, 4, 0, 0]]))

    assert torch.allclose(short, padded, atol=1e-6)


def test_the_defaults_are_the_published_models():
    with torch.device("meta"):
        facts = definitions.Facts(classes=1000, vocabulary=50257, sequence_length=1024)
        counts = {
            name: sum(p.numel() for p in registry.REGISTRY[name].build(facts).parameters())
            for name in ("resnet50", "gpt2")
        }

    # He et al., 2015 by torchvision: 25,557,032; GPT-2 small by Radford et al.: 124,439,808
    assert counts == {"resnet50": 25_557_032, "gpt2": 124_439_808}


def test_cudnn_tries_its_algorithms_when_asked(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    for asked in (True, False):
        precision.set_matrix_format(config.Precision(cudnn_benchmark=asked))
        assert torch.backends.cudnn.benchmark is asked

"""The ready configurations are valid for eight GPUs, have a model that can be built, and are documented."""

from typing import Any

import pytest
import torch
from transformers import BertConfig, LlamaConfig

from gpu_fleet.core import config
from gpu_fleet.core.world import check_sizes
from gpu_fleet.models import pretrained, registry
from gpu_fleet.models.definitions import Facts
from tests.training.programs import ROOT

EXAMPLES = ROOT / "training/examples"
TINY: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
# name: the kind of its data, its classes, its token ids, and for a published model one like it
READY: dict[str, tuple[str, int, int, Any]] = {
    "cifar10": ("images", 10, 0, None),
    "imagenet_resnet50": ("shards", 1000, 0, None),
    "bert_finetune": ("text", 2, 9, BertConfig(**TINY, intermediate_size=8)),
    "gpt2_124m": ("tokens", 0, 50257, None),
    "llama_finetune": ("tokens", 0, 9, LlamaConfig(**TINY, intermediate_size=8)),
}
PARAMETERS = {"cifar10": 272_000, "imagenet_resnet50": 25_557_032, "gpt2_124m": 124_439_808}


@pytest.mark.parametrize("name", READY)
def test_a_ready_configuration_is_valid_and_explained(name):
    settings = config.load(EXAMPLES / f"{name}.toml")

    assert check_sizes(settings, 8) == 8
    assert settings.schedule.warmup_steps > 0
    assert f"`{name}.toml`" in (ROOT / "docs/how-to/prepare-data.md").read_text()


@pytest.mark.parametrize("name", READY)
def test_the_model_of_a_ready_configuration_can_be_built_for_its_data(name, tmp_path):
    kind, classes, vocabulary, published = READY[name]
    chosen, facts = config.load(EXAMPLES / f"{name}.toml").model, Facts(classes, vocabulary, 16)
    if published is not None:
        published.save_pretrained(tmp_path)
        assert pretrained.build(chosen.name, chosen.options, facts, kind, weights=str(tmp_path), config="")
        return
    with torch.device("meta"):
        sized = Facts(classes, vocabulary, 1024)
        model = registry.build(chosen.name, chosen.options, sized, kind, chosen.weights)

    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(PARAMETERS[name], rel=0.01)

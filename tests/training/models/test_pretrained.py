"""Models of transformers from a folder: trained on two ranks, resumed, read again by `from_pretrained`."""

import json
import os
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate
from transformers import (
    BertConfig,
    BertForPreTraining,
    CLIPConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    OPTConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    RobertaConfig,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
)
from transformers.models.efficientnet.image_processing_pil_efficientnet import EfficientNetImageProcessorPil
from transformers.models.mobilevit.image_processing_pil_mobilevit import MobileViTImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from gpu_fleet.core import config
from gpu_fleet.core.errors import DataError, ModelError
from gpu_fleet.core.world import world
from gpu_fleet.data import own_data
from gpu_fleet.data.dataset import Description, write_description
from gpu_fleet.data.order import SampleOrder
from gpu_fleet.models import pretrained, registry, weights
from gpu_fleet.models.definitions import Facts
from gpu_fleet.step import spread
from gpu_fleet.step.state import parameters_sha256
from tests.training.commands import refused
from tests.training.examples import (
    VOCABULARY,
    changed,
    few_digits,
    gpt_table,
    interrupted,
    losses,
    train_on,
)
from tests.training.proofs import by_proof
from tests.training.ranks import run_ranks

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
DECODER = {**TINY, "vocab_size": VOCABULARY, "max_position_embeddings": 64}


UNTRAINED = {"weights": "", "config": "published"}  # a model of the folder's config.json alone


def seeded(model: type[PreTrainedModel], settings: Any) -> PreTrainedModel:
    torch.manual_seed(5)
    return model(settings)


def qwen(folder: Path) -> None:
    """Save a model with grouped heads and tied embeddings, in several files."""
    settings = Qwen2Config(**DECODER, num_key_value_heads=2, tie_word_embeddings=True)
    seeded(Qwen2ForCausalLM, settings).save_pretrained(folder, max_shard_size="20KB")


def tied_llama(folder: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500_000.0}
    settings = LlamaConfig(**DECODER, tie_word_embeddings=True, rms_norm_eps=1e-5, rope_parameters=rope)
    seeded(LlamaForCausalLM, settings).save_pretrained(folder)


def gpt2(folder: Path) -> None:
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    seeded(GPT2LMHeadModel, GPT2Config(vocab_size=VOCABULARY, **sizes)).save_pretrained(folder)


def published_bert(folder: Path) -> None:
    """Save a BERT in the layout of the first published one: names with `bert.`, norms with gamma and beta."""
    model = seeded(BertForPreTraining, BertConfig(**TINY, vocab_size=VOCABULARY, num_labels=2))
    model.save_pretrained(folder)
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    assert any(name.startswith("bert.") and name.endswith("gamma") for name in renamed)
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text("{}")


def vit(folder: Path) -> None:
    settings = ViTConfig(**TINY, image_size=8, patch_size=4, num_labels=3)
    seeded(ViTForImageClassification, settings).save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": half, "image_std": half}))


@pytest.fixture(scope="module")
def sentences(tmp_path_factory) -> Path:
    """Write texts of two classes, which differ in one token; id 0 pads."""
    folder, chance = tmp_path_factory.mktemp("sentences"), np.random.default_rng(3)
    for split in ("train", "val"):
        (folder / split).mkdir()
        classes = np.arange(64) % 2
        ids = chance.integers(3, VOCABULARY, (64, 9))
        ids[:, 4] = classes + 1
        ids.astype("<u2").tofile(folder / split / "tokens.bin")
        np.save(folder / split / "starts.npy", np.arange(65, dtype=np.int64) * 9)
        np.save(folder / split / "classes.npy", classes.astype(np.int64))
    write_description(folder, Description("text", ("cold", "warm"), VOCABULARY))
    return folder


CAUSAL, TEXTS, PICTURES = (
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoModelForImageClassification",
)
MODELS = {
    "qwen": (qwen, CAUSAL),
    "tied llama": (tied_llama, CAUSAL),
    "gpt2": (gpt2, CAUSAL),
    "published bert": (published_bert, TEXTS),
    "vit": (vit, PICTURES),
}

# each rank draws its own
WITHOUT_DROPOUT = {
    "gpt2": {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    "published bert": {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0},
}


@pytest.fixture
def table(tokens, sentences, digits, tmp_path) -> Any:
    """Return a function that makes a published model of MODELS and the configuration of a run with it."""

    def made(model: str, run: str = "run", strategy: str = "ddp", steps: int = 4) -> dict[str, Any]:
        write, name = MODELS[model]
        folder = tmp_path / "published"
        if not folder.exists():
            write(folder)
        pictures = tmp_path / "digits"
        if name == PICTURES and not pictures.exists():
            few_digits(digits, pictures, 64)
        data = {CAUSAL: tokens, TEXTS: sentences, PICTURES: pictures}[name]
        parallel = {"strategy": strategy, "tensor": 2 if strategy == "tensor" else 1}
        found = changed(gpt_table(data, tmp_path / run, steps), parallel=parallel)
        return {**found, "model": {"name": name, "weights": str(folder)}}

    return made


def opened(folder: Path, name: str, kind: str) -> nn.Module:
    """Build and fill a folder's model as the trainer does."""
    facts = Facts(2 if kind == "text" else 10, VOCABULARY, 16)
    model = pretrained.build(name, {}, facts, kind, weights=str(folder), config="")
    weights.fill(model, str(folder), torch.device("cpu"), seed=0)
    return model.eval()


def of_transformers(folder: Path, name: str) -> Any:
    return getattr(transformers, name).from_pretrained(folder, local_files_only=True).eval()


def logits_of_transformers(folder: Path, name: str) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = of_transformers(folder, name)(INPUTS[name]).logits
    return logits


INPUTS = {
    CAUSAL: torch.arange(16).view(2, 8),
    TEXTS: torch.arange(1, 17).view(2, 8),
    PICTURES: torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8),
}
KINDS = {CAUSAL: "tokens", TEXTS: "text", PICTURES: "images"}


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("qwen", "ddp"),
        *by_proof(("published bert", "ddp"), ("vit", "ddp"), ("gpt2", "fsdp"), ("qwen", "fsdp")),
        *by_proof(("published bert", "fsdp"), ("qwen", "tensor")),
        ("tied llama", "tensor"),
    ],
)
def test_a_published_model_is_trained_resumed_and_read_again(model, strategy, table, tmp_path):
    name = MODELS[model][1]
    resumed = interrupted(2, lambda run: table(model, run, strategy), stop_at=2)

    exported = tmp_path / "broken/model"
    mine = opened(exported, name, KINDS[name])
    with world(config.Parallel()) as where:
        assert parameters_sha256(mine, where) == resumed["parameters_sha256"]
    with torch.no_grad():
        logits = pretrained.network_of(mine)(INPUTS[name]).logits  # type: ignore[misc]  # there is one
    assert torch.equal(logits, logits_of_transformers(exported, name))


@pytest.mark.parametrize("model", MODELS)
def test_a_published_model_begins_with_its_own_logits(model, table, tmp_path):
    table(model)
    folder, name = tmp_path / "published", MODELS[model][1]
    mine = pretrained.network_of(opened(folder, name, "own"))
    assert mine is not None

    with torch.no_grad():
        features = mine.base_model(INPUTS[name])[0]
        expected = of_transformers(folder, name).base_model(INPUTS[name])[0]

    assert torch.equal(features, expected)


SIZES = {"hidden_size": 32, "layers": 2, "heads": 4, "intermediate_size": 64}
LLAMA_3 = {**SIZES, "rope_theta": 500_000.0, "norm_eps": 1e-5}


@pytest.fixture
def llama_3(tmp_path) -> Path:
    """Save a decoder with the rotation and the norms of Llama 3."""
    rope = {"rope_type": "default", "rope_theta": LLAMA_3["rope_theta"]}
    settings = LlamaConfig(
        **DECODER, tie_word_embeddings=False, rms_norm_eps=LLAMA_3["norm_eps"], rope_parameters=rope
    )
    seeded(LlamaForCausalLM, settings).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_published_weights_compute_in_the_decoder_what_they_were_published_with_or_are_refused(llama_3):
    def decoder(**options: Any) -> nn.Module:
        facts = Facts(0, VOCABULARY, 64)
        return registry.build("gpt", {**LLAMA_3, **options}, facts, "tokens", str(llama_3)).eval()

    with torch.no_grad():
        assert torch.equal(decoder()(INPUTS[CAUSAL]), logits_of_transformers(llama_3, CAUSAL))
    for option, message in {
        ("rope_theta", 10_000.0): "'rope_theta': 500000.0, 'rope_type': 'default'} -> ",
        ("norm_eps", 1e-6): "rms_norm_eps 1e-05 -> 1e-06",
        ("heads", 2): "num_attention_heads 4 -> 2",
    }.items():  # their shapes alone fit
        with pytest.raises(ModelError, match=re.escape(message)):
            decoder(**dict([option]))


@pytest.mark.parametrize(
    ("model", "strategy", "ranks"),
    [
        *by_proof(("gpt2", "fsdp", 2), ("published bert", "fsdp", 2)),
        ("vit", "fsdp", 2),
        *by_proof(("tied llama", "tensor", 2), ("qwen", "tensor", 4)),
    ],
)
def test_a_model_that_is_spread_learns_what_one_rank_learns(model, strategy, ranks, table, tmp_path):
    """Four ranks hold heads and columns of two, and each a part of those (FSDP2)."""
    without_chance = {"options": WITHOUT_DROPOUT.get(model, {})}
    train_on(1, changed(table(model, "alone"), model=without_chance))
    train_on(ranks, changed(table(model, "spread", strategy), model=without_chance))

    assert losses(tmp_path / "spread") == pytest.approx(losses(tmp_path / "alone"), rel=2e-5)


@pytest.mark.parametrize("strategy", ["tensor", *by_proof(("ddp",), ("fsdp",))])
def test_random_weights_are_the_same_on_any_number_of_ranks(strategy, table, tmp_path):
    def without_weights(run: str, strategy: str) -> dict[str, Any]:
        found = table("qwen", run, strategy, steps=1)
        (tmp_path / "published/model.safetensors.index.json").unlink(missing_ok=True)
        found["model"] = {"name": CAUSAL, "config": str(tmp_path / "published")}
        return changed(found, optimizer={"learning_rate": 1e-12})

    train_on(1, without_weights("alone", "ddp"))
    train_on(2, without_weights("spread", strategy))

    alone, spread = (load_file(tmp_path / run / "model/model.safetensors") for run in ("alone", "spread"))
    assert all(torch.allclose(alone[name], spread[name], atol=1e-10) for name in alone)
    first, second = (alone[f"model.layers.{layer}.mlp.up_proj.weight"] for layer in (0, 1))
    assert first.std().item() == pytest.approx(0.02, rel=0.1)  # initializer_range of Qwen2
    assert not torch.equal(first, second)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (ViTImageProcessorPil, {"do_normalize": False}),
        (ViTImageProcessorPil, {"do_rescale": False}),
        (ViTImageProcessorPil, {"do_rescale": False, "do_normalize": False}),
        (ViTImageProcessorPil, {"rescale_factor": 1 / 127.5}),
        (EfficientNetImageProcessorPil, {"rescale_factor": 1 / 127.5, "rescale_offset": True}),
        (EfficientNetImageProcessorPil, {"include_top": False}),
        (MobileViTImageProcessorPil, {}),
    ],
    ids=str,
)
def test_pictures_are_normalised_as_the_processor_of_a_model_does(family, said, tmp_path):
    processor = family(**said, do_resize=False, do_center_crop=False)
    processor.save_pretrained(tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (3, 6, 5)).astype(np.uint8)

    expected = processor(picture, input_data_format="channels_first", return_tensors="pt")["pixel_values"]

    mine = pretrained._pixels(tmp_path)(torch.from_numpy(picture)[None])
    assert torch.allclose(mine, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("said", [{"image_mean": [0.5]}, {"image_std": ["a"] * 3}, {"rescale_factor": 0}, []])
def test_a_processor_that_says_nothing_sensible_is_one_message(said, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))

    with pytest.raises(ModelError, match=r"preprocessor_config\.json: cannot be read"):
        pretrained._pixels(tmp_path)


SPEECH = Wav2Vec2Config(
    **TINY,
    conv_dim=(16, 16),
    conv_stride=(5, 2),
    conv_kernel=(10, 3),
    num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4,
    codevector_dim=16,
    proj_codevector_dim=16,
)
SIDE = {**TINY, "projection_dim": 16}
TWO_SIDES = CLIPConfig(
    text_config={**SIDE, "vocab_size": VOCABULARY},
    vision_config={**SIDE, "image_size": 16, "patch_size": 4},
    projection_dim=16,
)


def written(tensor: torch.Tensor, garbage: float) -> torch.Tensor:
    """Fill a tensor with `garbage`; on the meta device there is no memory to fill."""
    return tensor if tensor.is_meta else tensor.detach().fill_(garbage)


def drawn_anew(family: str, settings: Any, folder: Path, empty: Any = torch.empty) -> nn.Module:
    settings.save_pretrained(folder)
    model = pretrained.build(family, {}, Facts(), "own", weights="", config=str(folder))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "empty", empty)
        weights.fill(model, "", torch.device("cpu"), seed=3)
    return model


@pytest.mark.parametrize(
    ("family", "settings"),
    [("AutoModelForPreTraining", SPEECH), ("AutoModelForCTC", SPEECH), ("AutoModel", TWO_SIDES)],
    ids=["pretraining", "speech", "clip"],
)
def test_weights_that_are_drawn_anew_depend_on_the_seed_alone(family, settings, tmp_path):
    """Some values used to be left-over memory, which differs each time here."""
    empty = torch.empty
    first, second = (
        drawn_anew(
            family, settings, tmp_path, lambda *shape, g=garbage, **how: written(empty(*shape, **how), g)
        ).state_dict()
        for garbage in (1234.5, -7.0)
    )

    assert all(tensor.isfinite().all() for tensor in first.values())
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_a_scale_that_is_a_constant_begins_with_it_and_a_tensor_without_a_value_is_named(
    tmp_path, monkeypatch
):
    def without(network: Any, seed: int) -> nn.Module:
        made: nn.Module = type(network)._from_config(network.config)
        made.logit_scale = nn.Parameter(torch.tensor(torch.nan))
        return made

    assert drawn_anew("AutoModel", TWO_SIDES, tmp_path).logit_scale.item() == pytest.approx(2.6592)
    monkeypatch.setattr(weights, "_constructed", without)
    with pytest.raises(ModelError, match="CLIPModel: transformers gives logit_scale no initial value"):
        drawn_anew("AutoModel", TWO_SIDES, tmp_path)


def test_an_export_has_the_tokenizer_and_names_the_classes(table, tmp_path):
    train_on(1, table("published bert", steps=1))

    settings = json.loads((tmp_path / "run/model/config.json").read_text())
    assert (tmp_path / "run/model/tokenizer.json").read_text() == "{}"
    assert settings["id2label"] == {"0": "cold", "1": "warm"}
    assert settings["architectures"] == ["BertForSequenceClassification"]


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("qwen", {"weights": ""}, "set one of model.weights (now '')"),
        ("qwen", {"weights": "/nowhere"}, "/nowhere/config.json is missing"),
        ("qwen", {"name": "AutoModelForCausalML"}, "is tokens, which AutoModelForCausalLM takes"),
        ("qwen", {"options": {"hidden_sise": 3}}, "unknown for qwen2; did you mean hidden_size?"),
        ("qwen", {"options": {"vocab_size": 8}}, "knows 8 token ids, the data 32"),
        (
            "qwen",
            {"options": {"num_hidden_layers": 3}},
            "cannot be built of qwen2's config.json and model.opt",
        ),
        ("qwen", {"options": {"intermediate_size": 32}}, "are missing there or have another shape"),
        (
            "gpt2",
            UNTRAINED | {"options": {"n_positions": 8}},
            "data.sequence_length = 16: gpt2 of {} has a table of 8 positions: 1 to 8 are allowed",
        ),
        ("vit", UNTRAINED | {"options": {"image_size": 16}}, "Classification': ValueError: Input image size"),
    ],
    ids=str,
)
def test_a_folder_that_does_not_fit_is_one_message(name, model, message, table, tmp_path):
    if "config" in model:
        model = model | {"config": str(tmp_path / "published")}

    assert message.format(tmp_path / "published") in refused(changed(table(name), model=model), tmp_path)


def test_a_model_without_a_plan_is_not_cut(table, tmp_path):
    found = changed(table("published bert"), parallel={"strategy": "tensor", "tensor": 1})

    assert "has no tp_plan for BertForSequenceClassification" in refused(found, tmp_path)


def test_a_folder_with_code_of_its_own_is_refused_by_its_files_without_a_question(tmp_path, monkeypatch):
    """With a terminal, transformers would ask for 15 seconds whether to run the code."""
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text="": asked.append(text) or "n")
    own = {"model_type": "mine", "auto_map": {"AutoConfig": "configuration_mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    (tmp_path / "configuration_mine.py").write_text("raise SystemExit\n")

    with pytest.raises(ModelError, match=r"code of its own \(configuration_mine.py\), which is not run"):
        pretrained.build("AutoModel", {}, Facts(), "own", weights="", config=str(tmp_path))
    assert asked == []


TABLES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": VOCABULARY}


@pytest.mark.parametrize(
    ("family", "settings", "positions"),
    [
        ("AutoModelForMaskedLM", BertConfig(**TABLES, max_position_embeddings=8), 8),
        ("AutoModelForMaskedLM", RobertaConfig(**TABLES, max_position_embeddings=10, pad_token_id=1), 8),
        ("AutoModelForCausalLM", GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_head=4, n_positions=8), 8),
        (
            "AutoModelForCausalLM",
            OPTConfig(**TABLES, ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=8),
            8,
        ),
        ("AutoModelForCausalLM", LlamaConfig(**{**DECODER, "max_position_embeddings": 8}), 0),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_a_model_takes_as_many_tokens_as_its_table_has_positions(family, settings, positions, tmp_path):
    settings.save_pretrained(tmp_path)
    model = pretrained.build(family, {}, Facts(), "own", weights="", config=str(tmp_path))
    weights.fill(model, "", torch.device("cpu"), seed=0)
    limits = pretrained.limits_of(model)

    assert (limits.vocabulary, limits.positions) == (VOCABULARY, positions)
    model(input_ids=torch.full((1, positions or 20), 3))
    if positions:
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, positions + 1), 3))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, VOCABULARY]], f"input_ids = {VOCABULARY}: the model has {VOCABULARY} token ids: 0 to 31 are"),
        ([[1, -3]], "input_ids = -3: the model has"),
        ([[1] * 65], "has 65 tokens in a row, the model a table of 64 positions: 1 to 64 are allowed"),
    ],
    ids=str,
)
def test_columns_beyond_the_tables_of_a_model_are_named(ids, message, tmp_path):
    gpt2(tmp_path)
    model = pretrained.build(CAUSAL, {}, Facts(), "own", weights=str(tmp_path), config="")
    rows = own_data.OwnData([{"input_ids": torch.tensor(row)} for row in ids], "rows", default_collate)
    reader = own_data.OwnReader(rows, seed=0, check=pretrained.limits_of(model).check)

    with pytest.raises(DataError, match=f"rows: .*{message}"):
        reader[SampleOrder(1, seed=0).slice(0, 1)]


def test_a_model_that_cannot_be_cut_is_one_message(tokens, tmp_path):
    """Mamba passes the weights of its layers to one function."""
    folder = str(tmp_path / "mamba")
    MambaConfig(hidden_size=32, num_hidden_layers=1, vocab_size=VOCABULARY, state_size=8).save_pretrained(
        folder
    )
    found = changed(gpt_table(tokens, tmp_path / "run"), parallel={"strategy": "fsdp"})

    assert "parallel.strategy = 'fsdp': AutoModelForCausalLM computes with weights outside" in refused(
        {**found, "model": {"name": CAUSAL, "config": folder}}, tmp_path
    )


def test_a_missing_shard_is_named(table, tmp_path):
    found = table("qwen")
    min((tmp_path / "published").glob("*-00002-of-*")).unlink()

    said = refused(found, tmp_path)

    assert "-00002-of-" in said
    assert "is missing, which model.safetensors.index.json names" in said


WIDE = {"hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 1024, "num_attention_heads": 4}


class AllocatedBytes(TorchDispatchMode):
    """Counter of the bytes in storages that are alive, of all tensors that operations create."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor) and not (leaf.is_meta or isinstance(leaf, DTensor)):
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: Any) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if size == 0 or place in self._seen:
            return
        self._seen.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, place, size)

    def _gone(self, place: int, size: int) -> None:
        self._seen.discard(place)
        self.now -= size


def filling_rank(folder: str, kind: dict[str, str]) -> tuple[int, int, int, int]:
    """Return bytes of a model under FSDP: the peak, the rest, all parameters, the largest layer."""
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"  # other threads are not counted
    settings = config.from_table(
        {
            "run": {"steps": 1},
            "model": {"name": CAUSAL, **kind},
            "data": {"path": "none"},
            "parallel": {"strategy": "fsdp"},
        },
        "test",
    )
    with world(settings.parallel) as where:
        facts = Facts(0, VOCABULARY, 16)
        places = {"weights": "", "config": "", **kind}
        model = pretrained.build(CAUSAL, {}, facts, "tokens", **places)
        mesh = init_device_mesh("cpu", (where.size,), mesh_dim_names=("data",))
        spread.fully_shard_blocks(model, settings, mesh)
        with AllocatedBytes() as counted:
            weights.fill(model, kind.get("weights", ""), where.device, seed=0)
        whole = sum(parameter.numel() * 4 for parameter in model.parameters())
        unit = max(sum(p.numel() * 4 for p in block.parameters()) for block in pretrained.blocks(model))
        return counted.peak, counted.now, whole, unit


@pytest.mark.parametrize("kind", ["weights", "config"])
def test_a_rank_holds_its_part_and_one_layer_while_a_model_is_filled(kind, tmp_path):
    settings = LlamaConfig(**WIDE, vocab_size=VOCABULARY, max_position_embeddings=64)
    seeded(LlamaForCausalLM, settings).save_pretrained(tmp_path, max_shard_size="4MB")

    for peak, stays, whole, unit in run_ranks(filling_rank, 2, str(tmp_path), {kind: str(tmp_path)}):
        assert 0.45 * whole < stays < 0.6 * whole
        assert peak < 0.55 * whole + 1.1 * unit  # half of it, and one of eight layers

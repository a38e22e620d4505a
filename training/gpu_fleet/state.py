"""State of a run between two steps: everything that decides the next step; save, restore and hash of it."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel

from gpu_fleet import config
from gpu_fleet.errors import IdentityError
from gpu_fleet.metrics.flops import Utilisation
from gpu_fleet.optimization import load_moments
from gpu_fleet.parallel.spread import Spread
from gpu_fleet.world import World

STREAM = {"samples": "data.samples", "seed": "run.seed"}  # value that decides the order -> its key


@dataclass
class State:
    """State of one run between two steps."""

    model: nn.Module  # the parameters of this rank, by their names in the whole model
    spread: Spread  # runs the steps with them
    optimizer: torch.optim.Optimizer
    chosen: list[dict[str, Any]]  # values of each of its groups that the configuration decides
    scaler: torch.amp.GradScaler
    average: AveragedModel | None
    utilisation: Utilisation | None  # for measurements only, not saved
    step: int = 0  # optimizer steps done
    position: int = 0  # samples consumed by all ranks since the first step

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the model, cached: a walk over a small model takes a thirtieth of its step."""
        return list(self.model.parameters())

    @property
    def averaged(self) -> AveragedModel | None:
        """The average, once it has taken in any weights; before that it holds the model's first weights."""
        return self.average if self.average is not None and int(self.average.n_averaged) else None


def capture(state: State, settings: config.Config, samples: int, where: World) -> dict[str, Any]:
    """Return the state that every strategy saves alike: the position, and each rank's own part.

    All ranks call it.
    """
    return {
        "scaler": state.scaler.state_dict(),
        "rng": where.gather(capture_rng()),
        "carried": where.gather_on_first(state.spread.carried()) if settings.parallel.powersgd_rank else [],
        "step": state.step,
        "position": state.position,
        "stream": {"samples": samples, "seed": settings.run.seed},
    }


def capture_tensors(state: State) -> dict[str, Any]:
    """Return the tensors of a model that this rank holds whole; they do not change before the next update."""
    return {
        "model": _with_own_buffers(state.model),
        "optimizer": state.optimizer.state_dict(),
        "average": {} if state.average is None else _with_own_buffers(state.average),
    }


def _with_own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, and copies of the buffers, which batch norm changes in every forward pass."""
    buffers = {name for name, _ in module.named_buffers()}
    return {name: value.clone() if name in buffers else value for name, value in module.state_dict().items()}


def apply(state: State, saved: dict[str, Any], settings: config.Config, samples: int, where: World) -> None:
    """Restore position and generators; raises IdentityError if they are of other samples."""
    stream = {"samples": samples, "seed": settings.run.seed}
    differs = {key for key in stream if saved["stream"].get(key) != stream[key]}
    if any(STREAM[key] not in settings.checkpoint.allow for key in differs):
        raise IdentityError(
            f"the checkpoint's samples were {saved['stream']}, this run's are {stream}; use the same "
            "data and run.seed, or another run.directory and checkpoint.uri"
        )
    if saved["scaler"]:  # only fp16 saves one; without it the scale begins anew
        state.scaler.load_state_dict(saved["scaler"])
    state.step, state.position = saved["step"], saved["position"]
    state.spread.take_up(saved.get("carried", []))  # a checkpoint of an older trainer has none
    if where.rank < len(saved["rng"]):
        restore_rng(saved["rng"][where.rank])
    else:
        seed_rng(settings.run.seed, where.rank, state.step)


def apply_tensors(state: State, saved: dict[str, Any]) -> None:
    """Restore captured tensors; raises IdentityError if they are of a model of another shape."""
    try:
        state.model.load_state_dict(saved["model"])
        load_moments(state.optimizer, saved["optimizer"], state.chosen)
        if state.average is not None:
            state.average.load_state_dict(saved["average"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise IdentityError(f"the checkpoint does not fit the configuration: {error}") from error


def apply_weights(state: State, weights: dict[str, Tensor]) -> None:
    """Load these weights at the begin of a run; raises IdentityError if the model has another shape."""
    try:
        state.model.load_state_dict(weights)
    except RuntimeError as error:
        raise IdentityError(f"the weights do not fit model.options: {error}") from error


def capture_rng() -> dict[str, Tensor]:
    """Return the states of dropout's generators; data order and augmentation need none."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(states: dict[str, Tensor]) -> None:
    """Restore the generators of this rank."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def seed_rng(seed: int, rank: int, step: int) -> None:
    """Seed the generators of a rank without saved ones, differently from other ranks."""
    digest = hashlib.sha256(f"{seed}/{rank}/{step}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big"))


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded, on the CPU; all ranks call it."""
    gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return gathered.detach().cpu().contiguous()


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, without the extra state of modules."""
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def whole_weights(model: nn.Module, where: World, by_depth: bool) -> dict[str, Tensor]:
    """Return all parameters and buffers on the CPU, each with its own memory; all ranks call it.

    `by_depth` says that the ranks hold different layers, which are then gathered.
    """
    mine = {name: whole(tensor).clone() for name, tensor in _tensors(model).items()}
    parts = where.gather(mine) if by_depth else [mine]
    return {name: tensor for part in parts for name, tensor in part.items()}


def parameters_sha256(model: nn.Module, where: World) -> str:
    """Return the hex SHA-256 over names and bytes of all parameters and buffers, in name order.

    It does not depend on how the model is spread. All ranks call it.
    """
    mine = {name: _bytes_sha256(whole(tensor)) for name, tensor in _tensors(model).items()}
    everything: dict[str, str] = {}
    for part in reversed(where.gather(mine)):  # last, so that the buffers of rank 0 count
        everything.update(part)
    lines = "".join(f"{name} {everything[name]}\n" for name in sorted(everything))
    return hashlib.sha256(lines.encode()).hexdigest()


def _bytes_sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()

"""Everything that makes the next step what it is: saved, restored, and condensed into one hash."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from training import config
from training.errors import CheckpointError
from training.parallel import World


@dataclass
class State:
    """One run between two steps."""

    model: nn.Module  # as defined, not wrapped
    spread: nn.Module  # as called: the same parameters under DistributedDataParallel or the like
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: AveragedModel | None
    step: int = 0  # optimizer steps done
    position: int = 0  # samples consumed by all ranks since the first step

    @property
    def evaluated(self) -> nn.Module:
        """The model that is measured and reported: the averaged one where there is one."""
        return self.model if self.average is None else self.average.module


def capture(state: State, settings: config.Config, samples: int, rng: list[Any]) -> dict[str, Any]:
    """The state as plain nested values; `rng` holds the generators of every rank."""
    return {
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "scaler": state.scaler.state_dict(),
        "average": {} if state.average is None else state.average.state_dict(),
        "rng": rng,
        "step": state.step,
        "position": state.position,
        "stream": {"samples": samples, "seed": settings.run.seed},
    }


def apply(state: State, saved: dict[str, Any], settings: config.Config, samples: int, where: World) -> None:
    """Puts a captured state back; raises CheckpointError when it is of another model or another stream."""
    stream = {"samples": samples, "seed": settings.run.seed}
    if saved["stream"] != stream:
        raise CheckpointError(f"the checkpoint's samples were {saved['stream']}, this run's are {stream}")
    try:
        state.model.load_state_dict(saved["model"])
        state.optimizer.load_state_dict(saved["optimizer"])
        if state.average is not None:
            state.average.load_state_dict(saved["average"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"the checkpoint does not fit the configuration: {error}") from error
    state.scaler.load_state_dict(saved["scaler"])
    state.step, state.position = saved["step"], saved["position"]
    if where.rank < len(saved["rng"]):
        restore_rng(saved["rng"][where.rank])
    else:
        seed_rng(settings.run.seed, where.rank, state.step)


def capture_rng() -> dict[str, torch.Tensor]:
    """The generators that dropout draws from; data order and augmentation need none."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng(states: dict[str, torch.Tensor]) -> None:
    """Puts the generators of this rank back."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def seed_rng(seed: int, rank: int, step: int) -> None:
    """Starts the generators of a rank that has no saved ones, apart from those of the other ranks."""
    digest = hashlib.sha256(f"{seed}/{rank}/{step}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big"))


def parameters_sha256(model: nn.Module) -> str:
    """Hex SHA-256 over the bytes of all parameters and buffers in name order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

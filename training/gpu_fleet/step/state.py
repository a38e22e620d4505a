"""State of a run between two steps: everything that decides the next step; save, restore and hash of it."""

import hashlib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_map_only

from gpu_fleet.core import config
from gpu_fleet.core.containers import plain
from gpu_fleet.core.errors import IdentityError
from gpu_fleet.core.world import World
from gpu_fleet.metrics.flops import Utilisation
from gpu_fleet.step.optimization import load_moments
from gpu_fleet.step.precision import all_finite
from gpu_fleet.step.spread import Whole


@dataclass
class State:
    model: nn.Module  # the parameters of this rank, by their names in the whole model
    spread: Whole  # runs the steps with them
    optimizer: torch.optim.Optimizer
    chosen: list[dict[str, Any]]  # values of each of its groups that the configuration decides
    scaler: torch.amp.GradScaler
    average: AveragedModel | None
    utilisation: Utilisation | None  # for measurements only, not saved
    not_finite_at_start: frozenset[str]  # names of buffers, such as masks of -inf
    step: int = 0  # optimizer steps done
    position: int = 0  # samples consumed by all ranks since the first step

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the model, cached: a walk over a small model takes a thirtieth of its step."""
        return list(self.model.parameters())

    @property
    def averaged(self) -> AveragedModel | None:
        """The average, once it has averaged any weights; None before that: it holds the first weights."""
        return self.average if self.average is not None and int(self.average.n_averaged) else None


def capture(state: State, settings: config.Config, where: World) -> dict[str, Any]:
    """Return what every strategy saves alike: position and each rank's own part; all ranks call it."""
    return {
        "scaler": state.scaler.state_dict(),
        "rng": where.gather(capture_rng()),
        "buffers": buffers_of_ranks([state.model], where),
        "carried": where.gather_on_first(state.spread.carried()) if settings.parallel.powersgd_rank else [],
        "step": state.step,
        "position": state.position,
    }


def capture_tensors(state: State, settings: config.Config) -> dict[str, Any]:
    """Return the tensors that this rank holds, the same until the next update; raises UnreadableError."""
    return {
        "model": plain(_with_own_buffers(state.model), f"model.name = {settings.model.name!r}"),
        "optimizer": plain_optimizer(state, settings),
        "average": {} if state.average is None else _with_own_buffers(state.average),
    }


def plain_optimizer(state: State, settings: config.Config) -> Any:
    """Return the state of the optimizer as a checkpoint restores it; raises UnreadableError."""
    return plain(state.optimizer.state_dict(), f"optimizer.name = {settings.optimizer.name!r}")


def buffers_of_ranks(modules: Iterable[nn.Module], where: World) -> list[dict[str, Tensor]]:
    """Return, on rank 0, the saved buffers of each rank that differ from its own; all ranks call it."""
    return of_ranks({name: _local(buffer) for name, buffer in _saved_buffers(modules)}, where)


def of_ranks(mine: Mapping[str, Any], where: World) -> list[dict[str, Any]]:
    """Return, on rank 0, what each rank holds otherwise than it, if any does; all ranks call it together."""
    if where.size == 1:
        return []
    digests = {
        name: hashlib.sha256(repr(tree_map_only(Tensor, _sha256, value)).encode()).digest()
        for name, value in mine.items()
    }
    first, *others = where.gather(digests)
    if all(other == first for other in others):
        return []
    differ = [name for name in mine if any(other.get(name) != first.get(name) for other in others)]
    held = {name: tree_map_only(Tensor, whole, mine[name]) for name in differ}
    return where.gather_on_first({name: held[name] for name in held if digests[name] != first.get(name)})


def restore_buffers(modules: Iterable[nn.Module], saved: list[dict[str, Tensor]], where: World) -> None:
    """Restore the buffers of this rank, if as many ranks saved; raises IdentityError for another shape."""
    own = saved[where.rank] if len(saved) == where.size else {}
    for name, buffer in _saved_buffers(modules) if own else ():
        if (value := own.get(name)) is not None:
            if value.shape != _local(buffer).shape:
                raise IdentityError(f"the checkpoint does not fit the model: buffer {name} has another shape")
            _local(buffer).data.copy_(value)


def _saved_buffers(modules: Iterable[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for place, module in enumerate(modules):
        saved = module.state_dict().keys()
        yield from ((f"{place}/{name}", value) for name, value in module.named_buffers() if name in saved)


def _switched(modules: Iterable[nn.Module]) -> Iterator[tuple[str, Any, str]]:
    for place, module in enumerate(modules):
        yield from ((f"{place}/{path}.training", part, "training") for path, part in module.named_modules())
        for name, parameter in module.named_parameters():
            yield f"{place}/{name}.requires_grad", parameter, "requires_grad"


def switches(modules: Iterable[nn.Module]) -> dict[str, bool]:
    """Return the mode of each layer, and whether each parameter gets gradients."""
    return {name: getattr(thing, attribute) for name, thing, attribute in _switched(modules)}


def restore_switches(modules: Iterable[nn.Module], saved: Mapping[str, bool]) -> None:
    for name, thing, attribute in _switched(modules):
        if name in saved:
            setattr(thing, attribute, saved[name])


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Restore buffers and generators at the end, so that the block changes no later step."""
    generators = capture_rng()
    before = {name: buffer.clone() for name, buffer in model.named_buffers() if takes_values(buffer)}
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            if name in before and buffer.shape == before[name].shape:  # a first pass may register more
                buffer.data.copy_(before[name])
        restore_rng(generators)


def takes_values(buffer: Tensor) -> bool:
    """Return whether values can be copied into a buffer: not into one that is lazy, sparse or expanded."""
    plain = not nn.parameter.is_lazy(buffer) and buffer.layout == torch.strided and not buffer.is_nested
    return plain and not torch._debug_has_internal_overlap(_local(buffer))


def not_finite(tensors: Mapping[str, Tensor], spared: Container[str] = ()) -> list[str]:
    """Return the names of tensors with a NaN or an infinity in this rank's part, except those `spared`."""
    numbers = {
        # torch takes no norm of floats of eight bits
        name: part.float() if (part := _local(value.detach())).element_size() == 1 else part
        for name, value in tensors.items()
        if name not in spared and (value.is_floating_point() or value.is_complex())
    }
    if all_finite(list(numbers.values())):  # a wait for the device, in place of one for each tensor
        return []
    return [name for name, value in numbers.items() if not bool(value.isfinite().all())]


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by name, including those that are not saved."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _with_own_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters, and copies of the buffers, which batch norm changes in every forward pass."""
    buffers = {name for name, _ in module.named_buffers()}
    return {name: value.clone() if name in buffers else value for name, value in module.state_dict().items()}


def apply(state: State, saved: dict[str, Any], settings: config.Config, where: World) -> None:
    """Restore position, buffers and generators; raises IdentityError for buffers of another shape."""
    if saved["scaler"]:  # only fp16 saves one; without it the scale begins anew
        state.scaler.load_state_dict(saved["scaler"])
    state.step, state.position = saved["step"], saved["position"]
    state.spread.take_up(saved["carried"])
    restore_buffers([state.model], saved["buffers"], where)
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
    """Load these weights at the start of a run; raises IdentityError if the model has another shape."""
    try:
        state.model.load_state_dict(weights)
    except RuntimeError as error:
        raise IdentityError(f"the weights do not fit model.options: {error}") from error


def capture_rng() -> dict[str, Tensor]:
    """Return the states of dropout's generators; data order and augmentation need none."""
    of_gpu = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"cpu": torch.get_rng_state(), **of_gpu}


def restore_rng(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def seed_rng(seed: int, rank: int, step: int) -> None:
    """Seed the generators of a rank without saved ones, differently from other ranks."""
    digest = hashlib.sha256(f"{seed}/{rank}/{step}".encode()).digest()
    torch.manual_seed(int.from_bytes(digest[:8], "big"))


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may be sharded as a whole, on the CPU; all ranks call it."""
    gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return gathered.detach().cpu().contiguous()


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def whole_weights(model: nn.Module, where: World, others: dist.ProcessGroup | None) -> dict[str, Tensor]:
    """Return, on rank 0, all tensors on the CPU, also of `others` with other layers; all ranks call it."""
    sends = others is not None and 0 in dist.get_process_group_ranks(others)
    mine = {}
    for name, tensor in _tensors(model).items():
        gathered = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        if where.leads or sends:
            mine[name] = gathered.detach().cpu().contiguous().clone()
        del gathered
    parts = [mine] if others is None else where.gather_on_first(mine)
    return {name: tensor for part in parts for name, tensor in part.items()}


def parameters_sha256(model: nn.Module, where: World) -> str:
    """Return the hex SHA-256 over names and bytes of the whole model, in name order; all ranks call it."""
    mine = {name: _sha256(tensor) for name, tensor in _tensors(model).items()}
    everything: dict[str, str] = {}
    for part in reversed(where.gather(mine)):  # last, so that the buffers of rank 0 count
        everything.update(part)
    lines = "".join(f"{name} {everything[name]}\n" for name in sorted(everything))
    return hashlib.sha256(lines.encode()).hexdigest()


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(whole(tensor).flatten().view(torch.uint8).numpy().data).hexdigest()

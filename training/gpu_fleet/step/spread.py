"""A model spread over the ranks: replicated (DDP), sharded (FSDP2, tensor parallel) or cut into stages."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from gpu_fleet.core import config
from gpu_fleet.core.errors import ParallelError
from gpu_fleet.core.world import World, divisors
from gpu_fleet.data.loader import Batch
from gpu_fleet.models import definitions, pretrained, registry
from gpu_fleet.step import precision

LossFunction = Callable[[Tensor, Tensor], Tensor]


class Spread(Protocol):
    """Interface by which the loop uses a model, wherever its parts are."""

    other_layers: dist.ProcessGroup | None  # the ranks that hold the rest of a model cut by depth

    def accumulate(
        self, batches: Sequence[Batch], scale: Callable[[Tensor], Tensor], loss: LossFunction
    ) -> Tensor | None:
        """Run forward and backward over the micro-batches of a step. Return the loss (), None if not known.

        Afterwards the gradients are those of the mean over all counted targets, of all micro-batches and
        ranks. `loss` returns the mean over the counted targets of one batch; each batch weighs as many
        targets as it has. The mean of the results of all ranks is the mean over all counted targets.
        """
        ...

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Return the logits of one batch; None on a rank that does not hold the end of the model."""
        ...

    def rehearse(self, batch: Batch) -> None:  # noqa: ARG002 - subclasses use it
        """Run passes before the first step, if the steps would otherwise depend on earlier passes."""
        return

    def carried(self) -> dict[str, Any]:
        """Return further state of this rank, besides weights and moments, for each checkpoint."""
        return {}

    def take_up(self, carried: list[dict[str, Any]]) -> None:  # noqa: ARG002 - subclasses use it
        """Restore the results of `carried` of all ranks of the saved run, in rank order."""
        return


class TargetShare:
    """Weight of a micro-batch in its step: its part of all counted targets, on all ranks.

    The ranks sum their numbers of targets during the first forward pass, so that no rank waits. Gradients are
    averaged over the ranks afterwards: a rank with one micro-batch and an even share of the targets weighs 1.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        shared = dist.is_initialized() and dist.get_world_size() > 1
        self._group = dist.group.WORLD if shared else None
        self._ranks = dist.get_world_size() if shared else 1
        self._total = torch.ones(())
        self._alone = 0  # the total without other ranks: then the device computes nothing
        self._everywhere: Tensor | float = 1.0  # the total, as a number where it can be read without a wait
        self._pending: dist.Work | None = None

    def begin(self, counted: Sequence[int]) -> None:
        """Begin a step with the number of counted targets of each micro-batch; all ranks call it."""
        self._alone = sum(counted)
        if self._group is not None:  # not by dist.all_reduce, whose checks take longer than the call itself
            self._total = torch.full((), float(self._alone), device=self._device)
            self._pending = self._group.allreduce([self._total])

    def of(self, counted: int | Tensor) -> Tensor | float:
        """Return the weight of a micro-batch with `counted` targets; among several GPUs, () on the GPU."""
        if self._group is None:
            return counted / max(1, self._alone)
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            total = self._total.clamp_(min=1)
            self._everywhere = float(total) if self._device.type == "cpu" else total
        return counted * self._ranks / self._everywhere


class Whole(Spread):
    """Model that this rank calls as a whole, however its parameters are stored."""

    def __init__(
        self, module: nn.Module, called: nn.Module, settings: config.Config, device: torch.device
    ) -> None:
        """Prepare the model; `called` is `module`, or its DistributedDataParallel."""
        self.other_layers: dist.ProcessGroup | None = None
        self._module, self._called = module, called
        self._share = TargetShare(device)
        self._settings, self._device = settings.precision, device

    def accumulate(
        self, batches: Sequence[Batch], scale: Callable[[Tensor], Tensor], loss: LossFunction
    ) -> Tensor | None:
        self._share.begin([batch.counted for batch in batches])
        total: Tensor | None = None
        for number, batch in enumerate(batches, start=1):
            with reduced_last(self._called, last=number == len(batches)):
                with precision.autocast(self._settings, self._device):
                    part = loss(self._called(batch.inputs), batch.targets)
                    if not batch.counted:  # its weight is 0, and the mean over no targets is NaN
                        part = part.nan_to_num()
                    weight = self._share.of(batch.counted)
                    part = part if isinstance(weight, float) and weight == 1 else part * weight
                with nullcontext() if batch.counted else without_gradients(part):
                    torch.autograd.backward(scale(part))
            total = part.detach() if total is None else total + part.detach()
        return total

    def predict(self, inputs: Tensor) -> Tensor | None:
        with precision.autocast(self._settings, self._device):
            return cast("Tensor", self._module(inputs))


def reduced_last(module: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Return a context in which the backward pass sends gradients to other ranks only if it is the `last`."""
    if isinstance(module, DistributedDataParallel) and not last:
        return cast("AbstractContextManager[None]", module.no_sync())
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    return nullcontext()


@contextmanager
def without_gradients(loss: Tensor) -> Iterator[None]:
    """Make the backward pass of `loss` () add exactly 0 to each gradient that it reaches.

    The derivative of a mean over no targets is 0 / 0, which stays NaN with a weight of 0. The pass is still
    needed: the other ranks wait for the gradients that DistributedDataParallel and FSDP2 send in it.
    """
    hooks = [leaf.register_prehook(_zeros) for leaf in _leaves(loss)]
    try:
        yield
    finally:  # the nodes live as long as their parameters
        for hook in hooks:
            hook.remove()


def _leaves(loss: Tensor) -> list[Node]:
    """Return the nodes of the graph of `loss` that add to the gradient of a parameter."""
    seen: set[Node] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return [node for node in seen if not node.next_functions and hasattr(node, "variable")]


def _zeros(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    return tuple(None if gradient is None else torch.zeros_like(gradient) for gradient in gradients)


def shard(model: nn.Module, settings: config.Config, where: World) -> Whole:
    """Spread a model: tensor parallelism within `parallel.tensor` neighbours, FSDP2 over the rest."""
    tensor = settings.parallel.tensor
    if settings.precision.compile and 1 < tensor < where.size:  # measured: other losses from step 2 on
        raise ParallelError(
            f"precision.compile = true: torch 2.13 gets gradients wrong when {where.size} ranks share layers "
            f"by parallel.tensor = {tensor}; parallel.tensor = {where.size}, fsdp and ddp can be compiled"
        )
    mesh = init_device_mesh(
        where.device.type, (where.size // tensor, tensor), mesh_dim_names=("data", "tensor")
    )
    if settings.parallel.strategy == "tensor":
        cut_layers(model, settings, mesh["tensor"])
    if settings.parallel.strategy == "fsdp" or mesh["data"].size() > 1:
        fully_shard_blocks(model, settings, mesh["data"])
    return Whole(model, model, settings, where.device)


def fully_shard_blocks(model: nn.Module, settings: config.Config, mesh: DeviceMesh) -> None:
    """Shard each repeated layer by itself, then the rest: only one layer at a time is whole in memory.

    Raises ParallelError for parameters that cannot be sharded.
    """
    check_dimensions(model)
    dtype = precision.DTYPES.get(settings.precision.dtype)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for block in separate(registry.blocks(model, settings.model.name), model):
        if settings.precision.compile:  # before fully_shard: its gathering of the shards breaks a graph
            block.forward = torch.compile(block.forward)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def check_dimensions(model: nn.Module) -> None:
    """Raise ParallelError for a parameter without dimensions, which torch cannot shard."""
    scalar = next((name for name, value in model.named_parameters() if value.ndim == 0), "")
    if scalar:
        raise ParallelError(
            f"parallel.strategy: {scalar} is a number, which cannot be sharded; make it a parameter of shape "
            "(1,), as torch.ones(1), or take 'ddp'"
        )


def separate(blocks: Sequence[nn.Module], model: nn.Module) -> list[nn.Module]:
    """Return the blocks that share no layer and no parameter with another part of the model.

    FSDP2 shards a shared part with the rest of the model, which is whole from the first layer to the last.
    """
    nested = {module for block in blocks for module in block.modules() if module is not block}
    outer = [block for block in blocks if block not in nested]
    inside = {module for block in outer for module in block.modules()}
    outside = (module for module in model.modules() if module not in inside)
    parts = [{id(value) for value in block.parameters()} for block in outer]
    parts.append({id(value) for module in outside for value in module.parameters(recurse=False)})
    places = Counter(chain.from_iterable(parts))
    alone = [
        block for block, part in zip(outer, parts, strict=False) if all(places[value] == 1 for value in part)
    ]
    separated = {module for block in alone for module in block.modules()}
    return [block for block in blocks if block in separated]


def cut_layers(model: nn.Module, settings: config.Config, mesh: DeviceMesh) -> None:
    """Apply Megatron-style tensor parallelism (Shoeybi et al., 2019) to the Llama decoder, in place.

    A model of transformers has its own plan. Raises ParallelError if the heads do not divide.
    """
    if pretrained.is_pretrained(settings.model.name):
        pretrained.cut_layers(pretrained.network_of(model), mesh)
        return
    decoder = decoder_of(model, settings)
    heads = min(decoder.config.num_attention_heads, decoder.config.num_key_value_heads)
    if heads % mesh.size():
        raise ParallelError(
            f"parallel.tensor = {mesh.size()} does not divide {heads} heads; these do: {divisors(heads)}"
        )
    within_layer = {
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    for layer in registry.blocks(model, settings.model.name):
        parallelize_module(layer, mesh, within_layer)
    ends = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(decoder, mesh, ends)


def decoder_of(model: nn.Module, settings: config.Config) -> Any:
    """Return the LlamaForCausalLM inside a `gpt`; raises ParallelError for any other model."""
    if settings.model.name != "gpt" or not isinstance(model, definitions.Logits):
        raise ParallelError(
            f"parallel.strategy = {settings.parallel.strategy!r}: can spread the model 'gpt' only, "
            f"not {settings.model.name!r}; ddp and fsdp take every model"
        )
    return model.network

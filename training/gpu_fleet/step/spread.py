"""A model spread over the ranks: replicated (DDP), sharded (FSDP2, tensor parallel) or cut into stages."""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gpu_fleet.core import config, user_code
from gpu_fleet.core.errors import ParallelError
from gpu_fleet.core.world import World
from gpu_fleet.data.loader import IGNORED, Batch
from gpu_fleet.models import definitions, pretrained, registry
from gpu_fleet.step import precision

log = logging.getLogger(__name__)
# PowerSGD begins to compress at this step: the large gradients of the start are over.
POWERSGD_FIRST_STEP = 10
PASSES_UNTIL_SETTLED = 2  # torch records the static graph in the first, the gradient buckets in the second
LossFunction = Callable[[Tensor, Tensor], Tensor]


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy () in nats over the counted targets, or a loss () that outputs are."""
    return cross_entropy(outputs, targets, "mean") if outputs.ndim else outputs


def cross_entropy(outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
    flat = outputs.reshape(-1, outputs.shape[-1]).float()
    return functional.cross_entropy(flat, targets.reshape(-1), ignore_index=IGNORED, reduction=reduction)


class TargetShare:
    """Weight of a micro-batch in its step: its part of all counted targets, on all ranks.

    The ranks sum their targets during the first forward pass: none waits. Gradients are averaged later.
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


class Whole:
    """Model that this rank calls as a whole, however its parameters are stored."""

    other_layers: dist.ProcessGroup | None = None  # the ranks that hold the rest of a model cut by depth

    def __init__(
        self, module: nn.Module, called: nn.Module, settings: config.Config, device: torch.device
    ) -> None:
        """Prepare the model; `called` is `module`, or its DistributedDataParallel."""
        self.module, self._called = module, called
        self._share = TargetShare(device)
        self._settings, self._device = settings.precision, device

    def accumulate(
        self, batches: Sequence[Batch], scale: Callable[[Tensor], Tensor], loss: LossFunction
    ) -> Tensor | None:
        """Run forward and backward over the micro-batches of a step. Return the loss (), None if not known.

        Afterwards the gradients are those of the mean over all counted targets, of all micro-batches and
        ranks. `loss` returns the mean over the counted targets of one batch.
        """
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
        """Return the logits of one batch; None on a rank that does not hold the end of the model."""
        with precision.autocast(self._settings, self._device):
            return cast("Tensor", self.module(inputs))

    def rehearse(self, batch: Batch) -> None:  # noqa: ARG002 - Replicas uses it
        """Run passes before the first step, if the steps would otherwise depend on earlier passes."""
        return

    def carried(self) -> dict[str, Any]:
        """Return further state of this rank, besides weights and moments, for each checkpoint."""
        return {}

    def take_up(self, carried: list[dict[str, Any]]) -> None:  # noqa: ARG002 - Replicas uses it
        """Restore the results of `carried` of all ranks of the saved run, in rank order."""
        return


class Replicas(Whole):
    """A copy of the model on every rank; DistributedDataParallel averages the gradients."""

    def __init__(self, model: nn.Module, settings: config.Config, where: World) -> None:
        self._static = graph_is_static(model, settings)
        ids = [where.device.index] if where.device.type == "cuda" else None
        self._parallel = DistributedDataParallel(
            model,
            device_ids=ids,
            gradient_as_bucket_view=True,
            static_graph=self._static,
            find_unused_parameters=not self._static,
            forward_sync_buffers=False,  # World.share_buffers copies those of rank 0
        )
        super().__init__(model, self._parallel, settings, where.device)
        self._looks_alone = not self._static and settings.parallel.static_graph is None and where.leads
        self._rank, self._compression_rank = where.rank, settings.parallel.powersgd_rank
        self._compression: powerSGD_hook.PowerSGDState | None = None
        if self._compression_rank:
            self._compression = powerSGD_hook.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=self._compression_rank,
                start_powerSGD_iter=POWERSGD_FIRST_STEP,
            )

    def accumulate(
        self, batches: Sequence[Batch], scale: Callable[[Tensor], Tensor], loss: LossFunction
    ) -> Tensor | None:
        """Run a step as `Whole` does; after the first, rank 0 may warn of a needless search in torch."""
        mean = super().accumulate(batches, scale, loss)
        if self._looks_alone:
            self._looks_alone = False
            if all(p.grad is not None for p in self.module.parameters() if p.requires_grad):
                log.warning(
                    "event=all-parameters-used help='torch searches each step for unused parameters: "
                    "parallel.static_graph = true avoids that if every step uses all'"
                )
        return mean

    def rehearse(self, batch: Batch) -> None:
        """Run passes that leave weights unchanged; they may change buffers, and draw from generators.

        The first passes form DistributedDataParallel's buckets, which decide the order of sums: a resumed run
        needs the same. With a static graph, torch 2.13 also needs a pass before `no_sync`.
        """
        for _ in range(PASSES_UNTIL_SETTLED if self._static else 0):
            with precision.autocast(self._settings, self._device):
                loss = mean_loss(self._called(batch.inputs), batch.targets)
            torch.autograd.backward(loss)
            self.module.zero_grad(set_to_none=True)
        if self._compression is not None:
            self._parallel.register_comm_hook(self._compression, powerSGD_hook.powerSGD_hook)

    def carried(self) -> dict[str, Any]:
        """Return the gradients that compression has not sent yet, as large as the gradients themselves."""
        state = self._compression
        if state is None:
            return {}
        tensors = {"left_over": state.error_dict, "p": state.p_memory_dict, "q": state.q_memory_dict}
        on_cpu = {
            name: {place: t.cpu() for place, t in tensors_at.items()} for name, tensors_at in tensors.items()
        }
        return {"rank": self._compression_rank, "steps": state.iter, **on_cpu}

    def take_up(self, carried: list[dict[str, Any]]) -> None:
        """Restore the unsent gradients of all ranks; with another number of ranks, each gets their mean."""
        state = self._compression
        if state is None or not carried or not carried[0]:
            return
        mine = carried[self._rank] if len(carried) == dist.get_world_size() else _mean(carried)
        state.iter = mine["steps"]
        state.error_dict = self._on_device(mine["left_over"])
        if mine["rank"] == self._compression_rank:
            state.p_memory_dict, state.q_memory_dict = (self._on_device(mine[name]) for name in ("p", "q"))

    def _on_device(self, tensors: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        return {place: tensor.to(self._device) for place, tensor in tensors.items()}


def graph_is_static(model: nn.Module, settings: config.Config) -> bool:
    """Return whether every step uses the same parameters; a user's own model or loss may leave some out."""
    if settings.parallel.static_graph is not None:
        return settings.parallel.static_graph
    own = user_code.is_own(settings.model.name) or bool(settings.loss.name)
    return not own and not pretrained.leaves_out_parameters(model)


def _mean(carried: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of the first rank, with the mean of the unsent gradients of all ranks."""
    places = carried[0]["left_over"]
    mean = {place: sum(rank["left_over"][place] for rank in carried) / len(carried) for place in places}
    return {**carried[0], "left_over": mean}


def reduced_last(module: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Return a context in which the backward pass sends gradients to other ranks only if it is the `last`."""
    if isinstance(module, DistributedDataParallel) and not last:
        return cast("AbstractContextManager[None]", module.no_sync())
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    return nullcontext()


@contextmanager
def without_gradients(loss: Tensor) -> Iterator[None]:
    """Make the backward pass of `loss` () add exactly 0, not NaN, to each gradient that it reaches.

    It is needed: the other ranks wait for the gradients that DistributedDataParallel and FSDP2 send in it.
    """

    def zeros(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(None if gradient is None else torch.zeros_like(gradient) for gradient in gradients)

    hooks = [leaf.register_prehook(zeros) for leaf in _leaves(loss)]
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
        library = pretrained.is_pretrained(settings.model.name)
        network = pretrained.network_of(model) if library else decoder_of(model, settings)
        pretrained.cut_layers(network, mesh["tensor"])
    if settings.parallel.strategy == "fsdp" or mesh["data"].size() > 1:
        fully_shard_blocks(model, settings, mesh["data"])
    return Whole(model, model, settings, where.device)


def fully_shard_blocks(model: nn.Module, settings: config.Config, mesh: DeviceMesh) -> None:
    """Shard each repeated layer, then the rest: one layer at a time is whole. Raises ParallelError."""
    if scalar := next((name for name, value in model.named_parameters() if value.ndim == 0), ""):
        raise ParallelError(
            f"parallel.strategy: {scalar} is a number, which cannot be sharded; make it a parameter of shape "
            "(1,), as torch.ones(1), or take 'ddp'"
        )
    dtype = precision.DTYPES.get(settings.precision.dtype)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for block in separate(registry.blocks(model, settings.model.name), model):
        if settings.precision.compile:  # before fully_shard: its gathering of the shards breaks a graph
            block.forward = torch.compile(block.forward)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def separate(blocks: Sequence[nn.Module], model: nn.Module) -> list[nn.Module]:
    """Return the blocks that share nothing with another part; FSDP2 shards shared ones with the rest."""
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


def decoder_of(model: nn.Module, settings: config.Config) -> Any:
    """Return the LlamaForCausalLM inside a `gpt`; raises ParallelError for any other model."""
    if settings.model.name != "gpt" or not isinstance(model, definitions.Logits):
        raise ParallelError(
            f"parallel.strategy = {settings.parallel.strategy!r}: can spread the model 'gpt' only, "
            f"not {settings.model.name!r}; ddp and fsdp take every model"
        )
    return model.network

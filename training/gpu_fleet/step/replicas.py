"""A whole model on every rank: DistributedDataParallel, optionally with compressed gradients."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gpu_fleet.core import config, user_code
from gpu_fleet.core.world import World
from gpu_fleet.data.loader import Batch
from gpu_fleet.models import pretrained
from gpu_fleet.step import precision
from gpu_fleet.step.evaluation import mean_loss
from gpu_fleet.step.spread import LossFunction, Whole

# PowerSGD begins to compress at this step: the large gradients of the start are over.
POWERSGD_FIRST_STEP = 10

log = logging.getLogger(__name__)
PASSES_UNTIL_SETTLED = 2  # torch records the static graph in the first, the gradient buckets in the second


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
        """Run a step as `Whole` does. After the first step, rank 0 may warn of a needless search in torch.

        The search for unused parameters is needless if the step has used all of them.
        """
        mean = super().accumulate(batches, scale, loss)
        if self._looks_alone:
            self._looks_alone = False
            if all(p.grad is not None for p in self._module.parameters() if p.requires_grad):
                log.warning(
                    "event=all-parameters-used help='torch searches each step for unused parameters: "
                    "parallel.static_graph = true avoids that if every step uses all'"
                )
        return mean

    def rehearse(self, batch: Batch) -> None:
        """Run passes that leave weights unchanged; they may change buffers, and draw from generators.

        DistributedDataParallel forms its gradient buckets from the passes it has seen. The buckets decide the
        order of the sums over more than two ranks, so a resumed run must begin with the same buckets. With a
        static graph, torch 2.13 also needs a pass before `no_sync`. Without one the buckets never change.
        """
        for _ in range(PASSES_UNTIL_SETTLED if self._static else 0):
            with precision.autocast(self._settings, self._device):
                loss = mean_loss(self._called(batch.inputs), batch.targets)
            torch.autograd.backward(loss)
            self._module.zero_grad(set_to_none=True)
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
        same_world = len(carried) == dist.get_world_size()
        mine = carried[self._rank] if same_world else _mean(carried)
        state.iter = mine["steps"]
        state.error_dict = self._on_device(mine["left_over"])
        if mine["rank"] == self._compression_rank:
            state.p_memory_dict, state.q_memory_dict = (self._on_device(mine[name]) for name in ("p", "q"))

    def _on_device(self, tensors: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        return {place: tensor.to(self._device) for place, tensor in tensors.items()}


def graph_is_static(model: nn.Module, settings: config.Config) -> bool:
    """Return whether every step uses the same parameters, by parallel.static_graph or by the kind of model.

    A user's own model or loss counts as not static: stochastic depth, heads per task and experts leave
    parameters out.
    """
    if settings.parallel.static_graph is not None:
        return settings.parallel.static_graph
    own = user_code.is_own(settings.model.name) or bool(settings.loss.name)
    return not own and not pretrained.leaves_out_parameters(model)


def _mean(carried: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of the first rank, with the mean of the unsent gradients of all ranks."""
    places = carried[0]["left_over"]
    mean = {place: sum(rank["left_over"][place] for rank in carried) / len(carried) for place in places}
    return {**carried[0], "left_over": mean}

"""Pipeline parallelism: the decoder is cut by depth, one stage per rank, one forward one backward (1F1B)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from gpu_fleet.core import config
from gpu_fleet.core.errors import ParallelError
from gpu_fleet.core.world import World
from gpu_fleet.data.loader import IGNORED, Batch
from gpu_fleet.step import precision
from gpu_fleet.step.spread import LossFunction, Whole, decoder_of, fully_shard_blocks, mean_loss


class Passed(nn.Module):
    """Stand-in for a layer that is on another rank: it returns its input and has no parameters."""

    def forward(self, hidden: Tensor, **_: Any) -> Tensor:
        return hidden


class StageModule(nn.Module):
    """The part of a decoder on one rank. Its parameters keep the names they have in the whole model."""

    def __init__(self, decoder: nn.Module, place: int, count: int) -> None:
        super().__init__()
        self.network = decoder
        self.first, self.last = place == 0, place == count - 1
        body: Any = decoder.model
        layers = len(body.layers)
        mine = range(place * layers // count, (place + 1) * layers // count)
        for number in range(layers):
            if number not in mine:
                body.layers[number] = Passed()
        if not self.first:
            body.embed_tokens = None
        if not self.last:
            body.norm = Passed()
            decoder.lm_head = None  # type: ignore[assignment]  # torch lets a submodule be None

    def forward(self, inputs: Tensor) -> Tensor:
        """Map tokens (batch, sequence) or hidden (batch, sequence, width) to hidden or logits."""
        network: Any = self.network
        given = {"input_ids" if self.first else "inputs_embeds": inputs}
        hidden: Tensor = network.model(**given, use_cache=False).last_hidden_state
        return network.lm_head(hidden) if self.last else hidden.float()


class Pipeline(Whole):
    """Model in stages: micro-batches of a step run through all of them, and the last one knows the loss."""

    def __init__(
        self, stage: StageModule, settings: config.Config, where: World, group: dist.ProcessGroup
    ) -> None:
        super().__init__(stage, stage, settings, where.device)
        self.other_layers, self._stage, self._group = group, stage, group
        self._rank, self._count = dist.get_rank(group), dist.get_world_size(group)
        self._width = int(stage.network.config.hidden_size)  # type: ignore[union-attr,arg-type]  # untyped attribute
        self._schedule = Schedule1F1B(
            PipelineStage(stage, self._rank, self._count, where.device, group=group),
            n_microbatches=settings.run.accumulation,
            loss_fn=self._weighed_loss,
            scale_grads=False,  # the weights of the losses scale them
        )

    def _weighed_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        counted = (targets != IGNORED).sum()
        return torch.where(counted > 0, mean_loss(outputs, targets), 0.0) * self._share.of(counted)

    def accumulate(
        self, batches: Sequence[Batch], scale: Callable[[Tensor], Tensor], loss: LossFunction
    ) -> Tensor | None:
        del scale, loss  # fp16 is refused for pipelines; the schedule was given its loss
        self._share.begin([batch.counted for batch in batches])
        inputs = torch.cat([batch.inputs for batch in batches])
        targets = torch.cat([batch.targets for batch in batches])
        losses: list[Tensor] = []
        with precision.autocast(self._settings, self._device):
            self._schedule.step(
                *((inputs,) if self._stage.first else ()),
                target=targets if self._stage.last else None,
                losses=losses,
                return_outputs=False,
            )
        return torch.stack(losses).sum().detach() if self._stage.last else None

    def predict(self, inputs: Tensor) -> Tensor | None:
        """Run one batch through all stages in order. Return the logits on the last stage, else None."""
        hidden = inputs
        if not self._stage.first:
            hidden = torch.empty(*inputs.shape, self._width, device=self._device)
            dist.recv(hidden, group=self._group, group_src=self._rank - 1)
        with precision.autocast(self._settings, self._device):
            outputs: Tensor = self._stage(hidden)
        if self._stage.last:
            return outputs
        dist.send(outputs.contiguous(), group=self._group, group_dst=self._rank + 1)
        return None


def cut(model: nn.Module, settings: config.Config, where: World) -> Pipeline:
    """Return the pipeline with the stage of this rank; raises ParallelError if the model cannot be cut."""
    decoder = decoder_of(model, settings)
    count, layers = settings.parallel.pipeline, len(decoder.model.layers)
    if layers < count:
        raise ParallelError(f"parallel.pipeline = {count} stages need as many layers, the model has {layers}")
    if settings.run.accumulation < count:
        raise ParallelError(
            f"run.accumulation = {settings.run.accumulation} micro-batches leave stages idle; "
            f"set run.accumulation to {count} or more"
        )
    mesh = init_device_mesh(
        where.device.type, (where.size // count, count), mesh_dim_names=("data", "pipeline")
    )
    stage = StageModule(decoder, mesh.get_local_rank("pipeline"), count)
    if mesh["data"].size() > 1:
        fully_shard_blocks(stage, settings, mesh["data"])
    return Pipeline(stage, settings, where, mesh.get_group("pipeline"))

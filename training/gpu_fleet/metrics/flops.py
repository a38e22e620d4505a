"""How much arithmetic a sample costs, and which part of the peak a run reaches (model FLOPs utilisation).

Counted are the operations of matrix products, convolutions and attention, two per multiply-add; a backward
pass costs twice its forward pass, and recomputed activations do not count: Chowdhery et al., "PaLM: Scaling
Language Modeling with Pathways", 2022, appendix B.
"""

import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from gpu_fleet.metrics.peak import peak_of

BACKWARD_AND_FORWARD = 3
log = logging.getLogger(__name__)


def flops_per_sample(model: nn.Module, sample: Tensor) -> float:
    """Operations of one training step per sample, counted in one forward pass that computes nothing.

    Args:
        model: the whole model, before it is spread, wherever it lies; it comes back as it was.
        sample: an input of batch size 1; only its shape and type count.
    """
    mode = (
        FakeTensorMode()
    )  # meta tensors that remember their device, and that transformers knows to be traced
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes: dict[str, Tensor] = {name: mode.from_tensor(tensor.detach()) for name, tensor in tensors.items()}
    training = model.training
    model.eval()
    counter = FlopCounterMode(display=False)
    try:
        # attention as plain matrix products, which have a formula on every device
        with mode, counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            place = next(iter(shapes.values())).device  # "meta" where the model has no memory yet
            functional_call(model, shapes, (mode.from_tensor(sample.to(place)),))
    finally:
        model.train(training)
    return float(counter.get_total_flops() * BACKWARD_AND_FORWARD)


@dataclass(frozen=True)
class Utilisation:
    """What turns samples per second into a fraction of the peak."""

    flops_per_sample: float
    peak_flops_per_s: float  # of all devices together

    def of(self, samples_per_s: float) -> float:
        """The model FLOPs utilisation, 0 to 1."""
        return self.flops_per_sample * samples_per_s / self.peak_flops_per_s


def utilisation(
    model: nn.Module, sample: Tensor, device_name: str, dtype: str, devices: int
) -> Utilisation | None:
    """The utilisation of a run on `devices` GPUs of one kind; None when their peak is not known."""
    peak = peak_of(device_name, dtype)
    if peak is None:
        log.info("event=no-peak device=%r dtype=%s", device_name, dtype)
        return None
    return Utilisation(flops_per_sample(model, sample), peak * devices)

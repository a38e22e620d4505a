"""Operations per sample, and the part of the peak that a run reaches (model FLOPs utilisation).

The count includes matrix products, convolutions and attention, with two operations per multiply-add. A
backward pass costs twice its forward pass. Recomputed activations do not count. Source: Chowdhery et al.,
"PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.
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
LONGEST = 300  # characters of a reason in the log
log = logging.getLogger(__name__)


def flops_per_sample(model: nn.Module, sample: Tensor) -> float:
    """Return the operations of one training step per sample, counted in a forward pass on fake tensors.

    Args:
        model: the whole model, before it is spread, on any device; it is left unchanged.
        sample: an input of batch size 1, on any device; only its shape and type matter.
    """
    mode = FakeTensorMode()  # meta tensors that keep their device, and that transformers recognises as traced
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes: dict[str, Tensor] = {name: mode.from_tensor(tensor.detach()) for name, tensor in tensors.items()}
    batch = mode.from_tensor(sample)  # first: within the mode a real tensor cannot change its device
    training = model.training
    model.eval()
    counter = FlopCounterMode(display=False)
    try:
        # attention as plain matrix products, which have a formula on every device
        with mode, counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            place = next(iter(shapes.values())).device  # "meta" where the model has no memory yet
            functional_call(model, shapes, (batch.to(place),))
    finally:
        model.train(training)
    return float(counter.get_total_flops() * BACKWARD_AND_FORWARD)


@dataclass(frozen=True)
class Utilisation:
    """Conversion of samples per second into a fraction of the peak."""

    flops_per_sample: float
    peak_flops_per_s: float  # of all devices together

    def of(self, samples_per_s: float) -> float:
        """Return the model FLOPs utilisation, 0 to 1."""
        return self.flops_per_sample * samples_per_s / self.peak_flops_per_s


def utilisation(
    model: nn.Module, sample: Tensor, device_name: str, dtype: str, devices: int
) -> Utilisation | None:
    """Return the utilisation of a run on `devices` GPUs of one kind.

    None if their peak is unknown, or if the operations cannot be counted, as in a model that reads the values
    of its tensors. A missing figure does not end a run.
    """
    peak = peak_of(device_name, dtype)
    if peak is None:
        log.info("event=no-peak device=%r dtype=%s", device_name, dtype)
        return None
    try:
        return Utilisation(flops_per_sample(model, sample), peak * devices)
    except Exception as error:  # noqa: BLE001 - a user's model may raise anything where tensors have no values
        log.warning("event=operations-not-counted reason=%r", f"{type(error).__name__}: {error}"[:LONGEST])
        return None

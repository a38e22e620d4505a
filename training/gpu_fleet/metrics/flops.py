"""Operations per sample, and the part of the peak that a run reaches (model FLOPs utilisation).

Matrix products, convolutions and attention, two operations per multiply-add; a backward pass costs two
forward passes: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, appendix B.
"""

import logging
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

BACKWARD_AND_FORWARD, TERA = 3, 10**12
LONGEST = 300  # characters of a reason in the log
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Peak:
    """Dense floating-point operations per second, in units of 10^12; None where the GPU lacks the format."""

    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float

    def of(self, dtype: str) -> float | None:
        """Return the operations per second in `precision.dtype` fp32, tf32, bf16 or fp16."""
        value: float | None = getattr(self, dtype)
        return None if value is None else value * TERA


# Sources of PEAKS, which are dense: without the "sparsity" of the datasheets. A number marked S is half of
# the published sparse one, because the sheet has no dense number.
#  T4     https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
#  V100   https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
#  A10    https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf
#  A10G   https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf
#  A30    https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf
#  A100   https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
#  L4     https://resources.nvidia.com/en-us-data-center-overview/l4-gpu-datasheet (S)
#  L40S   https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413
#  H100   https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet (S)
#  H200   https://resources.nvidia.com/en-us-data-center-overview/hpc-datasheet-sc23-h200 (S)
#  H20, L20  sold in China only, no public sheet; the figures that torchtitan and its kin use
#  B200, B300  https://www.nvidia.com/en-us/data-center/hgx/ (an eighth of the baseboard; S)
# The key is a part of the name that CUDA reports; the longest match counts, so that "A10G" is no "A10".
PEAKS = {
    "T4": Peak(8.1, None, None, 65),
    "V100-SXM2": Peak(15.7, None, None, 125),
    "A10": Peak(31.2, 62.5, 125, 125),
    "A10G": Peak(35, 35, 70, 70),
    "A30": Peak(10.3, 82, 165, 165),
    "A100": Peak(19.5, 156, 312, 312),
    "A800": Peak(19.5, 156, 312, 312),
    "L4": Peak(30.3, 60, 121, 121),
    "L20": Peak(59.8, 59.8, 119.5, 119.5),
    "L40S": Peak(91.6, 183, 362, 362),
    "H20": Peak(44, 74, 148, 148),
    "H100 80GB HBM3": Peak(67, 494.5, 989.5, 989.5),
    "H100 PCIe": Peak(51, 378, 756.5, 756.5),
    "H100 NVL": Peak(60, 417.5, 835.5, 835.5),
    "H800": Peak(67, 494.5, 989.5, 989.5),
    "H200": Peak(67, 494.5, 989.5, 989.5),
    "H200 NVL": Peak(60, 417.5, 835.5, 835.5),
    "B200": Peak(75, 1125, 2250, 2250),
    "B300": Peak(75, 1125, 2250, 2250),
}


def peak_of(device_name: str, dtype: str) -> float | None:
    """Return the peak of the GPU that CUDA calls `device_name`, by whole words: "H200" is no "H20"."""
    matches = [name for name in PEAKS if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", device_name)]
    return PEAKS[max(matches, key=len)].of(dtype) if matches else None


def flops_per_sample(model: nn.Module, sample: Tensor) -> float:
    """Return the operations of a step per sample, counted on fake tensors; `sample` is a batch of 1."""
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
    """Return the utilisation on `devices` GPUs; None if peak or operations are not known."""
    peak = peak_of(device_name, dtype)
    if peak is None:
        log.info("event=no-peak device=%r dtype=%s", device_name, dtype)
        return None
    try:
        return Utilisation(flops_per_sample(model, sample), peak * devices)
    except Exception as error:  # noqa: BLE001 - a user's model may raise anything where tensors have no values
        log.warning("event=operations-not-counted reason=%r", f"{type(error).__name__}: {error}"[:LONGEST])
        return None

"""Peak operations per second of the known GPUs, dense: without the "sparsity" of the datasheets.

A number marked S is half of the published sparse one, because the sheet has no dense number.
Sources, by the name of the table:
  T4     https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf
  V100   https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf
  A10    https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf
  A10G   https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf
  A30    https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf
  A100   https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf
  L4     https://resources.nvidia.com/en-us-data-center-overview/l4-gpu-datasheet (S)
  L40S   https://resources.nvidia.com/en-us-l40s/l40s-datasheet-28413
  H100   https://resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet (S)
  H200   https://resources.nvidia.com/en-us-data-center-overview/hpc-datasheet-sc23-h200 (S)
  H20, L20  sold in China only, no public sheet; the figures that torchtitan and its kin use
  B200, B300  https://www.nvidia.com/en-us/data-center/hgx/ (an eighth of the baseboard; S)
"""

import re
from dataclasses import dataclass

TERA = 10**12


@dataclass(frozen=True)
class Peak:
    """Dense floating-point operations per second, in units of 10^12; None where the GPU lacks the format."""

    fp32: float
    tf32: float | None
    bf16: float | None
    fp16: float

    def of(self, dtype: str) -> float | None:
        """Return the operations per second in `precision.dtype` fp32, tf32, bf16 or fp16."""
        value = {"fp32": self.fp32, "tf32": self.tf32, "bf16": self.bf16, "fp16": self.fp16}[dtype]
        return None if value is None else value * TERA


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
    """Return the peak operations per second of the GPU that CUDA calls `device_name`; None if not known.

    Names are matched by whole words: "H200" is no "H20".
    """
    matches = [name for name in PEAKS if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", device_name)]
    return PEAKS[max(matches, key=len)].of(dtype) if matches else None

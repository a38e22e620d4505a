"""Multi-Instance GPU: into what a GPU of a type can be cut. Pure.

A table because NVIDIA's names follow from the memory by no rule that holds for every model.
"""

from stacks.instance_types import InstanceType

_A100_80 = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
# (architecture, nominal memory in GiB) -> profiles;
# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
# Those with media extensions (+me) exist once a GPU and are left out: all parts of one are equal here.
PROFILES = {
    ("ampere", 40): ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    ("ampere", 80): _A100_80,
    ("hopper", 80): _A100_80,
    ("hopper", 96): ("1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"),
    ("hopper", 141): ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    ("blackwell", 179): ("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
    ("blackwell", 268): ("1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"),
}


def profiles_of(kind: InstanceType) -> tuple[str, ...]:
    """The profiles that each GPU of a type can be cut into; empty where its GPUs know no instances."""
    return PROFILES.get((kind.gpu_architecture, kind.gpu_memory_gib), ())

"""Facts of a GPU instance type of either cloud."""

import datetime
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Literal

# NVIDIA's open kernel modules run on Turing and later
# (github.com/NVIDIA/open-gpu-kernel-modules, README, "Compatible GPUs").
TOO_OLD_FOR_OPEN_MODULES = frozenset({"volta"})

# MIG profiles of each GPU; a table, because no single rule derives NVIDIA's names from the memory of every
# model.
_A100_80 = ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
# (architecture, nominal memory in GiB) -> profiles;
# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
# Profiles with media extensions (+me) are left out: a GPU has only one of them, and here all parts are equal.
MIG_PROFILES = {
    ("ampere", 40): ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    ("ampere", 80): _A100_80,
    ("hopper", 80): _A100_80,
    ("hopper", 96): ("1g.12gb", "1g.24gb", "2g.24gb", "3g.48gb", "4g.48gb", "7g.96gb"),
    ("hopper", 141): ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
    ("blackwell", 179): ("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb"),
    ("blackwell", 268): ("1g.34gb", "1g.67gb", "2g.67gb", "3g.135gb", "4g.135gb", "7g.269gb"),
}


class Cloud(StrEnum):
    """The clouds that a stack can be on."""

    AWS = "aws"
    ALICLOUD = "alicloud"


Architecture = Literal["volta", "turing", "ampere", "ada", "hopper", "blackwell"]
InterfaceType = Literal["efa", "efa-only", "interface"]


@dataclass(frozen=True)
class NetworkCard:
    """The interface of one network card, as EC2's ``NetworkInterfaceSpecification`` names it.

    Attributes:
        card_index: the card, counted from 0.
        interface_type: ``efa`` (with an IP address), ``efa-only`` (without) or ``interface`` (no EFA).
    """

    card_index: int
    device_index: int
    interface_type: InterfaceType


@dataclass(frozen=True)
class Price:
    """An on-demand list price for Linux.

    Attributes:
        amount_per_hour: in ``currency``, before tax and discount.
        currency: ISO 4217 code.
        date: the day the price was read from the cloud.
        until: the day from which on another price holds; None for none that was announced.
    """

    amount_per_hour: Decimal
    currency: str
    region: str
    date: datetime.date
    source: str
    until: datetime.date | None = None


@dataclass(frozen=True)
class InstanceType:
    """Facts of one instance type.

    Attributes:
        name: the name in the cloud's API.
        gpu_model: NVIDIA's name, without the maker's; None where the cloud does not publish it.
        gpu_memory_gib: nominal memory of each GPU; the driver reports a little less.
        gpu_architecture: NVIDIA's generation.
        vcpu: default number of virtual CPUs.
        local_nvme_gib: total instance-store NVMe, rounded down; 0 for none.
        network_gbps: sustained bandwidth of all cards in Gbit/s, without bursts.
        efa_interfaces: the most Elastic Fabric Adapters; 0 on Alibaba Cloud.
        erdma_interfaces: elastic RDMA interfaces to ask for; 0 for none, and on AWS. Alibaba Cloud publishes
            which families support them but not how many, so it is 1, the primary interface.
        network_cards: one interface for each card, so that every adapter is used; empty on Alibaba Cloud,
            whose types have no cards.
        quota_code: Service Quotas code for on-demand use, counted in vCPU; None where unknown or none.
        price: None where no list price has a source.
        source: the source of all facts but the price, with the date.
    """

    name: str
    cloud: Cloud
    gpu_count: int
    gpu_model: str | None
    gpu_memory_gib: int
    gpu_architecture: Architecture
    vcpu: int
    memory_gib: Decimal
    local_nvme_gib: int
    network_gbps: float
    efa_interfaces: int
    erdma_interfaces: int
    network_cards: tuple[NetworkCard, ...]
    quota_code: str | None
    quota_code_spot: str | None
    price: Price | None
    source: str

    @property
    def instance_store_scratch(self) -> bool:
        """Return whether /scratch is on local disks, which a stop empties."""
        return self.local_nvme_gib > 0

    @property
    def runs_bundled_image(self) -> bool:
        """Return whether this project's image, with NVIDIA's open kernel modules, drives the GPU."""
        return self.gpu_architecture not in TOO_OLD_FOR_OPEN_MODULES

    @property
    def mig_profiles(self) -> tuple[str, ...]:
        """MIG profiles of each GPU; empty where the GPUs have no MIG."""
        return MIG_PROFILES.get((self.gpu_architecture, self.gpu_memory_gib), ())

"""The NCCL and network environment of each instance type, in one table.

What the newest plugins already do by themselves is left out: aws-ofi-nccl sets NCCL_BUFFSIZE,
NCCL_P2P_NET_CHUNKSIZE and the NVLS chunk sizes per platform (its src/platform-aws.cpp), and its guide says to
leave NCCL_PROTO, NCCL_MIN_NCHANNELS and FI_EFA_FORK_SAFE alone.

Sources:
  efa    https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md
         https://github.com/aws-samples/awsome-distributed-training/blob/main/1.architectures/efa-cheatsheet.md
  erdma  https://www.alibabacloud.com/help/en/pai/user-guide/erdma-distributed-training-with-high-performance-networks
"""

import fcntl
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_fleet.pool.identity import Expected

# The EFA provider of libfabric and nothing else: a pool that declares EFA must not fall back to TCP unseen.
# Huge pages off: reader processes fork, and a fork fails where the huge pages have run out.
EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
# GPUDirect RDMA has to be asked for with libfabric < 1.18 or aws-ofi-nccl < 1.7, and may be asked for later.
EFA_RDMA = {**EFA, "FI_EFA_USE_DEVICE_RDMA": "1"}
ERDMA = {
    "NCCL_IB_HCA": "erdma",
    "NCCL_IB_GID_INDEX": "1",
    "NCCL_IB_QPS_PER_CONNECTION": "8",
    "NCCL_MIN_NCHANNELS": "16",
    "NCCL_NET_PLUGIN": "none",  # the verbs transport inside NCCL
}
# Sockets carry the bootstrap, and everything where there is no RDMA; never over Docker or loopback.
AWS_SOCKETS = {"NCCL_SOCKET_IFNAME": "^docker,lo,veth"}
ALICLOUD_SOCKETS = {"NCCL_SOCKET_IFNAME": "eth0"}

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915  # the request of netdevice(7): struct ifreq, 40 bytes, the address at 20


@dataclass(frozen=True)
class FamilyNetwork:
    """What the instances of one family need."""

    sockets: Mapping[str, str]
    rdma: Mapping[str, str] = field(default_factory=dict)  # only where the pool has the interfaces


# By the start of the instance type; the longest match counts.
TABLE = {
    "": FamilyNetwork(AWS_SOCKETS, EFA),  # g4dn, g5, g6, g6e: EFA without GPUDirect RDMA
    "p4d.": FamilyNetwork(AWS_SOCKETS, EFA_RDMA),
    "p4de.": FamilyNetwork(AWS_SOCKETS, EFA_RDMA),
    "p5.": FamilyNetwork(AWS_SOCKETS, EFA_RDMA),
    "p5.4xlarge": FamilyNetwork(AWS_SOCKETS, EFA),  # one GPU, no GPUDirect RDMA (platform-aws.cpp)
    "p5e.": FamilyNetwork(AWS_SOCKETS, EFA_RDMA),
    "p5en.": FamilyNetwork(AWS_SOCKETS, EFA_RDMA),
    "p6-b200.": FamilyNetwork(AWS_SOCKETS, EFA_RDMA),
    "p6-b300.": FamilyNetwork(AWS_SOCKETS, EFA_RDMA),
    "ecs.": FamilyNetwork(ALICLOUD_SOCKETS, ERDMA),
}


def environment(instance_type: str, expected: Expected, given: Mapping[str, str]) -> dict[str, str]:
    """The variables to add for `instance_type`.

    Args:
        instance_type: such as "p5.48xlarge" or "ecs.ebmgn8v.48xlarge".
        expected: what the pool has of it; RDMA is set up only where it has the interfaces.
        given: the environment as it is; what a user has set stays.
    """
    prefix = max((start for start in TABLE if instance_type.startswith(start)), key=len)
    network = TABLE[prefix]
    has_rdma = expected.efa_interfaces > 0 or expected.erdma_interfaces > 0
    wanted = {**network.sockets, **(network.rdma if has_rdma else {})}
    return {name: value for name, value in wanted.items() if name not in given}


def control_environment(address: str, given: Mapping[str, str]) -> dict[str, str]:
    """The variable that has Gloo listen at `address`, where the other instances look for it.

    Gloo else takes what the host's own name resolves to, or loopback where it resolves to nothing:
    createDefaultDevice in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.
    """
    interface = interface_of(address)
    return {} if interface is None or GLOO_INTERFACE in given else {GLOO_INTERFACE: interface}


def interface_of(address: str) -> str | None:
    """The network interface that has this IPv4 address; None when there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("40s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None

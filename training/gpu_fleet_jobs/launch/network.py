"""The NCCL and network environment of each instance type, in one table.

The table omits variables that the newest plugins set themselves. aws-ofi-nccl sets NCCL_BUFFSIZE,
NCCL_P2P_NET_CHUNKSIZE and the NVLS chunk sizes per platform (its src/platform-aws.cpp). Its guide says not to
set NCCL_PROTO, NCCL_MIN_NCHANNELS and FI_EFA_FORK_SAFE.

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

from gpu_fleet_jobs.launch.identity import Expected

# Only the EFA provider of libfabric: a pool that declares EFA must not fall back to TCP silently.
# No huge pages: reader processes fork, and a fork fails when the huge pages have run out.
EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
# libfabric < 1.18 and aws-ofi-nccl < 1.7 use GPUDirect RDMA only with this variable; newer ones accept it.
EFA_RDMA = {**EFA, "FI_EFA_USE_DEVICE_RDMA": "1"}
ERDMA = {
    "NCCL_IB_HCA": "erdma",
    "NCCL_IB_GID_INDEX": "1",
    "NCCL_IB_QPS_PER_CONNECTION": "8",
    "NCCL_MIN_NCHANNELS": "16",
    "NCCL_NET_PLUGIN": "none",  # the verbs transport inside NCCL
}
# Sockets carry the bootstrap, and all traffic where there is no RDMA. They never use Docker or loopback.
AWS_SOCKETS = {"NCCL_SOCKET_IFNAME": "^docker,lo,veth"}
ALICLOUD_SOCKETS = {"NCCL_SOCKET_IFNAME": "eth0"}

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915  # the request of netdevice(7): struct ifreq, 40 bytes, the address at 20


@dataclass(frozen=True)
class FamilyNetwork:
    """Environment variables for the instances of one family."""

    sockets: Mapping[str, str]
    rdma: Mapping[str, str] = field(default_factory=dict)  # only where the pool has the interfaces


# The key is the start of the instance type; the longest match counts.
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
    """Return the variables to add for `instance_type`.

    Args:
        instance_type: such as "p5.48xlarge" or "ecs.ebmgn8v.48xlarge".
        expected: hardware that the pool promises for it; RDMA is set up only with such interfaces.
        given: the present environment; variables that a user has set stay.
    """
    prefix = max((start for start in TABLE if instance_type.startswith(start)), key=len)
    network = TABLE[prefix]
    has_rdma = expected.efa_interfaces > 0 or expected.erdma_interfaces > 0
    wanted = {**network.sockets, **(network.rdma if has_rdma else {})}
    return {name: value for name, value in wanted.items() if name not in given}


def control_environment(address: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that makes Gloo listen at `address`, which the other instances can reach.

    Otherwise Gloo uses the address of the host's own name, or loopback if the name does not resolve:
    createDefaultDevice in torch/csrc/distributed/c10d/ProcessGroupGloo.cpp. The result is empty if a user has
    set the variable, or if no interface has this address.
    """
    interface = interface_of(address)
    return {} if interface is None or GLOO_INTERFACE in given else {GLOO_INTERFACE: interface}


def interface_of(address: str) -> str | None:
    """Return the network interface that has this IPv4 address; None if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, SIOCGIFADDR, struct.pack("40s", name.encode()))
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None

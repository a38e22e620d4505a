"""The NCCL and network environment of each instance type, in one table.

What the newest plugins already do by themselves is left out: aws-ofi-nccl sets NCCL_BUFFSIZE,
NCCL_P2P_NET_CHUNKSIZE and the NVLS chunk sizes per platform (its src/platform-aws.cpp), and its guide says to
leave NCCL_PROTO, NCCL_MIN_NCHANNELS and FI_EFA_FORK_SAFE alone.

Sources:
  efa    https://github.com/aws/aws-ofi-nccl/blob/master/doc/efa-env-var.md
         https://github.com/aws-samples/awsome-distributed-training/blob/main/1.architectures/efa-cheatsheet.md
  erdma  https://www.alibabacloud.com/help/en/pai/user-guide/erdma-distributed-training-with-high-performance-networks
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from training.pool.identity import Expected

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


@dataclass(frozen=True)
class Network:
    """What the machines of one family need."""

    sockets: Mapping[str, str]
    rdma: Mapping[str, str] = field(default_factory=dict)  # only where the pool has the interfaces


# By the start of the instance type; the longest match counts.
TABLE = {
    "": Network(AWS_SOCKETS, EFA),  # g4dn, g5, g6, g6e: EFA without GPUDirect RDMA
    "p4d.": Network(AWS_SOCKETS, EFA_RDMA),
    "p4de.": Network(AWS_SOCKETS, EFA_RDMA),
    "p5.": Network(AWS_SOCKETS, EFA_RDMA),
    "p5.4xlarge": Network(AWS_SOCKETS, EFA),  # one GPU, no GPUDirect RDMA (platform-aws.cpp)
    "p5e.": Network(AWS_SOCKETS, EFA_RDMA),
    "p5en.": Network(AWS_SOCKETS, EFA_RDMA),
    "p6-b200.": Network(AWS_SOCKETS, EFA_RDMA),
    "p6-b300.": Network(AWS_SOCKETS, EFA_RDMA),
    "ecs.": Network(ALICLOUD_SOCKETS, ERDMA),
}


def environment(instance_type: str, expected: Expected, given: Mapping[str, str]) -> dict[str, str]:
    """The variables to add for `instance_type`.

    Args:
        instance_type: such as "p5.48xlarge" or "ecs.ebmgn8v.48xlarge".
        expected: what the pool has of it; RDMA is set up only where it has the interfaces.
        given: the environment as it is; what a person has set stays.
    """
    prefix = max((start for start in TABLE if instance_type.startswith(start)), key=len)
    network = TABLE[prefix]
    has_rdma = expected.efa_interfaces > 0 or expected.erdma_interfaces > 0
    wanted = {**network.sockets, **(network.rdma if has_rdma else {})}
    return {name: value for name, value in wanted.items() if name not in given}

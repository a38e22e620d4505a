"""Rendezvous of the instances or pods of a run, and the variables by which a scheduler describes it.

Kubernetes (`render`) and Kubeflow Trainer set PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT and
PET_NPROC_PER_NODE, which torchrun itself reads:
https://github.com/kubeflow/trainer/blob/v2.3.0/pkg/runtime/framework/plugins/torch/torch.go
"""

import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_fleet.core.errors import LaunchError

PORT = 29400  # port of the c10d rendezvous; the default of torch.distributed
JOIN_TIMEOUT_S = 900  # longest wait for all pods: a new node has to start and pull the image first
LOOK_EVERY_S, CONNECT_TIMEOUT_S = 1.0, 5.0
NODES, RANK, HOST, HOST_PORT = "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"
PROCESSES = "PET_NPROC_PER_NODE"
BY_TORCHRUN = ("", "auto", "gpu", "cpu")  # values of PROCESSES for which torchrun finds the number
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rendezvous:
    """Place where one instance or pod meets the others."""

    nodes: int
    host: str  # address or name
    own_address: str
    is_host: bool  # this one hosts the rendezvous
    port: int = PORT

    @property
    def options(self) -> list[str]:
        """Options of torchrun."""
        # is_host is explicit: torchrun would guess it from host names, which may not resolve
        configuration = f"is_host={str(self.is_host).lower()},join_timeout={JOIN_TIMEOUT_S}"
        return [
            f"--nnodes={self.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.host}:{self.port}",
            f"--rdzv-conf={configuration}",
            f"--local-addr={self.own_address}",
        ]


@dataclass(frozen=True)
class Assignment:
    """The part of a run that a scheduler has given to this pod."""

    nodes: int
    rank: int
    host: str
    port: int
    processes: int | None  # None: as many as there are GPUs


def assignment(given: Mapping[str, str]) -> Assignment | None:
    """Return the assignment in the environment; None if no scheduler has set one.

    Raises LaunchError that names a wrong variable.
    """
    if NODES not in given:
        return None
    nodes, rank = _number(given, NODES, 1), _number(given, RANK, 0, "0")
    if rank >= nodes:
        raise LaunchError(f"{RANK} = {rank}: must be below {NODES} = {nodes}")
    if nodes > 1 and not given.get(HOST):
        raise LaunchError(f"{HOST} = '': must name pod 0, since {NODES} = {nodes}")
    processes = None if given.get(PROCESSES, "") in BY_TORCHRUN else _number(given, PROCESSES, 1)
    return Assignment(nodes, rank, given.get(HOST, ""), _number(given, HOST_PORT, 1, str(PORT)), processes)


def _number(given: Mapping[str, str], name: str, least: int, default: str = "") -> int:
    text = given.get(name, default)
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise LaunchError(f"{name} = {text!r}: must be a whole number from {least}")
    return int(text)


def join(
    mine: Assignment,
    *,
    address: Callable[[Assignment], str] | None = None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Rendezvous | None:
    """Wait until pod 0 can be reached. Return the rendezvous; None for a run of one pod.

    Pods start in any order. When pod 0 was replaced, its name resolves to the old pod for a while. Raises
    LaunchError after JOIN_TIMEOUT_S.
    """
    if mine.nodes == 1:
        return None
    look = address or (_own_name if mine.rank == 0 else _towards_host)
    begun, reason = clock(), ""
    while clock() - begun < JOIN_TIMEOUT_S:
        try:
            own = look(mine)
            return Rendezvous(mine.nodes, mine.host, own, is_host=mine.rank == 0, port=mine.port)
        except OSError as error:
            if str(error) != reason:
                reason = str(error)
                log.warning("event=waiting-for-pod-0 at=%s:%d reason=%r", mine.host, mine.port, reason)
            pause(LOOK_EVERY_S)
    raise LaunchError(f"{HOST} = {mine.host!r}: not reached in {JOIN_TIMEOUT_S} s: {reason}")


def _own_name(mine: Assignment) -> str:
    """Return the address of pod 0, which is this pod; raises OSError while its name means another pod."""
    family, kind, _, _, place = socket.getaddrinfo(mine.host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as trial:
        trial.bind(place)  # fails unless the address is of this pod
    return str(place[0])


def _towards_host(mine: Assignment) -> str:
    """Return this pod's address towards pod 0; raises OSError unless torchrun listens there."""
    with socket.create_connection((mine.host, mine.port), CONNECT_TIMEOUT_S) as connection:
        return str(ipaddress.ip_address(connection.getsockname()[0]))

"""Ports of this computer for the rendezvous of processes."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port(address: str = "127.0.0.1") -> Iterator[int]:
    """Reserve a port for the block; a process of the test may listen at it.

    A port that is free but not reserved may get another test's process. A port that is bound and does not
    listen is given to no connection and to no bind to port 0. Linux lets a second socket listen there if
    both set SO_REUSEADDR, as stores of torch do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, 0))
        yield held.getsockname()[1]

"""Ports of this computer for processes that are told where to meet."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port(address: str = "127.0.0.1") -> Iterator[int]:
    """A port that nobody else is given in the block, and where a process may listen meanwhile.

    A port that was free and is let go may be another test's when it is used. One that is bound and does not
    listen is given to no connection and to no bind to port 0; Linux lets a second socket listen there where
    both say SO_REUSEADDR, as stores of torch do.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((address, 0))
        yield held.getsockname()[1]

"""Account at the other end of a connection on this host, from the kernel's owner of that socket.

A socket belongs to the account that made it, whoever holds it now. That holds through user namespaces too:
root of a container that a user started is that user here.
https://docs.kernel.org/networking/proc_net_tcp.html
"""

import pwd
import struct
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from gpu_fleet_image.instance.credentials.errors import NotServedError
from gpu_fleet_image.instance.credentials.sessions import check_account

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
ESTABLISHED = "01"  # tcp_states.h, TCP_ESTABLISHED
LOCAL, _REMOTE, STATE, OWNER, _INODE = 1, 2, 3, 7, 9  # columns of the tables
_NO_INODE = "0"  # a socket that its process has closed; the kernel reports root as its owner
VARIABLES = "AWS_CONTAINER_CREDENTIALS_FULL_URI and ALIBABA_CLOUD_CREDENTIALS_URI"
TRAINER = "gpu-fleet"  # the account of trainer@.service
_USER_UIDS = range(1000, 60000)  # numbers of users' accounts (Debian policy, 9.2.2)
NO_SHELL = (
    "/usr/sbin/nologin",
    "/sbin/nologin",
    "/bin/false",
)  # of users who left (image/gpu_fleet_image/instance/accounts/changes.py)

End = tuple[str, int]


def account_of(client: End, server: End, tables: Iterable[Path] = TABLES) -> str:
    """Return the account's name at the other end of a connection, which must still be open.

    Args:
        client: IPv4 address and port of the other end.
        server: of this end.

    Raises:
        NotServedError: the kernel knows no owner, or the owner is not a user.
    """
    owners = set(_owners(client, server, tables))
    if len(owners) != 1:
        raise NotServedError("the owner of this connection is not known: no credentials")
    (uid,) = owners
    if uid == 0:
        raise NotServedError("root uses the instance's role, from the metadata service: unset " + VARIABLES)
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise NotServedError(f"user {uid} has no account on this instance: no credentials") from None
    name = entry.pw_name
    if uid not in _USER_UIDS and name != TRAINER:
        raise NotServedError(f"account {name!r} is a service's, not a user's: no credentials")
    if entry.pw_shell in NO_SHELL and name != TRAINER:
        raise NotServedError(f"account {name!r} is locked: no credentials")
    check_account(name)
    return name


def _owners(client: End, server: End, tables: Iterable[Path]) -> Iterator[int]:
    """Yield the owner of the socket whose own end is the client's and whose other end is the server's."""
    wanted = [(_written(client, wide), _written(server, wide)) for wide in (False, True)]
    for table in tables:
        try:
            rows = table.read_text(encoding="ascii").splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for columns in map(str.split, rows):
            if (columns[LOCAL], columns[_REMOTE]) not in wanted:
                continue
            if columns[STATE] == ESTABLISHED and columns[_INODE] != _NO_INODE:
                yield int(columns[OWNER])


def _written(end: End, wide: bool) -> str:
    """Return address and port in the tables' form; ``wide`` for an IPv6 socket with an IPv4 address."""
    address = IPv4Address(end[0])
    packed = IPv6Address(f"::ffff:{address}").packed if wide else address.packed
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"

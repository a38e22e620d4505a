"""``run image.readiness.user_access CLOUD``: what a user reaches: not the metadata service, but credentials.

The gate runs it as the trainer's account, and reads the JSON that it prints.
"""

import errno
import http.client
import json
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from image.credentials import service
from image.credentials.callers import TRAINER
from image.instance.metadata import SERVICES

# Where the metadata services answer; metadata.nft has the same.
ADDRESSES = {"aws": ("169.254.169.254", "fd00:ec2::254"), "alicloud": ("100.100.100.200",)}
PORT = 80
# The tunnel to EFS (mount-home). Who speaks NFS there writes the homes as any user; metadata.nft closes it.
HOMES = ("127.0.0.1", 20049)
# How a connection ends that rules refuse, or to which no way leads.
REFUSED = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM})
ADDRESS_UNUSABLE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})  # an instance without IPv6
TIMEOUT_S = 10.0  # the service's own call to STS is in it
LONGEST_S = 60.0
RUN = Path("/opt/gpu-fleet/bin/run")
HTTP_OK = 200
KEYS = ("AccessKeyId", "SecretAccessKey", "Token", "AccessKeySecret", "SecurityToken", "Expiration")


def probed(cloud: str) -> tuple[str, str]:
    """Why the metadata service is not closed to users, and why they get no credentials; empty for no reason.

    Where the environment says that the service is elsewhere, as in rehearsals, nothing is looked at.
    """
    if SERVICES[cloud][0] in os.environ:
        return "", ""
    command = [sys.executable, "-I", str(RUN), "image.readiness.user_access", cloud]
    try:
        account = pwd.getpwnam(TRAINER)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=LONGEST_S,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=(),
        )
        said = json.loads(done.stdout)
        return str(said["metadata"]), str(said["credentials"])
    except subprocess.CalledProcessError as error:
        why = f"not known: {error.stderr.strip()[-300:]}"
    except (KeyError, OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        why = f"not known: {error!r}"
    return why, why


def metadata_problem(addresses: Sequence[str], port: int = PORT) -> str:
    """Which metadata service this process reaches; empty for none."""
    reached = []
    for address in addresses:
        connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/latest/meta-data/")
            reached.append(f"{address} answers users with {connection.getresponse().status}")
        except OSError as error:
            if error.errno not in REFUSED | ADDRESS_UNUSABLE:
                reached.append(f"{address} does not refuse users: {error}")
        except http.client.HTTPException as error:
            reached.append(f"{address} answers users: {error!r}")
        finally:
            connection.close()
    return "; ".join(reached)


def homes_problem(address: str = HOMES[0], port: int = HOMES[1]) -> str:
    """Why this process reaches the shared homes past the kernel's mount; empty where it does not."""
    try:
        socket.create_connection((address, port), timeout=TIMEOUT_S).close()
    except OSError as error:
        return "" if error.errno in REFUSED else f"the homes at port {port} do not refuse users: {error}"
    return f"the homes at port {port} are open to users"


def credentials_problem(address: str = service.ADDRESS, port: int = service.PORT) -> str:
    """Why this process gets no credentials; empty when it does."""
    where = f"http://{address}:{port}{service.CREDENTIALS}"
    connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", service.CREDENTIALS)
        answer = connection.getresponse()
        said = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{where}: {error!r}"
    finally:
        connection.close()
    if answer.status != HTTP_OK:
        return f"{where}: {answer.status} {said.get('Message')}"
    missing = [key for key in KEYS if not said.get(key)]
    return f"{where}: {', '.join(missing)} missing" if missing else ""


def main(words: Sequence[str]) -> int:
    """Prints both problems."""
    if len(words) != 1 or words[0] not in ADDRESSES:
        sys.stderr.write(f"error: user_access CLOUD; allowed: {', '.join(ADDRESSES)}\n")
        return 2
    homes = homes_problem()
    closed = "; ".join(filter(None, (metadata_problem(ADDRESSES[words[0]]), homes)))
    sys.stdout.write(json.dumps({"metadata": closed, "credentials": credentials_problem()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

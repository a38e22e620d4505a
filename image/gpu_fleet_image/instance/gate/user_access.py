"""``run gpu_fleet_image.instance.gate.user_access CLOUD WHAT...``.

Tests a user's access: credentials, and no metadata service.

The gate runs it as the trainer's account, and reads its JSON output.
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

from gpu_fleet_image.core.metadata import SERVICES
from gpu_fleet_image.instance.credentials import service
from gpu_fleet_image.instance.credentials.callers import TRAINER

# Addresses of the metadata services; metadata.nft has the same.
ADDRESSES = {"aws": ("169.254.169.254", "fd00:ec2::254"), "alicloud": ("100.100.100.200",)}
PORT = 80
# The tunnel to EFS (mount-home). An NFS client there can write the homes as any user; metadata.nft closes it.
HOMES = ("127.0.0.1", 20049)
# Errors of a connection that rules refuse, or that has no route.
REFUSED = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM})
_ADDRESS_UNUSABLE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})  # an instance without IPv6
TIMEOUT_S = 10.0  # includes the service's own call to STS
LONGEST_S = 60.0
_HEALTH_S = 15.0  # queue-health has 25 s in all
RUN = Path("/opt/gpu-fleet/bin/run")
_HTTP_OK = 200
KEYS = ("AccessKeyId", "SecretAccessKey", "Token", "AccessKeySecret", "SecurityToken", "Expiration")


def probed(cloud: str) -> tuple[str, str]:
    """Return why the metadata service is not closed to users, and why they get no credentials; else empty."""
    metadata, credentials = _asked(cloud, ("metadata", "credentials"), LONGEST_S)
    return metadata, credentials


def opened(cloud: str) -> str:
    """Return why the metadata service is not closed to users; for checks every half minute."""
    return _asked(cloud, ("metadata",), _HEALTH_S)[0]


def _asked(cloud: str, names: tuple[str, ...], within_s: float) -> tuple[str, ...]:
    """Return each problem by its name, as the trainer's account sees it.

    Nothing is tested if the environment moves the metadata service, as in rehearsals.
    """
    if SERVICES[cloud][0] in os.environ:
        return ("",) * len(names)
    command = [sys.executable, "-I", str(RUN), "gpu_fleet_image.instance.gate.user_access", cloud, *names]
    try:
        account = pwd.getpwnam(TRAINER)
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            timeout=within_s,
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=(),
        )
        said = json.loads(done.stdout)
        return tuple(str(said[name]) for name in names)
    except subprocess.CalledProcessError as error:
        why = f"not known: {error.stderr.strip()[-300:]}"
    except (KeyError, OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        why = f"not known: {error!r}"
    return (why,) * len(names)


def metadata_problem(addresses: Sequence[str], port: int = PORT) -> str:
    """Return the metadata services that this process reaches; empty for none."""
    reached = []
    for address in addresses:
        connection = http.client.HTTPConnection(address, port, timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/latest/meta-data/")
            reached.append(f"{address} answers users with {connection.getresponse().status}")
        except OSError as error:
            if error.errno not in REFUSED | _ADDRESS_UNUSABLE:
                reached.append(f"{address} does not refuse users: {error}")
        except http.client.HTTPException as error:
            reached.append(f"{address} answers users: {error!r}")
        finally:
            connection.close()
    return "; ".join(reached)


def homes_problem(address: str = HOMES[0], port: int = HOMES[1]) -> str:
    """Return how this process reaches the shared homes past the kernel's mount; empty if it does not."""
    try:
        socket.create_connection((address, port), timeout=TIMEOUT_S).close()
    except OSError as error:
        return "" if error.errno in REFUSED else f"the homes at port {port} do not refuse users: {error}"
    return f"the homes at port {port} are open to users"


def credentials_problem(address: str = service.ADDRESS, port: int = service.PORT) -> str:
    """Return why this process gets no credentials; empty if it does."""
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
    if answer.status != _HTTP_OK:
        return f"{where}: {answer.status} {said.get('Message')}"
    missing = [key for key in KEYS if not said.get(key)]
    return f"{where}: {', '.join(missing)} missing" if missing else ""


def main(words: Sequence[str]) -> int:
    """Print the requested problems as JSON; return the exit status."""
    cloud, *names = words or [""]
    if cloud not in ADDRESSES or not names or set(names) - {"metadata", "credentials"}:
        clouds = ", ".join(ADDRESSES)
        sys.stderr.write(f"error: user_access CLOUD WHAT...; allowed: {clouds}; metadata, credentials\n")
        return 2
    said = {}
    if "metadata" in names:
        said["metadata"] = "; ".join(filter(None, (metadata_problem(ADDRESSES[cloud]), homes_problem())))
    if "credentials" in names:
        said["credentials"] = credentials_problem()
    sys.stdout.write(json.dumps(said))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

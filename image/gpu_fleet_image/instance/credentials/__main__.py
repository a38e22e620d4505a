"""``run gpu_fleet_image.instance.credentials``.

Answers users of this instance on the socket that systemd passes on.
"""

import importlib
import logging
import os
import signal
import socket
import sys
import threading

from gpu_fleet_image.core import instance_file, paths
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.credentials.errors import CredentialsError
from gpu_fleet_image.instance.credentials.service import CredentialsServer
from gpu_fleet_image.instance.credentials.sessions import SessionKeys, Sessions, UserRole

_HANDED_OVER = 3  # the first descriptor that systemd passes (sd_listen_fds(3))


class NoRole:
    """Absent role, if the instance file names none: the service still runs, and users get an error."""

    def assume(self, account: str) -> SessionKeys:
        """Refuse. Raises CredentialsError."""
        raise CredentialsError(f"{paths.instance_file()}: user_role is missing, nothing for {account!r}")


def user_role(instance: InstanceFile, metadata: Metadata) -> UserRole:
    """Return the role in the instance file; no module of the other cloud is loaded."""
    if not instance.user_role:
        return NoRole()
    role: UserRole = importlib.import_module(
        f"gpu_fleet_image.instance.credentials.{instance.cloud}"
    ).connect(instance, metadata)
    return role


def main() -> int:
    """Run the service; return exit status 1, after one line, on a wrong instance file or without a socket."""
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    try:
        instance = instance_file.load(paths.instance_file())
        if os.environ.get("LISTEN_PID") != str(os.getpid()):
            raise CredentialsError("no socket was passed: gpu-credentials.socket starts this service")
    except InstanceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    metadata = Metadata(instance.cloud)
    sessions = Sessions(user_role(instance, metadata))
    with CredentialsServer(socket.socket(fileno=_HANDED_OVER), instance.cloud, sessions, metadata) as service:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=service.shutdown).start())
        service.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

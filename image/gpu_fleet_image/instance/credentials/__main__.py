"""``run gpu_fleet_image.instance.credentials``.

Answer users of this instance on the socket that systemd hands over.
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

HANDED_OVER = 3  # the first descriptor that systemd hands over (sd_listen_fds(3))


class NoRole:
    """In the place of a role, where the instance file names none: users hear of it, the service runs."""

    def assume(self, account: str) -> SessionKeys:
        """Raises CredentialsError."""
        raise CredentialsError(f"{paths.instance_file()}: user_role is missing, nothing for {account!r}")


def user_role(instance: InstanceFile, metadata: Metadata) -> UserRole:
    """The role that the instance file names; nothing of the other cloud is loaded."""
    if not instance.user_role:
        return NoRole()
    role: UserRole = importlib.import_module(
        f"gpu_fleet_image.instance.credentials.{instance.cloud}"
    ).connect(instance, metadata)
    return role


def main() -> int:
    """Exit status 1, and one line, when the instance file is wrong or there is no socket."""
    logging.basicConfig(level=logging.INFO, format="level=%(levelname)s %(message)s")
    try:
        instance = instance_file.load(paths.instance_file())
        if os.environ.get("LISTEN_PID") != str(os.getpid()):
            raise CredentialsError("no socket was handed over: gpu-credentials.socket starts this")
    except InstanceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    metadata = Metadata(instance.cloud)
    sessions = Sessions(user_role(instance, metadata))
    with CredentialsServer(socket.socket(fileno=HANDED_OVER), instance.cloud, sessions, metadata) as service:
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=service.shutdown).start())
        service.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())

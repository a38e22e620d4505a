"""``gpu-fleet connect``: open a shell on an instance, or forward a port, without a public port."""

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from gpu_fleet_image.core import cloud as clouds
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.model import Instance
from gpu_fleet_image.core.options import POOL_NAME, where_options
from gpu_fleet_image.core.place import Asked, Place, account_of, place_of, published
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError, PolicyError, nearest
from gpu_fleet_image.core.shared_options import note

RUNNING = "running"
_PORTS = range(1, 65_536)
# The cloud's agent, which is root, connects to the port. So ports whose service trusts root are refused: on
# AWS also by the stack's document (stacks/gpu_fleet_stacks/aws/sessions.py; a test keeps them equal), on an
# instance by metadata.nft.
SSH, USERS, ROOTS = 22, range(1024, 65_536), (2049, 20_049)
# Sources of the programs that a session needs.
ADVICE: Mapping[str, str] = {
    "aws": "the AWS CLI: https://docs.aws.amazon.com/cli/latest/userguide/getting-started-install.html",
    "session-manager-plugin": (
        "the Session Manager plugin: https://docs.aws.amazon.com/systems-manager/latest/userguide/"
        "session-manager-working-with-install-plugin.html"
    ),
    "ali-instance-cli": (
        "Session Manager CLI: https://www.alibabacloud.com/help/en/ecs/user-guide/"
        "connect-to-an-instance-by-using-ali-instance-cli"
    ),
}
NEEDS: Mapping[str, tuple[str, ...]] = {
    "aws": ("aws", "session-manager-plugin"),
    "alicloud": ("ali-instance-cli",),
}


@dataclass(frozen=True)
class Forward:
    """A port of the instance to forward to this computer.

    Attributes:
        remote: on the instance, at its own 127.0.0.1.
    """

    remote: int
    local: int


class Port(click.ParamType[Forward]):
    """Type of ``8888``, or ``8888:9999`` for another port on this computer."""

    name = "port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Forward:
        """Parse the text, or fail naming the allowed form."""
        if isinstance(value, Forward):
            return value
        remote, colon, local = str(value).partition(":")
        try:
            forward = Forward(_port(remote), _port(local if colon else remote))
        except ValueError:
            self.fail(f"{value!r}; allowed: PORT or PORT:LOCAL-PORT, say 8888 or 8888:9999", param, ctx)
        if not is_users(forward.remote):
            owned = " and ".join(map(str, ROOTS))
            self.fail(f"{value!r}; allowed: {SSH}, or from {USERS.start} on but {owned}", param, ctx)
        return forward


def is_users(port: int) -> bool:
    """Return whether a port of an instance is SSH's, or one on which a user may listen."""
    return port == SSH or (port in USERS and port not in ROOTS)


def _port(text: str) -> int:
    number = int(text) if text.isascii() and text.isdecimal() else 0
    if number not in _PORTS:
        raise ValueError(text)
    return number


def session(
    cloud: str, region: str, instance_id: str, forward: Forward | None, document: str = ""
) -> list[str]:
    """Return the command that opens a session, or forwards a port through one. Pure.

    Args:
        cloud: ``aws`` or ``alicloud``.
        forward: a port; None for a shell.
        document: the session's document (AWS); empty for Session Manager's own shell.
    """
    if cloud == "aws":
        asked = ["aws", "ssm", "start-session", "--region", region, "--target", instance_id]
        if forward is None:
            return [*asked, "--document-name", document] if document else asked
        numbers = {"portNumber": [str(forward.remote)], "localPortNumber": [str(forward.local)]}
        return [*asked, "--document-name", document, "--parameters", json.dumps(numbers)]
    if forward is None:
        return ["ali-instance-cli", "session", "--instance", instance_id, "--region", region]
    ports = ["--local-port", str(forward.local), "--remote-port", str(forward.remote)]
    return ["ali-instance-cli", "portforward", "--instance", instance_id, *ports, "--region", region]


@click.command(
    epilog="\b\nExamples:\n  gpu-fleet connect --stack aws-dev\n"
    "  gpu-fleet connect i-0123456789abcdef0 --stack aws-dev --forward 8888"
)
@click.argument("instance_id", metavar="[INSTANCE]", required=False)
@click.option("--pool", type=POOL_NAME, metavar="NAME", help="An instance of this pool.")
@click.option("--owner", help="An instance of this owner.")
@click.option(
    "--forward",
    type=Port(),
    metavar="PORT[:LOCAL]",
    help="Forward a port of the instance, instead of a shell.",
)
@where_options
def connect(
    instance_id: str | None, pool: str | None, owner: str | None, forward: Forward | None, asked: Asked
) -> None:
    """Open a shell on an instance through the cloud's session manager, which needs no open port.

    With --forward 8888 you reach Jupyter at http://127.0.0.1:8888 here. With --forward 22:2222 VS Code and
    ssh reach the instance at 127.0.0.1, port 2222.
    """
    if pool is not None:
        asked.refuse_pool("--pool", pool)
    place = place_of(asked)
    programs = programs_of(place.cloud)
    instance = chosen(running(place), instance_id, pool, owner)
    document = document_of(place, forward) if place.cloud == "aws" else ""
    command = session(place.cloud, place.region, instance.id, forward, document)
    note(f"connecting to {described(instance)}")
    sys.stdout.flush()
    os.execv(programs[command[0]], command)  # noqa: S606 - the session takes this terminal over


def programs_of(cloud: str) -> dict[str, str]:
    """Return the programs that a session needs, with their paths; raises ConfigurationError."""
    paths = {name: shutil.which(name) for name in NEEDS[cloud]}
    missing = [f"{name} is not on PATH; get {ADVICE[name]}" for name, path in paths.items() if path is None]
    if missing:
        raise ConfigurationError("\n       ".join(missing))
    return {name: path for name, path in paths.items() if path is not None}


def running(place: Place) -> list[Instance]:
    """Return the running instances of a stack. Raises CloudError."""
    calls = Calls(lambda: datetime.now(UTC), read_only=True)
    instances: clouds.Instances = clouds.module(place.cloud).instances(place.region, calls, place.stack)
    return [instance for instance in instances.fleet().instances if instance.state == RUNNING]


def document_of(place: Place, forward: Forward | None) -> str:
    """Return the session's document. If the policy may not be read, warn and use the default shell."""
    if forward is not None:
        return f"gpu-fleet-{place.stack}-forward"  # stacks/gpu_fleet_stacks/core/naming.py
    try:
        return published(place, place.account_id or account_of(place)).session_document
    except (CloudError, ConfigurationError, PolicyError) as error:
        note(f"warning: {error}; connecting with Session Manager's own document")
        return ""


def chosen(
    instances: Sequence[Instance], instance_id: str | None, pool: str | None, owner: str | None
) -> Instance:
    """Return the selected instance; a user at a terminal chooses among several.

    Raises ConfigurationError if none matches, or several do and nobody can be asked.
    """
    if instance_id is not None:
        ids = {instance.id: instance for instance in instances}
        if instance_id not in ids:
            raise ConfigurationError(
                f"{instance_id}: no running instance of this stack{nearest(instance_id, ids)}"
            )
        return ids[instance_id]
    fitting = [
        instance
        for instance in instances
        if pool in (None, instance.pool) and owner in (None, instance.owner)
    ]
    if not fitting:
        have = ", ".join(sorted({f"{instance.pool} of {instance.owner}" for instance in instances})) or "none"
        raise ConfigurationError(f"no running instance matches --pool and --owner; running: {have}")
    if len(fitting) == 1:
        return fitting[0]
    listed = "\n".join(f"  {number} {described(instance)}" for number, instance in enumerate(fitting, 1))
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{len(fitting)} instances match; name one:\n{listed}")
    click.echo(listed, err=True)
    number: int = click.prompt("Which", type=click.IntRange(1, len(fitting)), err=True)
    return fitting[number - 1]


def described(instance: Instance) -> str:
    """Return a short description of an instance."""
    return f"{instance.id} ({instance.pool}, {instance.type}, {instance.owner or 'no owner'})"

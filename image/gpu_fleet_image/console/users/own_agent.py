"""The agent of the instance that a command runs on: requests through its socket, and its answers.

Users of an instance have no rights over instances, records or tags. Its agent has, and knows the caller.
"""

import json
import os
import socket
from contextlib import suppress
from typing import Any

import click

from gpu_fleet_image.core import instance_file, paths
from gpu_fleet_image.core.files import FOLDER
from gpu_fleet_image.core.holds import Output
from gpu_fleet_image.core.place import Asked
from gpu_fleet_image.core.reaper_errors import AgentError, ConfigurationError
from gpu_fleet_image.core.shared_options import TABLE, inert, note

# Longer than the agent needs for a hold: some ten calls, of two tries each.
_ANSWER_WITHIN_S = 90.0
LARGEST_ANSWER = 1 << 20
_OWN_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "ALIBABA_CLOUD_ACCESS_KEY_ID")
_REMEDY = "`systemctl status gpu-reaper` shows why, and `sudo systemctl restart gpu-reaper` restarts it"


def is_meant(asked: Asked, instance_id: str | None) -> bool:
    """Return whether a command asks this instance's agent, and not the cloud.

    It does so on an instance, unless a user with credentials of their own names an instance.

    Raises ConfigurationError if no instance is named, and the stack is not this instance's; or if its name is
    empty, as that of a variable that nobody set: this instance is not the one that was meant.
    """
    if instance_id == "":
        raise ConfigurationError("INSTANCE '': is empty; allowed: the id of an instance")
    if not paths.instance_file().exists():
        return False
    if instance_id is not None:
        return not any(os.environ.get(name) for name in _OWN_CREDENTIALS)
    own = instance_file.load(paths.instance_file()).stack
    if asked.stack not in (None, own):
        raise ConfigurationError(
            f"--stack {asked.stack!r}: this instance is of stack {own!r}; name another instance, or leave "
            "--stack out"
        )
    return True


def refuse_form(form: str) -> None:
    """Refuse JSON and CSV, because an agent answers in lines.

    Raises ConfigurationError if one of them is wanted.
    """
    if form != TABLE:
        raise ConfigurationError(
            f"-o {form}: this instance's agent answers in lines; name a stack with --stack"
        )


def ask(command: str, instance_id: str | None = None, **words: str) -> None:
    """Send a request to the agent, and print its answer. Raises AgentError."""
    request = {"command": command, **words, **({"instance": instance_id} if instance_id else {})}
    output = answered(json.dumps(request).encode() + b"\n")
    for warning in output.warnings:
        note(f"warning: {warning}")
    for line in output.lines:
        click.echo(inert(line, kept=""))


def answered(request: bytes) -> Output:
    """Return the agent's answer to a request; raises AgentError."""
    path = paths.agent_socket()
    try:
        content: dict[str, Any] = json.loads(_exchanged(request))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise AgentError(
            f"the agent of this instance does not answer at {path} ({why}): {_REMEDY}"
        ) from error
    if content.get("error"):
        raise AgentError(str(content["error"]))
    return Output(tuple(content.get("lines", ())), tuple(content.get("warnings", ())))


def _exchanged(request: bytes) -> bytes:
    """Send a line and read one, by the folder's descriptor: a socket's address is limited to 107 bytes."""
    path = paths.agent_socket()
    folder = os.open(path.parent, FOLDER)
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_WITHIN_S)
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
            with suppress(BrokenPipeError):  # it has refused already; its answer is waiting
                connection.sendall(request)
            with connection.makefile("rb") as answer:
                return answer.readline(LARGEST_ANSWER)
    finally:
        os.close(folder)

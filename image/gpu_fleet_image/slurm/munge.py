"""Munge's key: from the stack's secret store to the instance, never through user data."""

import base64
import binascii
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from gpu_fleet_image.core.queue_errors import NotReadyError

KEY = Path("/etc/munge/munge.key")
KEY_BYTES = 1024  # default of create-munge-key(8)
READ_BY_OWNER = 0o400


def fetched(secretsmanager: Any, secret: str, *, may_make: bool) -> bytes:
    """Return munge's key.

    The secret's first version is the key that the first controller made: neither the stack's state nor its
    program ever holds it.

    Args:
        secretsmanager: boto3's client.
        may_make: make the key if there is none yet; only the controller may.

    Raises NotReadyError if there is none yet, it is damaged, or the secret cannot be read.
    """
    try:
        return decoded(secretsmanager.get_secret_value(SecretId=secret)["SecretString"], secret)
    except (BotoCoreError, ClientError) as error:
        absent = _code(error) == "ResourceNotFoundException"
        if not absent or not may_make:
            raise NotReadyError(f"secret {secret}: {error}") from error
    made = base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()
    try:
        secretsmanager.put_secret_value(SecretId=secret, SecretString=made)
    except (BotoCoreError, ClientError) as error:
        raise NotReadyError(f"secret {secret}: {error}") from error
    return base64.b64decode(made)


def _code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def decoded(text: str, secret: str) -> bytes:
    """Return the key in a secret's value; raises NotReadyError if it is malformed."""
    try:
        key = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise NotReadyError(f"secret {secret}: no key of munge: {error}") from error
    if len(key) != KEY_BYTES:
        raise NotReadyError(f"secret {secret}: {len(key)} bytes; a key of munge has {KEY_BYTES}")
    return key


def lay(key: bytes, file: Path = KEY, own: Callable[..., None] = shutil.chown) -> None:
    """Write the key where munged reads it, readable only by its account."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, READ_BY_OWNER)
    with os.fdopen(opened, "wb") as written:
        written.write(key)
    own(part, "munge", "munge")
    part.replace(file)

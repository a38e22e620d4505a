"""Errors that every program on an instance raises on purpose: one message for a user, without a traceback."""

import difflib
import os
from collections.abc import Iterable, Mapping

# Cloud -> how a user logs in whose credentials are missing or no longer valid.
LOG_IN = {
    "aws": (
        "your own credentials of AWS: run `aws configure sso` once, then `aws sso login`, and set "
        "AWS_PROFILE; or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    "alicloud": (
        "your own access key of Alibaba Cloud: set ALIBABA_CLOUD_ACCESS_KEY_ID and "
        "ALIBABA_CLOUD_ACCESS_KEY_SECRET, of a role ALIBABA_CLOUD_SECURITY_TOKEN too; the RAM "
        "console makes one (Identities, Users, AccessKey)"
    ),
}
# Cloud -> where its SDKs look for credentials on an instance (rootfs/etc/environment.d/60-gpu-fleet.conf).
ENDPOINTS = {"aws": "AWS_CONTAINER_CREDENTIALS_FULL_URI", "alicloud": "ALIBABA_CLOUD_CREDENTIALS_URI"}


def log_in(cloud: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return how a user logs in whose credentials are missing or invalid, and which profile was tried."""
    if endpoint := environ.get(ENDPOINTS[cloud]):
        why = "on an instance `systemctl status gpu-credentials` says why they are missing"
        return f"the credentials of {endpoint} ({ENDPOINTS[cloud]}): {why}"
    if cloud != "aws":
        return LOG_IN[cloud]
    return f"{LOG_IN[cloud]} (tried: profile {environ.get('AWS_PROFILE') or 'default'!r})"


class InstanceError(Exception):
    """Base of the errors of this package, of the gate and of the reaper."""


class ConfigurationError(InstanceError):
    """An environment variable, flag or event is missing or wrong."""


class InstanceFileError(InstanceError):
    """``instance.toml`` is missing or wrong."""


class CloudError(InstanceError):
    """The metadata service did not answer, or a call to the cloud failed after all retries.

    Attributes:
        code: the cloud's error code.
    """

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(message)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint for a typo: ``(nearest: idle_after_hours)``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (nearest: {close[0]})" if close else ""

"""Why a caller gets no credentials, one sentence each."""

from gpu_fleet_image.core.errors import InstanceError


class CredentialsError(InstanceError):
    """Base of this room's errors."""


class NotServedError(CredentialsError):
    """The caller is no account that this service serves."""


class NoSessionError(CredentialsError):
    """The cloud gave no session of the user role."""

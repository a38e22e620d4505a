"""Reasons why a caller gets no credentials."""

from gpu_fleet_image.core.errors import InstanceError


class CredentialsError(InstanceError):
    """Base of the errors of this package."""


class NotServedError(CredentialsError):
    """The caller's account is not served."""


class NoSessionError(CredentialsError):
    """The cloud gave no session of the user role."""

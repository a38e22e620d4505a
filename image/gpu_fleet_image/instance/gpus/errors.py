"""Error of GPU reservations: one message for a user."""

from gpu_fleet_image.core.errors import InstanceError


class GpuReservationError(InstanceError):
    """A reservation cannot be made or read, or GPUs cannot be listed."""

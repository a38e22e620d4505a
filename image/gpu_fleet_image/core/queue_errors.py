"""Errors that the queue raises on purpose."""

from gpu_fleet_image.core.errors import InstanceError


class QueueError(InstanceError):
    """Base of the queue's errors."""


class QueueFileError(QueueError):
    """``queue.json`` is missing or wrong."""


class NotReadyError(QueueError):
    """Something that this instance needs is not there yet; the caller tries again."""


class DatabaseError(QueueError):
    """The database behind the queue's accounting does not answer, or refuses access."""


class RosterUnreadError(QueueError):
    """The list of the stack's users is not in the stack's format."""


class PolicyUnreadError(QueueError):
    """The stack's policy lacks values of a pool of the queue."""


class SlurmError(QueueError):
    """A Slurm command failed, or printed output that no supported version prints."""

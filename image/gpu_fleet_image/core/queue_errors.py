"""What this room raises on purpose."""

from gpu_fleet_image.core.errors import InstanceError


class QueueError(InstanceError):
    """Base of the queue's own."""


class QueueFileError(QueueError):
    """``queue.json`` is missing or wrong."""


class NotReadyError(QueueError):
    """Something that this instance needs is not there yet; it is tried again."""


class DatabaseError(QueueError):
    """The database behind the queue's accounting does not answer, or refuses."""


class RosterUnreadError(QueueError):
    """The list of the stack's users is not as the stack writes it."""


class PolicyUnreadError(QueueError):
    """The stack's policy says too little of a pool of the queue."""


class SlurmError(QueueError):
    """A command of Slurm failed, or said what none of its versions says."""

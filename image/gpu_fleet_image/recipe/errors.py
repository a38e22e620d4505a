"""What can go wrong while an image is made; each message names the file or the flag and what to do."""


class ImageError(Exception):
    """Base of all; the command prints its text and exits with 1."""


class RequirementError(ImageError):
    """This computer lacks something: root, apt, a program, room on the disk."""


class LockError(ImageError):
    """An outside artefact is not the one that versions.toml names, or is not to be had."""


class PayloadError(ImageError):
    """The recipe itself is incomplete: a step, a list or a module is missing."""


class BakeError(ImageError):
    """A step failed inside the root file system."""

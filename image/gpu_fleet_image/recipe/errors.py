"""Errors while an image is made; each message names the file or the flag, and the remedy."""


class ImageError(Exception):
    """Base of all; the command prints its text and exits with 1."""


class RequirementError(ImageError):
    """This computer lacks something: root, apt, a program, disk space."""


class LockError(ImageError):
    """A downloaded artefact differs from versions.toml, or is not available."""


class PayloadError(ImageError):
    """The recipe itself is incomplete: a step, a list or a module is missing."""


class BakeError(ImageError):
    """A step failed inside the root file system."""

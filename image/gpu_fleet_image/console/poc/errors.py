"""Errors of a POC."""

from gpu_fleet_image.core.reaper_errors import ReaperError


class CapReachedError(ReaperError):
    """The instances have cost so much that nothing more may be started."""


class StageError(ReaperError):
    """Instances could not be had, or did not measure to the end."""

"""Interruption and termination notices of the cloud, and the sweep's mark, from the metadata service."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpu_fleet_image.core.marks import held_until
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, TAG_REAP_AFTER
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.core.times import parse_time

# https://docs.aws.amazon.com/autoscaling/ec2/userguide/retrieving-target-lifecycle-state-through-imds.html
LIFECYCLE_STATE = "autoscaling/target-lifecycle-state"
LEAVING = "Terminated"
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
SPOT_ACTION = "spot/instance-action"
TAGS = "tags/instance"
TERMINATED_BY_GROUP = "the scaling group terminates this instance"


@dataclass(frozen=True)
class Notice:
    """Notice of an interruption or a termination of the instance.

    Attributes:
        ends_at: latest time of it; None if a lifecycle hook delays it until the hook is completed.
    """

    reason: str
    ends_at: datetime | None = None


def find(metadata: Metadata) -> Notice | None:
    """Return this instance's interruption or termination notice, if any.

    A spot notice first, as it is urgent.

    Raises CloudError if the service does not answer, or its answer cannot be read.
    """
    spot = metadata.get(SPOT_ACTION)
    if spot is not None:
        return _spot_notice(spot)
    state = metadata.get(LIFECYCLE_STATE)
    if state is not None and state.strip() == LEAVING:
        return Notice(TERMINATED_BY_GROUP)
    return None


def _spot_notice(text: str) -> Notice:
    try:
        content = json.loads(text)
        return Notice(f"spot interruption of this instance: {content['action']}", parse_time(content["time"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CloudError(f"metadata {SPOT_ACTION}: {text!r} cannot be read: {error}") from error


def mark(metadata: Metadata) -> datetime | None:
    """Return the reap-after of the sweep's mark, or None if there is none that can be read.

    Raises CloudError if the service does not answer.
    """
    text = metadata.get(f"{TAGS}/{TAG_REAP_AFTER}")
    return time_of_mark(text) if text is not None else None


def hold(metadata: Metadata, now: datetime) -> str:
    """Return the end of the owner's hold, from its tag; empty without a hold. Raises CloudError."""
    until = metadata.get(f"{TAGS}/{TAG_KEEP_UNTIL}")
    return held_until({TAG_KEEP_UNTIL: until}, now) if until is not None else ""


def time_of_mark(text: str) -> datetime | None:
    """Parse the time of a mark; None if it cannot be read."""
    try:
        return parse_time(text)
    except ValueError:
        return None


class Notices(Protocol):
    """Source of notices; each method raises CloudError if it cannot be read."""

    def find(self) -> Notice | None:
        """Return the notice of its interruption or termination, or None."""

    def mark(self) -> datetime | None:
        """Return the reap-after of the sweep's mark, or None."""

    def hold(self) -> str:
        """Return the end of the owner's hold; empty without a hold."""


class FromMetadata:
    """Source of notices on AWS, whose metadata service has group, spot notices and tags."""

    def __init__(self, metadata: Metadata, now: Callable[[], datetime]) -> None:
        self._metadata = metadata
        self._now = now

    def find(self) -> Notice | None:
        """Return the notice as the function ``find``."""
        return find(self._metadata)

    def mark(self) -> datetime | None:
        """Return the mark as the function ``mark``."""
        return mark(self._metadata)

    def hold(self) -> str:
        """Return the hold as the function ``hold``."""
        return hold(self._metadata, self._now())

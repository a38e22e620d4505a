"""Interruption and termination notices of the cloud, and the sweep's mark: what the metadata service says."""

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
    """The instance is about to be interrupted or terminated.

    Attributes:
        reason: why, in one line, for trainer and users.
        ends_at: when at the latest; None where a lifecycle hook holds it until it is completed.
    """

    reason: str
    ends_at: datetime | None = None


def find(metadata: Metadata) -> Notice | None:
    """This instance's interruption or termination notice, if any; a spot notice first: it does not wait.

    Raises:
        CloudError: the service does not answer, or says something that cannot be read.
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
    """The reap-after of the sweep's mark, or None where there is none that can be read.

    Raises:
        CloudError: the service does not answer.
    """
    text = metadata.get(f"{TAGS}/{TAG_REAP_AFTER}")
    return time_of_mark(text) if text is not None else None


def hold(metadata: Metadata, now: datetime) -> str:
    """Until when the owner keeps the instance, by its tag; empty where nobody does. Raises CloudError."""
    until = metadata.get(f"{TAGS}/{TAG_KEEP_UNTIL}")
    return held_until({TAG_KEEP_UNTIL: until}, now) if until is not None else ""


def time_of_mark(text: str) -> datetime | None:
    """The time that a mark names, or None where it cannot be read."""
    try:
        return parse_time(text)
    except ValueError:
        return None


class Notices(Protocol):
    """Where notices come from; each method raises CloudError where none can be had."""

    def find(self) -> Notice | None:
        """The notice of its interruption or termination, or None."""

    def mark(self) -> datetime | None:
        """The reap-after of the sweep's mark, or None."""

    def hold(self) -> str:
        """Until when the owner keeps the instance; empty where nobody does."""


class FromMetadata:
    """AWS's metadata service, which knows group, spot market and tags."""

    def __init__(self, metadata: Metadata, now: Callable[[], datetime]) -> None:
        self._metadata = metadata
        self._now = now

    def find(self) -> Notice | None:
        """As ``find``."""
        return find(self._metadata)

    def mark(self) -> datetime | None:
        """As ``mark``."""
        return mark(self._metadata)

    def hold(self) -> str:
        """As ``hold``."""
        return hold(self._metadata, self._now())

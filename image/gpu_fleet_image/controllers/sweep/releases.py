"""Releases of the agent on a stack's instances, and whether an operator has confirmed them.

A release that is blind says that nothing happens on every instance, for as long as it runs. So what it says
ends no more instances than is usual, until an operator looked (``verdict.py``, the mass-idle breaker). Agents
come with the payload of the stack or with the image, at an instance's first boot.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gpu_fleet_image.core.document import Form
from gpu_fleet_image.core.model import Instance
from gpu_fleet_image.core.times import format_time, parse_time

# An `up` brings new agents some minutes before the first sweep that knows of them.
_NOTED_LATE = timedelta(minutes=15)
_MOST_IMAGES = 50


@dataclass
class AgentReleases:
    """Releases that the sweeps know.

    Attributes:
        newest: the release that the policy named last; None before the first.
        since: who was launched since may run a release that nobody looked at; None where there is none.
        images: image -> whether an operator looked since it came.
    """

    newest: str | None = None
    since: datetime | None = None
    images: dict[str, bool] = field(default_factory=dict)

    def note(self, release: str, instances: Iterable[Instance], now: datetime) -> None:
        """Note the releases and images of now; the first ones change nothing."""
        if self.newest not in (None, release):
            self.since = self.since or now - _NOTED_LATE
        self.newest = release
        is_first = not self.images
        for image in sorted({instance.image for instance in instances if instance.image}):
            self.images.setdefault(image, is_first)
        while len(self.images) > _MOST_IMAGES:
            del self.images[next(iter(self.images))]

    def unseen(self, instances: Iterable[Instance]) -> frozenset[str]:
        """Return the instances whose agents may be of a release that no operator has confirmed."""
        return frozenset(
            instance.id
            for instance in instances
            if (self.since is not None and instance.launched_at >= self.since)
            or not self.images.get(instance.image, True)
        )

    def confirm(self) -> None:
        """Note that an operator confirmed that idle instances are idle."""
        self.since = None
        self.images = dict.fromkeys(self.images, True)

    def to_json(self) -> dict[str, Any]:
        """Return the releases as the lease object holds them."""
        since = format_time(self.since) if self.since else None
        return {"newest": self.newest, "since": since, "images": self.images}

    @classmethod
    def of(cls, raw: object) -> "AgentReleases":
        """Parse what ``to_json`` wrote; without content the next release is a new one."""
        match raw:
            case {"newest": str() | None as newest, "since": since, "images": dict(images)}:
                return cls(newest, _time(since), {str(key): value is True for key, value in images.items()})
        return cls(newest="")


def _time(text: object) -> datetime | None:
    """Parse a time; the earliest possible where it cannot be read."""
    if text is None:
        return None
    try:
        return parse_time(str(text))
    except ValueError:
        return parse_time("2000-01-01T00:00:00+00:00")


OF_AGENTS = Form("an object", AgentReleases.of, AgentReleases.to_json)

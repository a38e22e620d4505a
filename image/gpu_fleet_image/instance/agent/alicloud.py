"""The agent's clients of Alibaba Cloud: CloudMonitor, its bucket, its group, the sweep's mark."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from gpu_fleet_image.core import oss
from gpu_fleet_image.core.alicloud_credentials import KEY_ID, SECRET, AccessKey, Credentials
from gpu_fleet_image.core.calls import Calls, batches
from gpu_fleet_image.core.handshake import pool_caller
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.marks import held_until
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.core.metrics import DIMENSION_INSTANCE
from gpu_fleet_image.core.model import TAG_REAP_AFTER, User
from gpu_fleet_image.core.reaper_errors import AnswerError, CloudError, ConfigurationError
from gpu_fleet_image.core.times import parse_time
from gpu_fleet_image.instance.agent import notices
from gpu_fleet_image.instance.agent.cloud import NoFence
from gpu_fleet_image.instance.agent.notices import Notice
from gpu_fleet_image.providers.alicloud.instances import with_ids
from gpu_fleet_image.providers.alicloud.lifecycle import IN_SERVICE, LEAVING, Hook, lifecycle_state
from gpu_fleet_image.providers.alicloud.metrics import (
    DIMENSION_STACK,
    MAX_DATA_PER_CALL,
    NO_GROUP,
    datum,
    metric_name,
)
from gpu_fleet_image.providers.alicloud.oss import OssStore, users_key
from gpu_fleet_image.providers.alicloud.session import ENDPOINT, Answer, Clients, Product, clients

# https://www.alibabacloud.com/help/en/ecs/user-guide/view-instance-metadata: 404 while there is no notice
_SPOT_TERMINATION = "instance/spot/termination-time"
# The metadata service has neither groups nor tags: that takes two calls of an instance each time, and a
# thousand instances share an account's limits (some 50 calls a second).
LOOK_EVERY = timedelta(minutes=2)

LOG = logging.getLogger(__name__)


class AgentCloud:
    """The cloud of one instance.

    Args:
        metadata: its metadata service; None in a rehearsal with keys in the environment.
    """

    def __init__(self, instance: InstanceFile, metadata: Metadata | None) -> None:
        self._instance = instance
        self._credentials = Credentials(os.environ, None if os.environ.get(KEY_ID) else metadata)
        self._clients = clients(instance.region, self._credentials, os.environ.get(ENDPOINT, ""), inside=True)
        self._records: tuple[AccessKey, OssStore] | None = None

    def metrics(self) -> "CloudMonitor":
        """Return the client that heartbeats go to."""
        return CloudMonitor(self._clients.cms, self._instance.stack, self._instance.monitor_group or NO_GROUP)

    def bucket(self) -> Any:
        """Return boto3's S3 client for OSS, with the keys that are valid now."""
        return self._bucket_client()

    def _bucket_client(self, *, once: bool = False) -> Any:
        region = self._instance.region
        inside = oss.ENDPOINT_INSIDE.format(region=region)
        return oss.bucket_client(region, self._credentials, inside, once=once)

    def store(self) -> OssStore:
        """Return the stack's records, with the keys that are valid now."""
        keys = self._credentials.current()
        if self._records is None or self._records[0] != keys:
            calls = Calls(lambda: datetime.now(UTC))
            # a reply is only as fresh as the look before it, so a delayed one is dropped
            bucket = self._bucket_client(once=True)
            self._records = keys, OssStore(bucket, calls, self._instance.records_uri)
        return self._records[1]

    def caller(self, instance_id: str) -> str:
        """Return ``POOL.i-0123``.

        RAM has no variable for the caller: a pool's role can write below its pool.
        """
        return pool_caller(self._instance.pool, instance_id)

    def tagging(self) -> NoReturn:
        """Refuse: RAM has no condition on a tag's key, so no instance may tag. Raises ConfigurationError."""
        raise ConfigurationError(
            "instances of Alibaba Cloud may set no hold on themselves; with access keys of your own in "
            f"{KEY_ID} and {SECRET}, here or on a laptop: add --instance ID --stack {self._instance.stack}"
        )

    def fence(self, instance_id: str) -> NoFence:
        """Return no fence: a role that may tag one instance of its pool may tag them all."""
        del instance_id
        return NoFence()

    def hook(self, instance_id: str) -> Hook:
        """Return the hook that delays the instance's termination."""
        return Hook(self._clients.ess, instance_id)

    def harden(self, metadata: Metadata, instance_id: str) -> None:
        """Require session tokens from now on, if the instance was started without requiring them.

        A scaling configuration, which eRDMA and reserved pools start from, cannot require them; their
        instances may change the setting on themselves. A failure is logged: the instance stays as it was
        started.
        """
        try:
            if not metadata.answers_without_token():
                return
            self._clients.ecs.action("ModifyInstanceMetadataOptions")(
                InstanceId=instance_id, HttpEndpoint="enabled", HttpTokens="required"
            )
            LOG.info("event=metadata-hardened")
        except (AnswerError, CloudError) as error:
            LOG.error("event=metadata-not-hardened reason=%r", str(error))

    def name_users(self, instance_id: str, users: Sequence[User]) -> None:
        """Write the users' names to the records: RAM cannot allow an instance to tag itself alone."""
        self.store().put(
            users_key(self._instance.pool, instance_id), {"users": [str(user) for user in users]}
        )

    def notices(self, metadata: Metadata, instance_id: str, now: Callable[[], datetime]) -> "Notices":
        """Return the source of interruption and termination notices, and of the sweep's mark."""
        return Notices(metadata, self._clients, instance_id, now)


class CloudMonitor:
    """CloudMonitor behind the interface of CloudWatch's client.

    Args:
        group: the application group of the pool's metrics; alarms of Auto Scaling watch those of a group.
    """

    def __init__(self, cms: Product, stack: str, group: str = NO_GROUP) -> None:
        self._cms = cms
        self._stack = stack
        self._group = group

    def put_metric_data(self, **request: Any) -> None:
        """Publish metric data; raises AnswerError."""
        for some in batches(request["MetricData"], MAX_DATA_PER_CALL):
            self._cms.action("PutCustomMetric")(MetricList=[self._wire(measurement) for measurement in some])

    def _wire(self, measurement: Mapping[str, Any]) -> dict[str, str]:
        """Convert a data point.

        An instance's has its stack in the name, a pool's in a dimension, for alarms.
        """
        dimensions = {part["Name"]: part["Value"] for part in measurement["Dimensions"]}
        if DIMENSION_INSTANCE in dimensions:
            name, group = metric_name(measurement["MetricName"], self._stack), NO_GROUP
        else:
            name, group = measurement["MetricName"], self._group
            dimensions |= {DIMENSION_STACK: self._stack}
        return datum(name, measurement["Value"], dimensions, measurement.get("Timestamp"), group)


class Notices:
    """Source of interruption and termination notices, and of the sweep's mark."""

    def __init__(
        self, metadata: Metadata, own: Clients, instance_id: str, now: Callable[[], datetime]
    ) -> None:
        self._metadata = metadata
        self._ecs, self._ess = own.ecs, own.ess
        self._instance_id = instance_id
        self._now = now
        self._poll_for: datetime | None = None
        self._tags: Mapping[str, str] = {}

    def find(self) -> Notice | None:
        """Return this instance's interruption or termination notice, if any.

        A spot notice first, as it is urgent.

        Raises CloudError if a service does not answer, or its answer cannot be read.
        """
        spot = self._metadata.get(_SPOT_TERMINATION)
        if spot is not None:
            return _spot_notice(spot)
        if self._poll_for is not None and self._now() < self._poll_for:
            return None
        self._poll_for = self._now() + LOOK_EVERY
        group, state = lifecycle_state(self._ess, self._instance_id)
        if state in LEAVING:
            return Notice(notices.TERMINATED_BY_GROUP)
        own = self._own_row()
        self._tags = {tag["TagKey"]: tag["TagValue"] for tag in own.get("Tags", {}).get("Tag", [])}
        if state == IN_SERVICE and own.get("SpotStrategy", "NoSpot") == "NoSpot":
            self._protect(group)
        return None

    def mark(self) -> datetime | None:
        """Return the reap-after of the sweep's mark as last read, or None."""
        text = self._tags.get(TAG_REAP_AFTER)
        return notices.time_of_mark(text) if text is not None else None

    def hold(self) -> str:
        """Return the end of the owner's hold as last read; empty without a hold."""
        return held_until(self._tags, self._now())

    def _protect(self, group: str) -> None:
        """Protect this instance from all scale-in but the sweep's, even after a user lowers ``size.max``.

        Groups have no setting for it at launch, and the sweep terminates protected instances too. A spot
        instance stays unprotected: its group would not notice an interruption. A refusal is logged each time.
        """
        try:
            self._ess.action("SetInstancesProtection")(
                ScalingGroupId=group, InstanceIds=[self._instance_id], ProtectedFromScaleIn=True
            )
            LOG.info("event=protected group=%s", group)
        except AnswerError as error:
            LOG.error("event=not-protected group=%s reason=%r", group, str(error))

    def _own_row(self) -> dict[str, Any]:
        """Return this instance's row of DescribeInstances; empty if the service does not know it yet."""
        try:
            return next(with_ids(_directly, self._ecs, [self._instance_id]), {})
        except AnswerError as error:
            raise CloudError(f"DescribeInstances: {error}", error.code) from error


def _directly(action: Callable[..., Answer], **arguments: Any) -> Answer:
    return action(**arguments)


def _spot_notice(text: str) -> Notice:
    try:
        return Notice("spot interruption of this instance: terminate", parse_time(text))
    except ValueError as error:
        raise CloudError(f"metadata {_SPOT_TERMINATION}: {text!r} cannot be read: {error}") from error

"""The agents of a world's instances: their real replies to the sweep's mark, step by step on its clock.

Real are ``NoticeListener``, its decisions and its writes to the bucket. Fake are the sensors' reading, which
follows the timeline, the door, and the metadata service.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gpu_fleet_image.core import instance_file
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.errors import CloudError
from gpu_fleet_image.core.handshake import Exchange
from gpu_fleet_image.core.model import TAG_WITHDRAWN
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time
from gpu_fleet_image.instance.agent import cloud as agent_cloud
from gpu_fleet_image.instance.agent.answers import Seen, seen
from gpu_fleet_image.instance.agent.habits import Habits
from gpu_fleet_image.instance.agent.idle_detection import Limits
from gpu_fleet_image.instance.agent.kept_files import Saved
from gpu_fleet_image.instance.agent.listening import Answers, NoticeListener
from gpu_fleet_image.instance.agent.notices import FromMetadata
from gpu_fleet_image.instance.agent.sensors.reading import Presence, Rates, Reading, Session, Started
from gpu_fleet_image.providers.alicloud.oss import OssStore
from tests.image.alicloud_server import ENVIRON
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.world import Patience

LEDGER = "s3://records/reaper"
# An agent on Alibaba Cloud asks for its tags so often; on AWS the metadata service has them at once.
TAGS_EVERY = timedelta(minutes=2)
BOTO3S_OWN_ATTEMPTS = 5  # of its retry mode "legacy"


def patience(cloud: str) -> Patience:
    """Return the retries of the client by which a cloud's agents write replies."""
    made = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    content = INSTANCE_TOML.replace('cloud = "aws"', f'cloud = "{cloud}"')
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file, patch.dict(os.environ, ENVIRON | made):
        file.write(content)
        file.flush()
        config = agent_cloud.connect(instance_file.load(Path(file.name)), None).store()._s3.meta.config
    attempts = (config.retries or {}).get("total_max_attempts", BOTO3S_OWN_ATTEMPTS)
    return Patience(attempts, timedelta(seconds=config.read_timeout))


class _Sending:
    """A bucket behind a network that delays an agent's writes."""

    def __init__(self, world: Any, bucket: Any) -> None:
        self._world, self._bucket = world, bucket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def put_object(self, **arguments: Any) -> Any:
        self._world.send(arguments["Key"])
        return self._bucket.put_object(**arguments)


class Agent:
    """The second thread of one instance's agent, with boto3's S3 client of the world."""

    def __init__(self, world: Any, instance: Any, bucket: Any, cloud: str) -> None:
        self._world, self._instance, self._cloud = world, instance, cloud
        self._tags: dict[str, str] = dict(instance.tags)
        self._tags_at = world.now
        calls = Calls(lambda: world.now)
        sending = _Sending(world, bucket)
        self._store = (OssStore if cloud == "alicloud" else Store)(sending, calls, LEDGER)
        self._who = f"dev.{instance.id}" if cloud == "alicloud" else f"AROAMADEUP:{instance.id}"
        answers = Answers(
            drain=_never,
            save=self._save,
            notify=lambda _: None,
            poll=self._poll,
            store=lambda: self._store,
            caller=lambda: self._who,
            fence=self,
            door=instance.door,
        )
        notices = FromMetadata(self, lambda: world.now)
        booted_at = lambda: instance.line.boots[-1]  # noqa: E731 - the agent's own thread asks anew each time
        self.notice_listener = NoticeListener(notices, answers, lambda: world.now, booted_at=booted_at)

    def act(self) -> None:
        """Run the thread's poll of every five seconds, or of every second behind a closed door."""
        if self._cloud == "aws" or self._world.now >= self._tags_at + TAGS_EVERY:
            self._tags, self._tags_at = dict(self._instance.tags), self._world.now
        with contextlib.suppress(CloudError):  # it tries again
            self.notice_listener.poll()

    def exchange(self) -> Exchange:
        assert self.notice_listener.talk.mark is not None
        return Exchange(self._store, self._who, self.notice_listener.talk.mark)

    def _save(self) -> Saved:
        self._instance.line.saved_at = self._world.now
        door = self._instance.door
        if door.is_shut:
            door.saved += 1
            door.while_saving()
        return Saved(0, 0, 0)

    def get(self, path: str) -> str | None:
        return self._tags.get(path.rpartition("/")[2])

    def raise_for(self, mark: datetime) -> None:
        """Set the tag with which AWS denies the end of an instance, as ``Fence`` does; RAM cannot."""
        if self._cloud == "aws":
            self._instance.tags[TAG_WITHDRAWN] = format_time(mark)

    def lower_but(self, mark: datetime | None) -> None:
        """Remove the tag except for a mark, as ``Fence`` does."""
        if mark is None or self._instance.tags.get(TAG_WITHDRAWN) != format_time(mark):
            self._instance.tags.pop(TAG_WITHDRAWN, None)

    def _poll(self, mark: datetime) -> Seen:
        """Return the view of an agent that knows the instance's habits."""
        self._instance.habits = self._instance.habits or Habits()
        return seen(self._instance.habits.marked(self._reading(self._world.now)), mark, Limits())

    def _reading(self, now: datetime) -> Reading:
        """Return the present reading of the instance, as real sensors would give it."""
        line, sees = self._instance.line, self._instance.agent != "deluded"
        sessions = [
            Session("terminal", "ada on pts/0", (now - min(at.end, now)).total_seconds())
            for at in (line.typing if sees else ())
        ]
        jobs = sees and line.jobs.holds_at(now) and not self._instance.is_a_run
        return Reading(
            at=now,
            rates=Rates(cpu_cores=1.0 if jobs else 0.0),
            gpus=(),
            presence=Presence(
                sessions=tuple(sessions),
                watched=("python (1, ada)",) if jobs else (),
                started=tuple(self._runs(now)) if sees else (),
            ),
            failures=("gpu: lost",) if self._instance.agent == "blind" else (),
        )

    def _runs(self, now: datetime) -> Iterator[Started]:
        """Yield the process of a loop in a pane, and a job that looks the same."""
        if self._instance.loop is None:
            return
        every_s, lasts_s = self._instance.loop
        began_s = now.timestamp() // every_s * every_s
        jobs = self._instance.line.jobs if self._instance.is_a_run else ()
        ages = [now.timestamp() - began_s] if now.timestamp() - began_s < lasts_s else []
        ages += [(now - job.begin).total_seconds() for job in jobs if job.holds_at(now)]
        for age_s in ages:
            began_s = now.timestamp() - age_s
            command = f"nvidia-smi --at {began_s}" if self._instance.is_new_each_time else "nvidia-smi"
            yield Started(9, "nvidia-smi", "ada", age_s, began_s, command)


def _never(notice: object) -> Any:
    raise AssertionError(f"no instance is taken here: {notice}")

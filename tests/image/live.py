"""Instances with real agents, on one clock of the tests, and the sweep's own handler beside them.

Real are the agent's loop and its second thread's work (called directly), the handler, sweep, bucket and EC2
(moto). Fake are the time, the readings of sensors, and the metric store: moto looks at every point for
every period. ``Truth`` holds the true jobs with their times; the product sees them only by the sensors.
"""

# ruff: noqa: N803 - the argument names are boto3's

import contextlib
import json
import os
import shutil
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import psutil
import pytest
from moto.backends import get_backend

from gpu_fleet_image.console.users import keep
from gpu_fleet_image.controllers.sweep import handler
from gpu_fleet_image.core import holds
from gpu_fleet_image.core.cloud import connect
from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.core.instance_file import InstanceFile
from gpu_fleet_image.core.metrics import METRIC_SECONDS_SINCE_ACTIVITY, namespace
from gpu_fleet_image.core.model import TAG_REAP_AFTER, TAG_WITHDRAWN
from gpu_fleet_image.core.reaper_errors import CloudError
from gpu_fleet_image.instance.agent import aws as aws_agent
from gpu_fleet_image.instance.agent import listening, requests
from gpu_fleet_image.instance.agent.command import AgentOptions, fresh_poll, listener, user_socket
from gpu_fleet_image.instance.agent.habits import Habits
from gpu_fleet_image.instance.agent.idle_detection import JudgeMemory, Limits
from gpu_fleet_image.instance.agent.listening import CLOSED_FASTER, Senses, Target
from gpu_fleet_image.instance.agent.loop import Agent
from gpu_fleet_image.instance.agent.publish import heartbeat
from gpu_fleet_image.instance.agent.sensors.counters import OwnUse
from gpu_fleet_image.instance.agent.sensors.processes import STARTED_LATELY_S
from gpu_fleet_image.instance.agent.sensors.reading import Presence, Rates, Reading, Session, Started
from gpu_fleet_image.providers.aws import session as aws_session
from tests.image.fake_aws import fake_aws
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.moto_fleet import REGION, STACK, launched, launched_group, policy_json, pool_policy
from tests.image.world import dated, minima, refusal

ACCOUNT = "123456789012"
RECORDS, DATA = f"gpu-fleet-test-records-{ACCOUNT}", "gpu-fleet-test-data"
TICK = timedelta(seconds=5)
EPOCH, START = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 11, 24, 12, tzinfo=UTC)
WRITES = "a write"
IDLE_HOURS = 3  # of heartbeats from before the test
POOL = {
    "idle_after_hours": 1,
    "grace_minutes": 10,
    "min_uptime_minutes": 5,
    "max_lifetime_hours": None,
    "require_acknowledgement": True,
}


@dataclass
class Truth:
    """True history of one instance."""

    jobs: list[datetime] = field(default_factory=list)  # start of each job; none ends
    typed_at: list[datetime] = field(default_factory=list)
    refused: list[datetime] = field(default_factory=list)  # a closed door refused a use
    ended_at: datetime | None = None  # stopped or terminated

    @property
    def killed(self) -> bool:
        """True if it was ended with a job on it."""
        return self.ended_at is not None and any(began <= self.ended_at for began in self.jobs)


class Clock:
    """The agents' clock: the world's, perhaps wrong by some minutes."""

    speed, is_real = 1.0, False

    def __init__(self, live: "Live", skew: timedelta = timedelta(0)) -> None:
        self._live, self._skew = live, skew
        self.start = self.now()

    def now(self) -> datetime:
        return self._live.now + self._skew

    def wait_until(self, moment: datetime) -> None:
        """Do nothing: the world's clock advances by itself."""


class Metrics:
    """Fake of CloudWatch, with the calls that agents and sweeps use."""

    def __init__(self, live: "Live") -> None:
        self._live = live
        self.points: dict[str, tuple[list[datetime], list[float]]] = defaultdict(lambda: ([], []))
        self.own: dict[str, float] = defaultdict(float)

    def add(self, instance_id: str, at: datetime, value: float) -> None:
        times, values = self.points[instance_id]
        times.append(at)
        values.append(value)

    def put_metric_data(self, Namespace: str, MetricData: list[dict[str, Any]]) -> dict[str, Any]:
        """Keep heartbeats by their time of receipt, and sum up the sweep's own metrics."""
        assert Namespace == namespace(STACK)
        for datum in MetricData:
            dimensions = datum.get("Dimensions", [])
            if datum["MetricName"] == METRIC_SECONDS_SINCE_ACTIVITY:
                self.add(dimensions[0]["Value"], self._live.now, datum["Value"])
            elif not dimensions:
                self.own[datum["MetricName"]] += datum["Value"]
        return self._answer({})

    def get_metric_data(self, MetricDataQueries: list[dict[str, Any]], **span: Any) -> dict[str, Any]:
        self._live.before("GetMetricData")
        results = [self._result(query, span["StartTime"], span["EndTime"]) for query in MetricDataQueries]
        return self._answer({"MetricDataResults": results})

    def _result(self, query: dict[str, Any], start: datetime, end: datetime) -> dict[str, Any]:
        stat = query["MetricStat"]
        times, values = self.points[stat["Metric"]["Dimensions"][0]["Value"]]
        span = range(bisect_left(times, start), bisect_left(times, end))
        found = minima(times, values, span, stat["Period"])
        return {
            "Id": query["Id"],
            "Timestamps": [at for at, _ in found],
            "Values": [value for _, value in found],
            "StatusCode": "Complete",
        }

    def describe_alarms(self, **_: Any) -> dict[str, Any]:
        return self._answer({"MetricAlarms": []})

    def _answer(self, content: dict[str, Any]) -> dict[str, Any]:
        return dated(self._live.now, content)


class Instance:
    """One instance: its agent, its true state, and a folder for its files; its clock may be ahead."""

    def __init__(self, live: "Live", instance_id: str, folder: Path, skew: timedelta) -> None:
        self.id, self.truth = instance_id, Truth()
        self._live, self._folder, self._skew = live, folder, skew
        (folder / "keep").mkdir(parents=True)
        (folder / "keep/notes.txt").write_text("mine")
        self.messages: list[str] = []
        self.alive, self.cores = True, 1.0
        self.stopped_at: datetime | None = None
        self.idle_since = self.booted_at = live.now - timedelta(hours=IDLE_HOURS)
        self.start_agent(self.idle_since)

    def start_agent(self, last_active_at: datetime) -> None:
        """Start the agent with an empty memory, as its service manager does."""
        self.alive = True
        clock: Any = Clock(self._live, self._skew)
        self.clock = clock
        self._habits = Habits()
        self.loop = Agent(clock, self, self._report, JudgeMemory(last_active_at + self._skew))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GPU_FLEET_RUN_DIR", str(self._folder / "run"))
            (self._folder / "run").mkdir(exist_ok=True)
            patch.setattr(listening, "show_all", self.messages.append)
            patch.setattr(listening, "withdraw", lambda: None)
            senses = Senses(list, OwnUse(), fresh_poll(self.poll, clock, Limits))
            target, metadata = Target(self._live.instance, self.id), self._live.metadata_of(self)
            options = AgentOptions(self.id, self._folder / "keep", None, None, None, 1.0)
            cloud = self._live.agent_cloud(self)
            self.notice_listener = listener(
                cloud, metadata, target, senses=senses, clock=clock, options=options
            )
            self._speak = partial(user_socket, cloud, target, self.notice_listener.notices, None)

    @contextlib.contextmanager
    def as_seen_by_users(self) -> Iterator[None]:
        """Give commands its agent's files and socket in the block."""
        file = self._folder / "instance.toml"
        file.write_text(INSTANCE_TOML)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GPU_FLEET_INSTANCE_FILE", str(file))
            patch.setenv("GPU_FLEET_RUN_DIR", str(self._folder / "run"))
            with contextlib.closing(self._speak()):
                yield

    def stop(self) -> None:
        with self._live.by_a_user():
            self._live.ec2.stop_instances(InstanceIds=[self.id])
        self.stopped_at = self._live.now
        self.truth.jobs.clear()

    def boot(self) -> None:
        """Start it again, as its user does, with empty tmpfs and an empty agent's memory."""
        with self._live.by_a_user():
            self._live.ec2.start_instances(InstanceIds=[self.id])
        self.truth.ended_at = self.stopped_at = None
        self.booted_at = self._live.now
        shutil.rmtree(self._folder / "run")
        (self._folder / "nologin").unlink(missing_ok=True)
        self.start_agent(self._live.now)

    def boot_time(self) -> float:
        return (self.booted_at + self._skew).timestamp()

    @property
    def runs(self) -> bool:
        return self.truth.ended_at is None and self.stopped_at is None

    @property
    def door_is_shut(self) -> bool:
        """True if log-ins and jobs are refused."""
        return (self._folder / "run/closed").exists() and (self._folder / "nologin").exists()

    @property
    def door_is_ajar(self) -> bool:
        """True if log-ins or jobs are refused."""
        return (self._folder / "run/closed").exists() or (self._folder / "nologin").exists()

    def begin_job(self, *, past_the_door: bool = False) -> None:
        """Start a user's job; a closed door refuses it, except in a terminal that was open before."""
        if not self.runs:
            return
        if self.door_is_shut and not past_the_door:
            self.truth.refused.append(self._live.now)
            return
        self.truth.jobs.append(self._live.now)

    def log_in(self) -> None:
        if self.door_is_shut:
            self.truth.refused.append(self._live.now)
        else:
            self.truth.typed_at.append(self._live.now)

    def tick(self) -> None:
        """Run the agent for five seconds."""
        if not self.alive or not self.runs:
            return
        self.loop.run(self.clock.now())
        self._live.at_work = self
        with contextlib.suppress(CloudError, OSError):  # as its thread does: it tries again
            self.notice_listener.poll()

    def poll(self, now: datetime) -> Reading:
        return self.sample(now, everything=True)

    def sample(self, now: datetime, *, everything: bool) -> Reading:
        """Return a reading as ``Sensors`` does, which know the instance's habits."""
        return self._habits.marked(self.reading(now, everything=everything))

    def reading(self, now: datetime, *, everything: bool) -> Reading:
        """Return the sensors' reading: a job takes its cores, and its process exists from its start."""
        truth, at = self.truth, self._live.now
        share = max((min(1.0, (at - began) / TICK) for began in truth.jobs), default=0.0) * self.cores
        jobs = [Started(1, "python", "ada", _since(at, job)) for job in truth.jobs]
        typed = [Session("terminal", "ada on pts/0", _since(at, moment)) for moment in truth.typed_at]
        presence = Presence(
            sessions=tuple(typed),
            started=tuple(job for job in jobs if job.age_s < STARTED_LATELY_S),
            older=tuple(job for job in jobs if job.age_s >= STARTED_LATELY_S),
        )
        return Reading(now, Rates(cpu_cores=share), (), presence if everything else None)

    def _report(self, judgement: Any) -> None:
        self._live.publish(list(heartbeat(judgement, self.id, "dev")))


def _since(now: datetime, moment: datetime) -> float:
    return (now - moment).total_seconds()


class Live:
    """The world: one stack on AWS; ``calls`` are the sweep's operations, in order."""

    cloud = "aws"

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self.now = START
        self.instances: dict[str, Instance] = {}
        self.metrics = Metrics(self)
        self.calls: list[str] = []
        self.seconds_per_call = 0.2
        self.written: dict[str, datetime] = {}
        self._folder, self._patch = folder, patch
        self._surprises: list[tuple[str, int, Callable[[], object]]] = []
        self._later: list[tuple[datetime | Callable[[], bool], Callable[[], object]]] = []
        self._closed: set[str] = set()
        self._agents_act = False
        self.agents_refused = ""
        self.agents_refused_words = ""
        self.sweep_refused: tuple[str, str] | None = None
        self.instance = InstanceFile(
            cloud=self.cloud,
            region=REGION,
            stack=STACK,
            pool="dev",
            data_uri=f"s3://{DATA}",
            metric_namespace=namespace(STACK),
            lifecycle_hook="gpu-fleet-drain",
            home_file_system="",
            expected={},
            records_uri=f"s3://{RECORDS}/reaper",
        )
        self._set_up()
        for module in (handler, holds, keep, requests):
            patch.setattr(module, "datetime", self._datetime())
        self.at_work: Instance | None = None
        patch.setattr(listening, "replace_text", self._replace_text)
        patch.setattr(psutil, "boot_time", lambda: self.at_work.boot_time() if self.at_work else 0.0)
        patch.setattr(handler, "SweepOptions", partial(handler.SweepOptions, wait=self.pass_seconds))
        self.policy()

    # the cloud

    def _set_up(self) -> None:
        session, made = _made()
        self._patch.setattr(boto3, "DEFAULT_SESSION", session)
        _live[:] = [self]
        self.s3, self.ec2 = made.s3, made.ec2
        for bucket in (RECORDS, DATA):
            self.s3.create_bucket(Bucket=bucket)
        self._patch.setenv("GPU_FLEET_LEDGER_URI", f"s3://{RECORDS}/reaper")
        self._patch.setenv("GPU_FLEET_TOPIC_ARN", made.sns.create_topic(Name="alarms")["TopicArn"])
        self._patch.setattr(handler, "connect", partial(connect, made=replace(made, cloudwatch=self.metrics)))
        self.calls.clear()

    def policy(self, top: dict[str, Any] | None = None, **pool: Any) -> None:
        """Write the policy that the function's archive has."""
        file = self._folder / "policy.json"
        whole = {"cloud": self.cloud, "pools": {"dev": pool_policy(**POOL | pool)}} | (top or {})
        file.write_text(json.dumps(policy_json(**whole)))
        self._patch.setenv("GPU_FLEET_POLICY_FILE", str(file))

    def start(self, count: int = 1, *, skew: timedelta = timedelta(0), group: str = "") -> list[Instance]:
        """Start instances that are idle for hours, in no group or in a new one."""
        ids = launched_group(group, count) if group else launched(count)
        made = [Instance(self, instance_id, self._folder / instance_id, skew) for instance_id in ids]
        for resource in made:
            self.instances[resource.id] = resource
            for minute in range(IDLE_HOURS * 60):
                at = resource.idle_since + timedelta(minutes=minute)
                self.metrics.add(resource.id, at, minute * 60.0)
        return made

    def _replace_text(self, path: Path, text: str) -> None:
        replace_text(path, text)
        os.utime(path, (self.now.timestamp(), self.now.timestamp()))

    def agent_cloud(self, instance: Instance) -> Any:
        return aws_agent.AgentCloud(self.instance, self.metadata_of(instance))

    def metadata_of(self, instance: Instance) -> Any:
        return Metadata(partial(self.tags, instance.id))

    def tags(self, instance_id: str) -> dict[str, str]:
        return dict(get_backend("ec2")[ACCOUNT][REGION].tags[instance_id])

    def _made(self, operation: str) -> list[str]:
        if operation == WRITES:
            return [call for call in self.calls if not call.startswith(("Describe", "Get", "List"))]
        return self.calls if operation == "*" else [call for call in self.calls if call == operation]

    def forget_lease(self) -> None:
        """Delete the lease, which lasts a quarter of an hour otherwise."""
        self.s3.delete_object(Bucket=RECORDS, Key="reaper/lease.json")

    def marked(self) -> list[Instance]:
        return [instance for instance in self.instances.values() if TAG_REAP_AFTER in self.tags(instance.id)]

    def said(self, word: str) -> list[str]:
        """Return the instances with a given reply or decision."""
        keys = [key.split("/") for key in self._words()]
        return [caller.rpartition(":")[2] for _, _, caller, _, name in keys if name == f"{word}.json"]

    def _words(self) -> list[str]:
        listed = self.s3.list_objects_v2(Bucket=RECORDS, Prefix="reaper/handshake/").get("Contents", [])
        return [stored_object["Key"] for stored_object in listed]

    @contextlib.contextmanager
    def by_a_user(self) -> Iterator[None]:
        """Run the block as a user in the console, without denials and delays."""
        before, self._agents_act = self._agents_act, True
        try:
            yield
        finally:
            self._agents_act = before

    # time

    def _datetime(self) -> type[datetime]:
        live = self

        class WorldTime(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                return live.now.astimezone(tz)

        return WorldTime

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass; the agents poll every five seconds."""
        end = self.now + timedelta(seconds=seconds)
        self._agents_act = True
        try:
            while self.now < end:
                next_tick = self._next_tick()
                self._do_due(min(next_tick, end))
                self.now = min(next_tick, end)
                if self.now == next_tick:
                    self._tick()
        finally:
            self._agents_act = False

    def _tick(self) -> None:
        """Advance by five seconds; by single seconds if a door is closed, as the agent's thread does."""
        is_fifth = (self.now - EPOCH) % TICK == timedelta(0)
        for instance in self.instances.values():
            if is_fifth or instance.notice_listener.talk.closed_at is not None:
                instance.tick()

    def _do_due(self, until: datetime) -> None:
        """Run all scheduled actions before a moment, each at its own time."""
        for process in list(self._later):
            when, act = process
            if when() if callable(when) else when <= until:
                self._later.remove(process)
                self.now = self.now if callable(when) else max(self.now, when)
                act()

    def pass_minutes(self, minutes: float) -> None:
        self.pass_seconds(minutes * 60)

    def _next_tick(self) -> datetime:
        talks = [instance.notice_listener.talk for instance in self.instances.values()]
        step = TICK / CLOSED_FASTER if any(talk.closed_at is not None for talk in talks) else TICK
        return EPOCH + ((self.now - EPOCH) // step + 1) * step

    def publish(self, data: list[dict[str, Any]]) -> None:
        self.metrics.put_metric_data(Namespace=namespace(STACK), MetricData=data)

    def content(self, name: str) -> str:
        """Return the content of the only reply or decision of a name."""
        (key,) = [key for key in self._words() if key.endswith(f"/{name}.json")]
        return str(self.s3.get_object(Bucket=RECORDS, Key=key)["Body"].read().decode())

    # the sweep

    def sweep(self, **flags: bool) -> dict[str, Any]:
        return handler.run(flags, self.now + timedelta(minutes=5), f"sweep {len(self.calls)}")

    def on_call(self, operation: str, act: Callable[[], object], number: int = 1) -> None:
        """Run an action right before the sweep's next call of a kind, or a later one; it may raise."""
        self._surprises.append((operation, len(self._made(operation)) + number, act))

    def on_write(self, number: int, act: Callable[[], object]) -> None:
        """Run an action right before the sweep's `number`-th write from now on."""
        self._surprises.append((WRITES, len(self._made(WRITES)) + number, act))

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self._later.append((self.now + timedelta(seconds=seconds), act))

    def on_closed(self, instance: Instance, act: Callable[[], object]) -> None:
        """Run an action as soon as an instance has replied that its door is closed."""
        self._later.append((lambda: instance.id in self._closed, act))

    def before(self, operation: str) -> None:
        """Inject delays, denials and actions before each call of the sweep."""
        if self._agents_act:
            if self.agents_refused and operation in {"ListObjectsV2", "PutObject", "GetObject"}:
                raise refusal(self.agents_refused, operation)
            return
        self.calls.append(operation)
        self.pass_seconds(self.seconds_per_call)
        for surprise in list(self._surprises):
            name, number, act = surprise
            if self._made(name)[-1:] == [operation] and len(self._made(name)) == number:
                self._surprises.remove(surprise)
                self._agents_act = True
                try:
                    act()
                finally:
                    self._agents_act = False

        if self.sweep_refused and self.sweep_refused[0] == operation:
            raise refusal(self.sweep_refused[1], operation)

    def before_call(self, model: Any, params: dict[str, Any], **_: object) -> None:
        self.before(model.name)
        if model.name in ("TerminateInstances", "StopInstances") and not self._agents_act:
            ids = [value for key, value in params["body"].items() if key.startswith("InstanceId")]
            # as the sweep's role is denied
            if any(TAG_WITHDRAWN in self.tags(instance_id) for instance_id in ids):
                raise refusal("UnauthorizedOperation", model.name)
            for each_instance_id in ids:
                self.instances[each_instance_id].truth.ended_at = self.now
        unwritten = f"/{self.agents_refused_words}.json"
        if model.name == "PutObject" and params["url_path"].endswith(unwritten):
            raise refusal("SlowDown", model.name)
        if model.name == "PutObject":
            key = params["url_path"].lstrip("/")
            self.written[key] = self.now
            if key.endswith("/closed.json"):
                self._closed.add(key.split("/")[-3].rpartition(":")[2].rpartition("%3A")[2])

    def after_call(self, model: Any, parsed: dict[str, Any], **_: object) -> None:
        """Set the world's time in answers."""
        headers = parsed.get("ResponseMetadata", {}).get("HTTPHeaders")
        if headers is not None:
            headers["date"] = format_datetime(self.now.replace(microsecond=0), usegmt=True)
        for stored_object in parsed.get("Contents", []):
            key = quote(stored_object["Key"])
            at = next((at for path, at in self.written.items() if path.endswith(key)), self.now)
            stored_object["LastModified"] = at.replace(microsecond=0)
        for reservation in parsed.get("Reservations", []):
            for tag in reservation["Instances"]:
                self._set_times(tag)

    def _set_times(self, instance: dict[str, Any]) -> None:
        """Set the world's times in a row of DescribeInstances; a start makes an instance young again."""
        known = self.instances.get(instance["InstanceId"])
        if known is None:
            return
        instance["LaunchTime"] = known.booted_at
        stopped_at = known.stopped_at or known.truth.ended_at
        if instance["State"]["Name"] == "stopped" and stopped_at is not None:
            instance["StateTransitionReason"] = f"User initiated ({stopped_at:%Y-%m-%d %H:%M:%S} GMT)"


# The one that every client's calls concern: making clients takes longer than most tests.
_live: list[Live] = []


def _before_call(**call: Any) -> None:
    _live[0].before_call(**call)


def _after_call(**call: Any) -> None:
    _live[0].after_call(**call)


@cache
def _made() -> tuple[Any, Any]:
    """Return a session for agents, and the sweep's clients; the present world sees their calls."""
    session = boto3.session.Session(region_name=REGION)
    own = aws_session._session.__wrapped__()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aws_session, "_session", lambda: own)
        for process in (session, own):
            process.events.register("before-call", _before_call)
            process.events.register("after-call", _after_call)
        made = cache(partial(session.client, region_name=REGION))
        session.client = lambda service, *_, **__: made(service)
        return session, aws_session.clients(REGION)


class Metadata:
    """A metadata service that shows tags."""

    def __init__(self, tags: Callable[[], dict[str, str]]) -> None:
        self._tags = tags

    def get(self, path: str) -> str | None:
        return self._tags().get(path.removeprefix("tags/instance/"))


@contextlib.contextmanager
def live_aws(folder: Path) -> Iterator[Live]:
    with fake_aws(frozen=False), pytest.MonkeyPatch.context() as patch:
        yield Live(patch, folder)


def marked_and_due(live: Live, count: int = 1, **more: Any) -> list[Instance]:
    """Return marked instances that have replied; the next sweep may terminate them."""
    instances = live.start(count, **more)
    live.pass_minutes(2)
    live.sweep(override_breaker=True)
    assert len(live.marked()) == count
    live.pass_minutes(12)
    return instances

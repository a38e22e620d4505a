"""A cloud, an engine and a clock that an acceptance run can be played on in no time, with things that break.

Instances boot, beat and idle by the clock; scripts are answered as the instance would by what the run has
done to it before. What breaks is named in ``broken``.
"""

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Self

from gpu_fleet_image.core.model import TAG_KEEP_UNTIL, TAG_POOL, TAG_REAP_AFTER, Instance
from gpu_fleet_stacks.acceptance import on_instance
from gpu_fleet_stacks.acceptance.account import Call, CommandOutput, Kept, Orphan
from gpu_fleet_stacks.acceptance.errors import EngineError, NotReachableError
from gpu_fleet_stacks.clients.errors import CannotCheckError
from gpu_fleet_stacks.preflight.findings import Finding, Rating

BEGIN = datetime(2026, 11, 21, 6, tzinfo=UTC)
ACCOUNT_ID = "123456789012"
BOOT, FIRST_BEAT, GATE, TRAINER = (timedelta(minutes=n) for n in (1, 3, 4, 12))
IDLE, GRACE = timedelta(minutes=30), timedelta(minutes=10)
STEPS_PER_S, STEPS_PER_EPOCH, SAVE_EVERY = 20, 22.5, 50
BUCKETS = ("data", "checkpoints", "records")
RESULT = {"metric_name": "accuracy", "metric": 0.99, "reason": "all steps done", "detail": ""}


class PretendClock:
    """Time that passes only by sleeping.

    Attributes:
        time: what it shows.
        at: a moment and what to do when it has come, once.
    """

    def __init__(self) -> None:
        self.time = BEGIN
        self.at: list[tuple[datetime, object]] = []

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        due = [entry for entry in self.at if entry[0] <= self.time]
        self.at = [entry for entry in self.at if entry[0] > self.time]
        for _, error in due:
            raise error


@dataclass
class Training:
    """One run of the trainer on an instance."""

    uri: str
    folder: str
    steps: int
    started: datetime
    begins_at: int
    resumed: int | None = None
    stopped_at: datetime | None = None

    def step(self, now: datetime) -> int:
        until = min(now, self.stopped_at or now)
        return min(self.steps, self.begins_at + int((until - self.started).total_seconds() * STEPS_PER_S))


@dataclass
class Box:
    """What is known of an instance beyond what the cloud says."""

    instance: Instance
    job: Training | None = None
    ended_at: datetime | None = None


@dataclass
class PretendCloud:
    """Account and engine in one.

    Attributes:
        clock: its time.
        broken: what does not work.
        boxes: every instance that ever was.
        objects: URI -> when it was written.
        stands: whether the stack is up.
        torn_down: how often it was destroyed.
    """

    clock: PretendClock
    broken: set[str] = field(default_factory=set)
    interrupts_spot: bool = True
    watches: tuple[str, ...] = ("alarms", "budgets", "schedules")
    kind: str = "g4dn.xlarge"
    calls: list[Call] = field(default_factory=list)
    boxes: dict[str, Box] = field(default_factory=dict)
    objects: dict[str, datetime] = field(default_factory=dict)
    commands: dict[str, CommandOutput] = field(default_factory=dict)
    stands: bool = False
    key: str = "Enabled"
    torn_down: int = 0
    fis_role: bool = False
    pools: tuple[str, ...] = ("people", "spot")
    made_empty: tuple[str, ...] = ()
    ledger: dict[str, bytes] = field(default_factory=dict)

    # the engine

    def version(self) -> str:
        return "v3.260.0"

    def up(self, timeout_s: float) -> None:
        self.clock.sleep(240)
        self.stands = True
        if "up" in self.broken:
            raise EngineError("pulumi up: exit code 255; VpcLimitExceeded")
        for pool in self.pools:
            if pool not in self.made_empty:
                self._start_if_room(pool)

    def _start_if_room(self, pool: str) -> None:
        if f"no capacity {pool}" not in self.broken:
            self._launch(pool)

    def _launch(self, pool: str) -> None:
        name = f"i-{len(self.boxes):017x}"
        kind = "p5.48xlarge" if "foreign type" in self.broken else self.kind
        launched = self.clock.now()
        self.boxes[name] = Box(
            Instance(name, kind, "running", launched, {TAG_POOL: pool}, spot=pool == "spot")
        )

    def outputs(self) -> dict[str, object]:
        return {
            "topic_arn": "arn:topic",
            "group_names": {pool: [f"group-{pool}"] for pool in self.pools},
            "bucket_uris": {kind: self.bucket(kind) for kind in BUCKETS},
        }

    def bucket(self, kind: str) -> str:
        return f"s3://{kind}"

    def destroy(self, timeout_s: float) -> None:
        self.torn_down += 1
        self.clock.sleep(300)
        if "destroy" in self.broken:
            raise EngineError("pulumi destroy: exit code 255; DependencyViolation")
        if self.objects:
            raise EngineError("pulumi destroy: exit code 255; BucketNotEmpty")
        for box in self.boxes.values():
            self._end(box)
        self.stands = "stays" in self.broken

    def forget(self) -> None:
        return

    # the account

    def identity(self) -> str:
        self._called("identity")
        return ACCOUNT_ID

    def _called(self, name: str) -> None:
        self.calls.append(Call(self.clock.now(), f"cloud.{name}", "id-1", "", "https://example.com"))

    def instances(self) -> list[Instance]:
        self._called("instances")
        self._live()
        return [box.instance for box in self.boxes.values()]

    def kept(self, groups: dict[str, list[str]]) -> list[Kept]:
        found = "Inactive" if "group" in self.broken else "Active"
        return [
            Kept(instance_id, "LifecycleState", "Active", found)
            for ids in groups.values()
            for instance_id in ids
        ]

    def raise_empty(self, groups: dict[str, list[str]]) -> list[str]:
        return []

    def logged(self) -> dict[str, float]:
        return {"flow": 12.5, "reaper": 0.0 if "log" in self.broken else 3.0}

    def why_none(self, group: str) -> str:
        return f"{group}: InsufficientInstanceCapacity"

    def run(self, instance_id: str, script: str) -> str:
        box = self.boxes[instance_id]
        if "unreachable" in self.broken or self._age(box) < BOOT or box.instance.ended:
            raise NotReachableError("InvalidInstanceId", "InvalidInstanceId")
        command = f"command-{len(self.commands)}"
        self.commands[command] = self._said(box, script)
        return command

    def said(self, command_id: str, instance_id: str) -> CommandOutput | None:
        return self.commands[command_id]

    def _said(self, box: Box, script: str) -> CommandOutput:
        if script == on_instance.gate():
            return self._gate(box)
        if script == on_instance.environment():
            gpus = 0 if "no gpu" in self.broken else 1
            return CommandOutput(0, f"2.13.0 {gpus}\n") if self._age(box) >= TRAINER else CommandOutput(3, "")
        if script == on_instance.ask_to_stop():
            self._stop(box, self.clock.now())
        elif script.startswith("journalctl "):
            return CommandOutput(0, "torch.cuda.OutOfMemoryError")
        elif "systemctl start" in script:
            self._start(box, script)
        elif "systemctl show" in script:
            return self._look(box)
        return CommandOutput(0, "")

    def _gate(self, box: Box) -> CommandOutput:
        if self._age(box) < GATE:
            return CommandOutput(3, "")
        good = "gate" not in self.broken
        checks = {"gpus": {"ok": good, "detail": "1 of 1" if good else "0 of 1 GPUs"}}
        return CommandOutput(0, json.dumps({"ready": good, "checks": checks}))

    def _start(self, box: Box, script: str) -> None:
        texts = [base64.b64decode(match).decode() for match in re.findall(r"echo (\S+) \| base64", script)]
        options = dict(re.findall(r"--([a-z._]+) (\S+)", texts[1]))
        uri = options["checkpoint.uri"].replace("oss://", "s3://")
        saved = [step for step, _ in self._steps(uri)]
        steps = int(float(options["run.epochs"]) * STEPS_PER_EPOCH)
        begins = max(saved, default=0) if "forgets" not in self.broken else 0
        box.job = Training(uri, options["run.directory"], steps, self.clock.now(), begins)
        box.job.resumed = max(saved) if saved and "forgets" not in self.broken else None

    def _steps(self, uri: str) -> Iterator[tuple[int, str]]:
        for key in self.objects:
            if match := re.fullmatch(rf"{re.escape(uri)}/step-(\d+)/manifest\.json", key):
                yield int(match[1]), key

    def _look(self, box: Box) -> CommandOutput:
        job = box.job
        if "trainer" in self.broken:
            return CommandOutput(
                0, f"ActiveState=failed\nResult=exit-code\nNRestarts=0\n{2 * (on_instance.MARK + chr(10))}"
            )
        self._live()
        step = job.step(self.clock.now())
        over = step == job.steps or job.stopped_at is not None
        outcome = {}
        if over:
            done = step == job.steps
            weights = "other" if "weights" in self.broken and job.resumed is not None else "same"
            outcome = RESULT | {
                "outcome": "finished" if done else "stopped",
                "step": step,
                "parameters_sha256": weights,
                "resumed_from_step": job.resumed,
            }
        parts = (
            f"ActiveState={'inactive' if over else 'active'}\nResult=success\nNRestarts=0",
            json.dumps(outcome) if outcome else "",
            json.dumps({"step": step}),
        )
        return CommandOutput(0, f"\n{on_instance.MARK}\n".join(parts))

    def _stop(self, box: Box, now: datetime) -> None:
        if box.job is None or box.job.stopped_at is not None:
            return
        box.job.stopped_at = now
        if "saves nothing" not in self.broken:
            self.objects[f"{box.job.uri}/step-{box.job.step(now)}/manifest.json"] = now

    def _age(self, box: Box) -> timedelta:
        return self.clock.now() - box.instance.launched_at

    def newest_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        first = self.first_heartbeat(instance_id, since)
        return first if first is None or "falls silent" in self.broken else self.clock.now()

    def first_heartbeat(self, instance_id: str, since: datetime) -> datetime | None:
        box = self.boxes[instance_id]
        if "heartbeat" in self.broken or self._age(box) < FIRST_BEAT:
            return None
        early = timedelta(minutes=10) if "falls silent" in self.broken else timedelta(0)
        return box.instance.launched_at + FIRST_BEAT - early

    def tag(self, instance_id: str, tags: dict[str, str]) -> None:
        box = self.boxes[instance_id]
        box.instance = replace(box.instance, tags={**box.instance.tags, **tags})

    def untag(self, instance_id: str, keys: list[str]) -> None:
        box = self.boxes[instance_id]
        left = {key: value for key, value in box.instance.tags.items() if key not in keys}
        box.instance = replace(box.instance, tags=left)

    def keys(self, uri: str) -> dict[str, datetime]:
        self._live()
        bucket = uri.split("/")[2]
        found = {key: at for key, at in self.objects.items() if key.startswith(uri)}
        return {key.removeprefix(f"s3://{bucket}/"): at for key, at in found.items()}

    def read(self, uri: str) -> bytes:
        self._live()
        if uri == f"{self.bucket('records')}/reaper/meter.json":
            return self._meter()
        return self.ledger[uri]

    def _meter(self) -> bytes:
        now = self.clock.now()
        factor = 0.5 if "meter" in self.broken else 1.0
        instances = {
            name: {
                "seconds": int(((box.ended_at or now) - box.instance.launched_at).total_seconds() * factor)
            }
            for name, box in self.boxes.items()
        }
        reading = {"until": now.isoformat(), "month": {"people": "1.00"}, "day": {"machines": instances}}
        return json.dumps(reading).encode()

    def watched(self, topic: str) -> dict[str, list[str]]:
        schedules = [] if "schedule" in self.broken else ["sweep"]
        return {"alarms": ["a"], "budgets": ["b"], "schedules": schedules, "recipients": ["pending"]}

    @property
    def interruption(self) -> Self | None:
        return self if self.interrupts_spot else None

    @property
    def cleanup(self) -> Self:
        return self

    def interrupt(self, instance_id: str) -> str:
        self.fis_role = True
        if "fis" in self.broken:
            raise CannotCheckError("start_experiment: AccessDeniedException: no", "AccessDeniedException")
        box = self.boxes[instance_id]
        self._stop(box, self.clock.now())
        box.ended_at = self.clock.now() + timedelta(minutes=2)
        return "FIS experiment EXP1"

    def forget_interruption(self) -> None:
        self.fis_role = False

    def orphans(self) -> list[Orphan]:
        if "left" in self.broken:
            raise CannotCheckError("describe_volumes: UnauthorizedOperation", "UnauthorizedOperation")
        running = [box.instance for box in self.boxes.values() if not box.instance.ended]
        found = [Orphan("instance", resource.id, resource.state, resource.type) for resource in running]
        if self.stands:
            found.append(Orphan("nat gateway", "nat-1", "available", "nat_gateway"))
        return [*found, Orphan("kms", "arn:key", self.key, "" if self.key == "PendingDeletion" else "key")]

    def let_keys_go(self) -> list[str]:
        assert not self.stands or "stays" in self.broken
        self.key = "PendingDeletion"
        return ["arn:key"]

    def end_stragglers(self) -> list[str]:
        return []

    def empty_buckets(self) -> int:
        found = len(self.objects)
        self.objects.clear()
        return found

    # what goes on by itself

    def _end(self, box: Box) -> None:
        if not box.instance.ended:
            box.instance = replace(box.instance, state="terminated")
            box.ended_at = box.ended_at or self.clock.now()

    def _live(self) -> None:
        """Spot goes and comes, trainers save, the sweep marks and ends."""
        now = self.clock.now()
        for box in list(self.boxes.values()):
            if box.ended_at is not None and box.ended_at <= now and not box.instance.ended:
                self._end(box)
                if box.instance.spot:
                    self._launch("spot")
            if box.job is not None:
                saves = range(box.job.begins_at + SAVE_EVERY, box.job.step(now) + 1, SAVE_EVERY)
                for step in saves:
                    at = box.job.started + timedelta(seconds=(step - box.job.begins_at) / STEPS_PER_S)
                    self.objects.setdefault(f"{box.job.uri}/step-{step}/manifest.json", at)
            if box.instance.pool == "people" and not box.instance.ended:
                self._sweep(box, now)

    def _sweep(self, box: Box, now: datetime) -> None:
        tags = box.instance.tags
        ignores_holds = "ignores holds" in self.broken
        if "sweep" in self.broken or self._age(box) < IDLE or (TAG_KEEP_UNTIL in tags and not ignores_holds):
            return
        if TAG_REAP_AFTER not in tags:
            self.tag(box.instance.id, {TAG_REAP_AFTER: (now + GRACE).isoformat()})
        elif now >= datetime.fromisoformat(tags[TAG_REAP_AFTER]):
            self._end(box)
            name = f"{box.instance.id}-20261121T120000Z-terminate.json"
            key = f"{self.bucket('records')}/reaper/ledger/2026/11/21/{name}"
            self.objects[key] = now
            self.ledger[key] = json.dumps({"reason": "idle for 31 min", "stack": "aws-dev-accept"}).encode()


def room(cloud: PretendCloud):
    """What the preflight would answer."""

    def look(stack) -> list[Finding]:
        if "quota" in cloud.broken:
            return [Finding("quota", Rating.PROBLEM, "0 vCPU of 8", "ask for more")]
        return [Finding("quota", Rating.FINE, "768 vCPU"), Finding("key", Rating.UNCHECKED, "denied")]

    return look

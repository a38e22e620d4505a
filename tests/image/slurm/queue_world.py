"""Simulation of a queue from its first job to its last, in which everything may fail.

Real are the controller's watch (demand, job records, exclusion), the mover with its placement, the sweep
with its meter and its freeze, the agents' answers to marks, the prolog and the health check, the batch
script, and how a try of `gpu-fleet submit` ends. Made up are Slurm (``fake_slurm``), the cloud, and users.
"""

import contextlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from gpu_fleet_image.console.runs import batch
from gpu_fleet_image.controllers.mover import aws as capacity_aws
from gpu_fleet_image.controllers.mover import mover
from gpu_fleet_image.controllers.mover.pool_view import Action
from gpu_fleet_image.controllers.sweep.handler import conclude
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.cloud import connect
from gpu_fleet_image.core.errors import InstanceError
from gpu_fleet_image.core.model import TAG_MANAGED, TAG_POOL, TAG_STACK
from gpu_fleet_image.core.policy import Policy
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.providers.aws import instances as aws_instances
from gpu_fleet_image.slurm import configuration, controller, job_records
from gpu_fleet_image.slurm.configuration import Cluster
from gpu_fleet_image.slurm.exclusion import failed_on
from gpu_fleet_jobs.submitted.queued import QueuedJob
from tests.image.moto_fleet import budget_json, policy_json, pool_policy
from tests.image.slurm.fake_slurm import OVER, FakeSlurm, Instances, Job, Part, Program, placed_on
from tests.image.sweeping import ENVIRON, connect_world, sweep_world
from tests.image.world import EPOCH, STACK, SimulatedInstance, World
from tests.image.world_agents import LEDGER
from tests.image.world_clients import _S3, _AutoScaling, _Ec2, clients

POOL, MOST = "train", 4
SIZE = Part(4, 16, 64_000)
COUNTED = {"queue_gpus": SIZE.gpus, "queue_cpus": SIZE.cpus, "queue_memory_mib": SIZE.memory}
# Of jobs by sbatch alone: parts of an instance, and more than any has.
SIZES: tuple[dict[str, object], ...] = (
    {},
    {"gpus": 1},
    {"gpus": 3, "cpus-per-task": 4},
    {"gres": "gpu:a100:1"},
    {"gpus-per-node": 8},
    {"gpus": 8},
)
ZONES = ("train-us-east-1a", "train-us-east-1b")
TAGS = {TAG_STACK: STACK, TAG_MANAGED: "true", TAG_POOL: POOL}
NO_ROOM = "We currently do not have sufficient g5.xlarge capacity"
PRICE = Decimal("1.026")  # of an hour with its disk, as the budget has it
BEAT = timedelta(seconds=5)
LOOK, HEALTH, MINUTE, SWEEP = (timedelta(seconds=seconds) for seconds in (15, 30, 60, 600))
NOTICE, DISTURBED = timedelta(minutes=2), timedelta(minutes=75)
NEVER_AGAIN, SAVED = (0, 2, 65), 85  # README: 0, 2 and 65 end a job, 85 (saved, run it again) puts it back
TRIES = 3  # README: anything else is tried three times
PUT_BACK_AFTER = timedelta(seconds=60)  # README: marked down within 15 seconds; with a look that failed
# A silent group is given up after 5 minutes, one that failed is tried again after 5; an instance boots.
LONGEST_WAIT = timedelta(minutes=16)


class QueueAutoScaling(_AutoScaling):
    """Calls of Auto Scaling that the mover makes in addition to the sweep."""

    def describe_auto_scaling_groups(self, MaxRecords=100, Filters=None, AutoScalingGroupNames=None):  # noqa: N803
        return super().describe_auto_scaling_groups(MaxRecords, Filters, AutoScalingGroupNames)

    def set_desired_capacity(self, AutoScalingGroupName, DesiredCapacity, HonorCooldown):  # noqa: N803
        self._world.before("SetDesiredCapacity")
        self._world.groups[AutoScalingGroupName]["desired"] = DesiredCapacity
        self._world.after("SetDesiredCapacity")
        return self._world.answer("SetDesiredCapacity", {})

    def describe_scaling_activities(self, AutoScalingGroupName, MaxRecords):  # noqa: N803
        self._world.before("DescribeScalingActivities")
        rows = list(reversed(self._world.activities.get(AutoScalingGroupName, [])))[:20]
        return self._world.answer("DescribeScalingActivities", {"Activities": rows})


class QueueEc2(_Ec2):
    """Calls of EC2 by the controller; an answer may omit an instance that has just started or ended."""

    def describe_instances(self, Filters, MaxResults=1000, NextToken="0"):  # noqa: N803
        page = super().describe_instances(Filters, MaxResults, NextToken)
        if len(Filters) == 1:  # by their ids: the controller
            left_out = {
                name
                for name in self._world.instances
                if name not in self._world.left_out and self._world.chance(self._world.forgetful)
            }
            self._world.left_out = left_out
            page["Reservations"] = [
                listed
                for listed in page["Reservations"]
                if listed["Instances"][0]["InstanceId"] not in left_out
            ]
        return page


class QueueS3(_S3):
    """S3 that accepts a Range, as the product reads only the first bytes of users' objects."""

    def get_object(self, Bucket, Key, Range=""):  # noqa: N803
        return super().get_object(Bucket, Key)


class QueueWorld(World):
    """World whose queue goes on working whenever time passes, also during a sweep's calls and waits.

    Attributes:
        activities: group -> its scaling activities.
        forgetful: share of answers to the controller from which the cloud omits an instance; never twice in
            a row, as the product expects.
        left_out: ids of its last answer.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.activities: dict[str, list[dict[str, Any]]] = {}
        self.forgetful = 0.0
        self.left_out: set[str] = set()
        self.play: QueuePlay | None = None
        self._works = False

    def _pass(self, span: timedelta) -> None:
        end = self.now + span
        while self.now < end:
            beat = EPOCH + ((self.now - EPOCH) // BEAT + 1) * BEAT
            super()._pass(min(beat, end) - self.now)
            if self.play is not None and not self._works and self.now == beat:
                self._works = True
                try:
                    self.play.beat()
                finally:
                    self._works = False

    def gone(self, instance: SimulatedInstance, how: str) -> None:
        """Terminate an instance by a sweep; by the engine, no job may work there."""
        if self.play is not None:
            self.play.ended_by_the_sweep(instance)
        super().gone(instance, how)


@dataclass
class Guest:
    """An instance as the queue sees it.

    Attributes:
        ready_at: time when its boot check has passed.
        dies_at: time when the cloud terminates it; None for never.
        stopping: the agent has seen the cloud's notice.
        bad: programs fail there.
    """

    ready_at: datetime
    dies_at: datetime | None = None
    stopping: bool = False
    bad: bool = False


class QueuePlay(Instances):
    """The random schedule of one seed in its world.

    Attributes:
        number: of jobs, submitted over the time in which anything may fail.
        submitted: every job that was ever submitted.
        wrongs: descriptions of broken promises.
    """

    def __init__(self, seed: int) -> None:
        first, self.dice = random.Random(seed), random.Random(seed)
        self.number, monthly = first.randint(3, 9), first.choice(["1000", "1000", "4", "2"])
        self.seed, self.world = seed, QueueWorld(seed)
        for zone in ZONES:
            self.world.group(f"gpu-fleet-{STACK}-{zone}", 0, MOST, **{TAG_POOL: POOL, TAG_STACK: STACK})
        self.room = dict.fromkeys(self.world.groups, True)
        self.guests: dict[str, Guest] = {}
        self.policy = self._policy(monthly)
        self.submitted: list[Job] = []
        self.wrongs: list[str] = []
        self.disturbs = True
        self.failed_where: dict[str, list[str]] = {}
        self.deaths: dict[str, datetime] = {}
        self.spent = Decimal(0)
        self.seeing_since = self.world.now
        self.notified_at = self.world.now
        self.slurm = FakeSlurm(self.conf(), self, self.ends_with, self.world.chance)
        self.slurm.step(self.world.now)
        self.back_at: datetime | None = None
        self.fits_since = self.world.now
        self.new_controller()
        self.world.play = self

    # the product

    def _policy(self, monthly: str) -> Policy:
        capacity = {"groups": list(ZONES), "max_size": MOST, **COUNTED}
        capacity |= {"spare": 0, "scale_out_alarms": []}
        pool = pool_policy(
            idle_after_hours=0.2,
            grace_minutes=5,
            min_uptime_minutes=10,
            require_acknowledgement=True,
            capacity=capacity,
        )
        budget = budget_json(monthly=monthly, percents=[30, 100])
        budget["pools"] = {POOL: budget["pools"]["dev"]}
        content = policy_json(pools={POOL: pool}, budget=budget)
        self.published = content
        return policies.parse(json.dumps(content))

    def conf(self) -> str:
        """Return the product's ``slurm.conf``."""
        memory = {POOL: SIZE.memory // SIZE.gpus}
        cluster = Cluster(STACK, "host", "10.0.0.4", memory, str(configuration.state_of(STACK)))
        return configuration.slurm_conf(cluster)

    def store(self) -> Store:
        """Return the stack's records."""
        return Store(QueueS3(self.world), Calls(self.world.clock), LEDGER)

    def new_controller(self) -> None:
        """Start another controller from the bucket and the shared homes."""
        store, calls, ec2 = self.store(), Calls(self.world.clock), QueueEc2(self.world)
        self.watch: controller.ControllerWatch | None = controller.ControllerWatch(
            lambda: self.published,
            lambda ids: aws_instances.states_of(calls, ec2, ids),
            lambda content: store.put("capacity/queue.json", content),
            lambda *_: self._has_changed(),
            lambda content: store.put(job_records.JOBS, content),
            controller.kept_records(store),
            ask=self.slurm.ask,
        )

    def _has_changed(self) -> bool:
        """Return whether the stack's pools have changed since the last poll, which is rare."""
        return self.disturbs and self.dice.random() < 0.004

    def lose_controller(self) -> None:
        """Lose the controller and its disk; another one starts later."""
        self.watch, self.slurm.is_up, self.slurm.back_at = None, False, None
        self.seeing_since = datetime.max.replace(tzinfo=UTC)
        self.back_at = self.world.now + timedelta(seconds=self.dice.randint(60, 150))
        if not self.slurm.state.startswith(f"{configuration.HOMES}/"):
            self.slurm.jobs.clear()
            self.slurm.nodes.clear()

    def ends_with(self, job: Job, status: int, blamed: str) -> int:
        """Return the exit status of a try's script: by the product for `gpu-fleet submit`, else unchanged."""
        if not job.comment:
            return status
        environment = {"SLURM_JOB_ID": job.id}
        made: Any = None  # neither bucket nor reporter has a part in it
        tried = QueuedJob(
            ("run", "--", "true"), Path("log"), made, made, environment, ask=lambda *words: self._said(words)
        )
        tried._failed_on = blamed
        done = tried._outcome(status)[2]
        if status not in (*NEVER_AGAIN, SAVED):
            self.failed_where.setdefault(job.id, []).append(blamed)
        return done

    def _said(self, words: Sequence[str]) -> str:
        return self.slurm.ask(words)

    def move(self) -> None:
        """Run the mover, as it does every minute."""
        world = self.world
        made = replace(clients(world), autoscaling=QueueAutoScaling(world), s3=QueueS3(world))
        with contextlib.suppress(InstanceError):  # an alarm; the next minute tries again
            cloud = connect(self.policy, world.clock, environ=ENVIRON, made=made)
            groups = capacity_aws.Groups(made.autoscaling, cloud.calls)
            result = mover.move(cloud, groups, self.policy, world.clock)
            self._hold_to_limits(
                [done for done in result.decisions if done.action is Action.START], result.failures
            )

    def sweep(self) -> None:
        """Run a sweep, as it does every ten minutes."""
        with contextlib.suppress(InstanceError):
            options = {"unseen": timedelta(0), "override_breaker": True}
            result = sweep_world(self.world, self.policy, **options)
            conclude(connect_world(self.world, self.policy), self.policy, result)

    # the cloud and its instances

    def is_alive(self, name: str) -> bool:
        return self.world.instances[name].state == "running"

    def marks(self, name: str) -> frozenset[str]:
        instance, guest = self.world.instances[name], self.guests[name]
        there = {
            "ready": guest.ready_at <= self.world.now,
            "closed": instance.door.is_shut,
            "stop": guest.stopping,
        }
        return frozenset(mark for mark, is_there in there.items() if is_there)

    def is_bad(self, name: str) -> bool:
        return self.guests[name].bad

    def works(self, name: str, *, on: bool) -> None:
        instance = self.world.instances[name]
        if on:
            instance.begin_behind_the_door()
        elif not any(other == name for _, other in self.slurm.alive):
            instance.leave()

    def _launch(self) -> None:
        for name, group in self.world.groups.items():
            group["members"] = [key for key in group["members"] if self.is_alive(key)]
            if "Launch" in group["suspended"] or len(group["members"]) >= group["desired"]:
                continue
            now, tried = self.world.now, self.world.activities.setdefault(name, [])
            row = {"Description": "Launching a new EC2 instance", "StartTime": now, "EndTime": now}
            if not self.room[name]:
                tried.append(row | {"StatusCode": "Failed", "StatusMessage": NO_ROOM})
                continue
            tried.append(row | {"StatusCode": "Successful"})
            made = self.world.start(TAGS, name, busy=False)
            boots = timedelta(seconds=self.dice.randint(40, 150))
            self.guests[made.id] = Guest(now + boots, bad=self.disturbs and self.dice.random() < 0.1)

    def _take(self, name: str, *, notice: bool) -> None:
        """Make the cloud terminate an instance, with or without a notice."""
        guest = self.guests[name]
        guest.stopping = guest.stopping or notice
        guest.dies_at = guest.dies_at or self.world.now + (NOTICE if notice else timedelta(0))

    def _deaths(self) -> None:
        for name, guest in self.guests.items():
            instance = self.world.instances[name]
            if guest.dies_at and guest.dies_at <= self.world.now and instance.state == "running":
                instance.state = "terminated"
                self.deaths[name] = self.world.now

    def _register(self) -> None:
        for name, guest in self.guests.items():
            known = name in self.slurm.nodes or name in self.slurm.down_at
            if not known and self.is_alive(name) and guest.ready_at <= self.world.now and self.slurm.is_up:
                self.slurm.register(name, POOL, SIZE)

    # one beat

    def beat(self) -> None:
        """Advance everything except sweeps by five seconds."""
        now = self.world.now
        self.spent += PRICE * len(self._running()) * 5 / 3600
        self._deaths()
        if self.disturbs:
            self._disturb()
        if self.back_at and now >= self.back_at:
            self.back_at = None
            self.slurm.is_up = True
            self.slurm.configure(self.conf())
            with contextlib.suppress(InstanceError):
                self.new_controller()
            self.seeing_since = now + LOOK
            if self.watch is None:  # the unit tries again
                self.back_at, self.slurm.is_up = now + BEAT, False
        self._register()
        before = {job.id: len(job.tries) for job in self.submitted}
        self.slurm.step(now)
        self._hold_starts(before)
        if self.world.now >= self.notified_at:
            self.notified_at = now + timedelta(seconds=20)
            self._launch()
        if self._is_time(LOOK) and self.watch is not None:
            self._look()
        if self._is_time(HEALTH):
            self.slurm.check_health()
        if self._is_time(MINUTE):
            self.move()
        self._hold_sizes()
        self._hold_waits()
        self.wrongs += self.slurm.wrongs
        self.slurm.wrongs = []

    def _is_time(self, every: timedelta) -> bool:
        return (self.world.now - EPOCH) // every != (self.world.now - BEAT - EPOCH) // every

    def _look(self) -> None:
        assert self.watch is not None
        try:
            self.watch.once(self.world.now)
        except InstanceError:
            self.seeing_since = self.world.now + LOOK
            return
        if not self.slurm.is_up:  # it has just told slurmctld to start anew
            self.seeing_since = self.world.now + 3 * LOOK
            return
        self._hold_books()
        self._hold_deaths()

    def _running(self) -> list[str]:
        return [name for name in self.guests if self.is_alive(name)]

    # what users, clouds and hardware do

    def submit(self) -> None:
        """Submit a random job."""
        dice = self.dice
        program = Program(dice.choice([60.0, 400.0, 1200.0]), dies_for_good=dice.random() < 0.1)
        if not program.dies_for_good and dice.random() < 0.2:
            program.errs = dice.randint(1, 3)
        nodes = dice.choice([1, 1, 2, 3])
        name = f"run-{len(self.submitted)}"
        if dice.random() < 0.25:  # by sbatch alone, which fails once and for all
            options = {"partition": POOL, "nodes": nodes, "job-name": name}
            options |= dice.choice(SIZES) if nodes == 1 else {}
            text = "\n".join(f"#SBATCH --{key}={value}" for key, value in options.items())
        else:
            log = f"/home/ada/{name}.log"
            text = batch.script(batch.JobScript(name, POOL, nodes, SIZE.gpus, "/home/ada", log, ("launch",)))
        self.submitted += self.slurm.submit(text, program)

    def _disturb(self) -> None:
        dice, world = self.dice, self.world
        running = self._running()
        left = self.number - len(self.submitted)
        behind_a_door = any(world.instances[name].door.is_shut for name in running)
        if left and self.slurm.is_up and dice.random() < (0.4 if behind_a_door else 0.012):
            self.submit()
        if running and dice.random() < 0.002:
            self._take(dice.choice(running), notice=dice.random() < 0.5)
        if self.submitted and self.slurm.is_up and dice.random() < 0.0008:
            self.slurm.cancel(dice.choice(self.submitted))
        if dice.random() < 0.001 and self.back_at is None:
            self.lose_controller()
        if dice.random() < 0.003:
            zone = dice.choice(list(self.room))
            self.room[zone] = not self.room[zone]
        if dice.random() < 0.002:
            world.faults.throttled = dice.choice([0.0, 0.0, 0.05, 0.3])
            world.faults.after_commit = dice.choice([0.0, 0.0, 0.05])
            world.forgetful = dice.choice([0.0, 0.05])

    def run(self) -> list[str]:
        """Play the schedule to its end; return the broken promises."""
        world = self.world
        self.sweep()  # the first sweep begins to meter
        until = world.now + DISTURBED
        while world.now < until and not self.wrongs:
            world._pass(SWEEP)
            self.sweep()
        self._calm()
        for _ in range(24):
            if self.wrongs or self._is_over():
                break
            world._pass(SWEEP)
            self.sweep()
        return self.wrongs + world.wrongs + world.floors() + self._lost()

    def _calm(self) -> None:
        """End all failures; from now on there is money, and capacity in at least one zone."""
        self.disturbs = False
        self.world.faults.throttled = self.world.faults.after_commit = self.world.forgetful = 0.0
        self.room = dict.fromkeys(self.room, True)
        if self.seed % 3 == 1:  # one zone never has room any more
            self.room[next(iter(self.room))] = False
        for guest in self.guests.values():
            guest.bad = False
        self.policy = self._policy("1000")
        if self.back_at:
            self.back_at = self.world.now
        for work_s in (1500.0, 60.0):  # the second beside the first: there is room for both
            options = f"#SBATCH --partition={POOL}\n#SBATCH --nodes=2\n"
            self.submitted += self.slurm.submit(options, Program(work_s))

    def _hold_waits(self) -> None:
        """Check that without failures, a single waiting job that fits does not wait long."""
        waiting = [job for job in self.submitted if job.state == "PENDING" and can_run(job)]
        taken = [
            node for node in self.slurm.nodes.values() if self.is_alive(node.name) and not node.takes_jobs
        ]
        fits = len(waiting) == 1 and len(taken) + waiting[0].nodes <= MOST and not waiting[0].excluded
        # a freeze is lifted by the next sweep, which waits for the lease of one that was cut off
        if self.disturbs or not fits or self._is_frozen():
            self.fits_since = self.world.now
        elif self.world.now - self.fits_since > LONGEST_WAIT:
            self.wrongs.append(f"job {waiting[0].id} waits for {LONGEST_WAIT} though there is room: {taken}")

    def _is_over(self) -> bool:
        """Return whether every job has ended, and the pool is empty."""
        is_over = all(job.state in OVER or not can_run(job) for job in self.submitted)
        return is_over and not self._running()

    # promises

    def _lost(self) -> list[str]:
        """Return jobs without an end or with a wrong one, and instances that are not terminated."""
        wrongs = [
            f"job {job.id} is {job.state} ({job.reason}), {job.program}: lost"
            for job in self.submitted
            if not self._is_due(job)
        ]
        return wrongs + [f"{name} is left though nothing runs" for name in self._running()]

    def _is_due(self, job: Job) -> bool:
        if not can_run(job) and job.state != "CANCELLED":
            return job.state == "PENDING" and job.admin_comment.startswith("gpu-fleet: ")
        if job.state == "CANCELLED":
            return job.wishes
        if job.state == "FAILED":
            tries = TRIES if job.comment else 1
            failed = [status for status in job.statuses if status not in (*NEVER_AGAIN, SAVED)]
            return job.program.dies_for_good or len(failed) >= tries
        return job.state == "COMPLETED" and job.program.saved_s >= job.program.work_s

    def _hold_starts(self, before: dict[str, int]) -> None:
        """Check that a restarted job starts on another instance, and not without limit."""
        for job in self.submitted:
            if len(job.tries) == before.get(job.id):
                continue
            failed = [status for status in job.statuses if status not in (*NEVER_AGAIN, SAVED)]
            if job.comment and len(failed) >= TRIES:
                self.wrongs.append(f"job {job.id} is tried again after {len(failed)} failures")
            named = self.failed_where.get(job.id, [])
            last = named[-1] if named else "-"
            seen = self.world.now - self.seeing_since > MINUTE
            if last in job.on and seen and job.nodes < MOST and last in failed_on(job.comment):
                self.wrongs.append(f"job {job.id} starts again on {last}, where it has just failed")
            if job.statuses and job.statuses[-1] in NEVER_AGAIN:
                self.wrongs.append(f"job {job.id} starts again after it ended with {job.statuses[-1]}")
            if taken := [name for name in job.on if "stop" in self.marks(name)]:
                self.wrongs.append(f"job {job.id} starts on {', '.join(taken)}, which the cloud takes")

    def _hold_deaths(self) -> None:
        """Check that no job is reported as running on an instance that is gone for a while."""
        for job in self.submitted:
            for name in job.on if job.state == "RUNNING" else ():
                gone = self.deaths.get(name)
                if gone and self.world.now - max(gone, self.seeing_since) > PUT_BACK_AFTER:
                    self.wrongs.append(f"job {job.id} runs on {name}, which is gone since {gone}")

    def _hold_sizes(self) -> None:
        """Check the sizes of the pool; an instance that a sweep has detached does not count."""
        wanted = sum(group["desired"] for group in self.world.groups.values())
        members = [key for group in self.world.groups.values() for key in group["members"]]
        has = sum(map(self.is_alive, members))
        if wanted > MOST or has > MOST:
            self.wrongs.append(f"the pool wants {wanted} and has {has}; its max is {MOST}")

    def _hold_to_limits(self, starts: list[Any], failures: Sequence[Any]) -> None:
        """Check that no instance starts in a frozen pool, or with a first hour above the remaining budget."""
        if not starts:
            return
        budget = self.policy.budget
        assert budget is not None
        number = sum(len(start.coming) for start in starts)
        if self.spent + PRICE * number > budget.monthly:
            self.wrongs.append(
                f"{self.spent:.2f} of {budget.monthly} are spent, and {number} more start: {starts[0].reason}"
            )
        if self._is_frozen():
            self.wrongs.append(f"the pool is frozen, and more starts: {starts}, {failures}")

    def _is_frozen(self) -> bool:
        freeze = self.world.objects.get("reaper/freeze.json")
        return freeze is not None and json.loads(freeze[0])["stage"] != "open"

    def _hold_books(self) -> None:
        """Check that users can read the state and the possible time of each job, from any controller."""
        said = json.loads(self.world.objects[f"reaper/{job_records.JOBS}"][0])
        entries = {entry["job"]["id"]: entry for entry in said["jobs"]}
        for job in self.submitted:
            entry = entries.get(job.id)
            if entry is None:
                self.wrongs.append(f"job {job.id} is missing in the job records")
            elif job.state in OVER and entry["job"]["state"] not in (job.state, job_records.UNSEEN):
                self.wrongs.append(
                    f"job {job.id} is {job.state}, the job records say {entry['job']['state']}"
                )

    def ended_by_the_sweep(self, instance: SimulatedInstance) -> None:
        """Check by the engine that no job works on the instance."""
        if jobs := [job for job, name in self.slurm.alive if name == instance.id]:
            self.wrongs.append(f"the sweep ends {instance.id} under job {', '.join(jobs)}")


def can_run(job: Job) -> bool:
    """Return whether a pool at its largest could run a job."""
    there = [(str(number), SIZE, SIZE) for number in range(MOST)]
    return placed_on(job.options, there, SIZE.memory // SIZE.gpus) is not None


@dataclass
class Tally:
    """Results of many schedules.

    Attributes:
        jobs: number of submitted jobs.
        wrong: seed -> broken promises.
    """

    jobs: int = 0
    restarts: int = 0
    ends: int = 0
    wrong: dict[int, list[str]] = field(default_factory=dict)

    def play(self, seed: int) -> None:
        """Play one more schedule."""
        played = QueuePlay(seed)
        found = played.run()
        self.jobs += len(played.submitted)
        self.restarts += sum(job.restarts for job in played.submitted)
        self.ends += len(played.world.ends)
        if found:
            self.wrong[seed] = found

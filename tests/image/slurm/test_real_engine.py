"""Slurm itself, started by a stack's resources: from no instance to a run that outlives one of its instances.

The stack's program runs against moto, and each instance that moto starts is a guest (``guests.py``) that
boots from its registered user data. The mover is the function's own archive. Nothing here configures Slurm.
"""

import json
import re
import shutil
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from gpu_fleet_image.core.queue_need import PoolNeed, needs_of
from gpu_fleet_image.recipe import build_requirements
from gpu_fleet_stacks.aws.stack import build
from gpu_fleet_stacks.rehearsal import lambda_runtime, sweeps
from gpu_fleet_stacks.rehearsal.archives import zip_bytes
from gpu_fleet_stacks.rehearsal.moto_server import moto_server
from gpu_fleet_stacks.rehearsal.program import run_program
from tests.bench.__main__ import TARGET, merge
from tests.bench.entries import entry
from tests.image.door import BUCKET, REGION, Door
from tests.image.slurm import guests
from tests.image.slurm.guests import AS_ROOT, Fleet, Guest
from tests.image.slurm.real_sizes import PACKAGES
from tests.stacks import examples

ROOT = Path(__file__).parents[3]
QUEUED = {
    "queue": "slurm",
    "storage": {"home": True},
    "access": {"people": {"ada": {"uid": 5001, "team": "nlp"}, "bob": {"uid": 5002, "team": "vision"}}},
    "teams": {"vision": {"max_gpus": 1}},
    "pools": [
        examples.pool(
            name="train", types=["g5.xlarge"], size={"min": 0, "desired": 0, "max": 3}, purpose="training"
        )
    ],
}
CHECKPOINTS = "gpu-fleet-test-checkpoints-123456789012"
ALONE = ("--nproc-per-node", "1")  # a process on each instance: no CUDA sees the GPU
FIGURES = re.compile(r" \d+ +\d\.\d")  # a step, and its loss
STEPS = ("--run.epochs", "90", "--run.log_every_steps", "5", "--checkpoint.every_steps", "25")
STEP_S = 120  # issue 19: from a death to the first new step, beside the fresh node's start
BACK_S = 120  # issue 19: the queue intact after its controller and its disk were lost
BOOT_S, JOB_S, RUN_S = 180, 300, 300  # what a hang looks like on two cores that others use too
pytestmark = [pytest.mark.queue, pytest.mark.timeout(1800), AS_ROOT]


@dataclass
class Lab:
    """A stack with a queue.

    Attributes:
        controller: the guest with slurmctld, which a test may replace.
        booted_s: seconds of the last instances from their start until they were nodes.
    """

    fleet: Fleet
    door: Door
    controller: Guest
    booted_s: float = 0.0

    def slurm(self, *words: str) -> str:
        return self.controller.run(*words, check=False)

    def nodes(self) -> dict[str, str]:
        """Return instance id -> state of its node."""
        lines = self.slurm("sinfo", "--noheader", "-N", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def living(self) -> list[str]:
        """Return the ids of instances whose nodes are not down."""
        return [name for name, state in self.nodes().items() if not state.startswith("down")]

    def job(self, number: str) -> str:
        """Return Slurm's description of a job."""
        return self.slurm("scontrol", "show", "job", number)

    def states(self) -> list[str]:
        """Return the states of all jobs."""
        return self.slurm("squeue", "--noheader", "--format=%T").split()

    def need(self) -> PoolNeed:
        """Return the controller's last request to the mover."""
        with suppress(ClientError):
            stored = boto3.client("s3", REGION).get_object(Bucket=BUCKET, Key="reaper/capacity/queue.json")
            content = json.loads(stored["Body"].read())
            return needs_of(content, timedelta())["train"]
        return PoolNeed(0, ())

    def grow(self, number: int) -> list[Guest]:
        """Run the mover once the queue asks for `number` instances; return the new guests as nodes."""
        self.fleet.until(lambda: self.need().wanted(3) == number, JOB_S, f"the queue asks for {number}")
        self.door.move()
        began = time.monotonic()
        new = self.fleet.boot_new()
        for guest in new:
            self.fleet.until(lambda guest=guest: guest.id in self.nodes(), BOOT_S, f"{guest.id} registers")
        self.booted_s = time.monotonic() - began
        return new

    def submit(self, *words: str) -> str:
        """Submit a run of ada by ``gpu-fleet submit``; return the job's number."""
        program = ("/usr/local/bin/gpu-fleet", "submit", "--pool", "train", "--yes")

        def taken() -> str:
            """Submit again, as a user does after a failed call of the cloud on a busy computer."""
            said = self.controller.run(*program, *words, account="ada", at="/home/ada", check=False)
            return said if said.startswith("Submitted batch job ") else ""

        said = str(self.fleet.until(taken, JOB_S, f"submit takes {words}"))
        return said.split()[3].rstrip(":")

    def say(self, *words: str, account: str = "ada", check: bool = True) -> str:
        """Run a command of `gpu-fleet`; return its output for the user."""
        return self.controller.run("/usr/local/bin/gpu-fleet", *words, account=account, check=check)

    def row(self, job: str, account: str = "ada") -> str:
        """Return a job's line in `gpu-fleet runs`; empty until the controller has published the job."""
        said = self.say("runs", account=account, check=False)
        lines = [line for line in said.splitlines() if line.split()[1:2] == [job]]
        return lines[0] if lines else ""

    def accounted(self) -> set[str]:
        """Return number, account and state of every ended job by `sacct`."""
        said = self.slurm(
            *("sacct", "--allusers", "--allocations", "--noheader", "--parsable2"),
            *("--starttime=now-1day", "--format=jobid,account,state"),
        )
        return {line for line in said.splitlines() if not line.endswith(("RUNNING", "PENDING", "REQUEUED"))}

    def users(self) -> str:
        """Return the users that slurmctld knows, and their numbers."""
        return self.slurm("scontrol", "show", "assoc_mgr", "flags=assoc")

    def priority(self, job: str) -> int:
        return int(self.slurm("squeue", "--noheader", f"--jobs={job}", "--format=%Q") or 0)

    def saved(self) -> set[str]:
        """Return the folders of checkpoints in the bucket."""
        listed = boto3.client("s3", REGION).list_objects_v2(Bucket=CHECKPOINTS).get("Contents", [])
        return {part for stored in listed for part in stored["Key"].split("/") if part.startswith("step-")}

    def steps_of(self, directory: str) -> int:
        """Return the number of step records that a run of ada has written, over all its tries."""
        metrics = self.fleet.homes / "ada" / directory / "metrics.jsonl"
        return metrics.read_text().count('"train"') if metrics.is_file() else 0

    def result_of(self, directory: str) -> dict[str, Any]:
        """Return the result of a run of ada."""
        return dict(json.loads((self.fleet.homes / "ada" / directory / "result.json").read_text()))

    def log_of(self, job: str) -> str:
        logs = list((self.fleet.homes / "ada").glob(f"*-{job}.log"))
        return logs[0].read_text(errors="replace") if logs else ""


def record(name: str, seconds: float, goal: str | None = None) -> None:
    """Record a figure in the bench file.

    The mover runs at once here; in a fleet add up to 60 s to figures that include a new instance.
    ``queue_submit_to_start_s`` is from `gpu-fleet submit` to the job's start on two instances that came for
    it, ``queue_kill_to_resumed_s`` from an instance's death to the run's start from its checkpoint,
    ``queue_controller_back_s`` from a controller's loss to the queue as it was: each with a fresh boot.
    ``queue_kill_to_step_s`` is from an instance's death to the first new step, less the fresh boot, which
    ``queue_node_boot_s`` says.
    """
    merge(TARGET, {name: entry(seconds, "s", None, goal, command="make prove-queue")})


@contextmanager
def standing(folder: Path) -> Iterator[Lab]:
    """Yield a stack with a queue whose controller answers and knows ada; remove it after the block."""
    build_requirements.install(("mariadb-server", "nftables", "slurmdbd", "sudo", *PACKAGES))
    settings = examples.stack(**QUEUED)
    with pytest.MonkeyPatch.context() as patched, moto_server(REGION):
        patched.setenv("AWS_ACCESS_KEY_ID", "test")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "test")
        rehearsed = run_program(settings.name, program=lambda: build(settings), config={})
        for kind in ("records", "checkpoints", "data"):
            # moto holds denials of a bucket policy without their conditions: nobody could write at all
            boto3.client("s3", REGION).delete_bucket_policy(Bucket=settings.bucket_name(kind))
        door = Door(rehearsed, folder / "code", lambda_runtime.laid_out(folder / "runtime"))
        with zipfile.ZipFile(BytesIO(zip_bytes(door.function.inputs["code"]))) as archive:
            archive.extractall(door.code)
        sweeps.by_function(sweeps.unpacked(rehearsed, folder / "sweep"))  # it begins to meter
        with guests.fleet_of(rehearsed, folder / "guests") as fleet:
            (controller,) = fleet.boot_new()
            made = Lab(fleet, door, controller)
            fleet.until(lambda: "train" in made.slurm("sinfo"), BOOT_S, "slurmctld answers")
            fleet.until(lambda: "UserName=ada(5001)" in made.users(), BOOT_S, "Slurm knows ada")
            yield made


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with standing(tmp_path_factory.mktemp("queue")) as made:
        home = made.fleet.homes / "ada"
        shutil.copy(ROOT / "training/examples/digits.toml", home)
        words = ("/opt/gpu-fleet/venv/bin/python", "-m", "gpu_fleet", "prepare", "digits", "data/digits")
        made.controller.run(*words, account="ada", at="/home/ada")
        yield made


def test_what_no_instance_will_start_is_refused_at_once(lab):
    """A run beyond its team's limit, and one of a frozen pool, never reach `sbatch`."""
    program = "/usr/local/bin/gpu-fleet submit --pool train --yes --nodes"
    text = "{} {} -- true 2>&1; echo exit $?"

    lab.fleet.until(lambda: "UserName=bob(5002)" in lab.users(), JOB_S, "Slurm knows bob")
    beyond = lab.controller.run("sh", "-c", text.format(program, 2), account="bob", at="/home/bob")
    lab.door.move()  # the function's archive says what may be spent
    stored = boto3.client("s3", REGION).get_object(Bucket=BUCKET, Key="reaper/capacity/growth.json")
    said = json.loads(stored["Body"].read())
    frozen = json.dumps(said | {"frozen": ["train"]}).encode()
    boto3.client("s3", REGION).put_object(Bucket=BUCKET, Key="reaper/capacity/growth.json", Body=frozen)
    shut = lab.controller.run("sh", "-c", text.format(program, 1), account="ada", at="/home/ada")

    assert "teams.vision.max_gpus of the stack file is 1; allowed: up to --nodes 1" in beyond
    assert "--pool 'train': frozen, since the budget is spent" in shut
    assert beyond.splitlines()[-1] != "exit 0" != shut.splitlines()[-1]
    assert Decimal(said["left"]) > 0
    assert said["frozen"] == []
    lab.door.move()


# Options of sbatch -> what the mover hears of an empty pool (one GPU each), and what `gpu-fleet runs` says.
# ``test_real_sizes.py`` has all kinds of options.
MATRIX = (
    (("--gpus=2",), (2,), "its instances are not there yet"),
    (("--gpus=4",), (), "asks for 2 GPUs on one of 3 instances, one of pool train has 1"),
    (("--gpus=1", "--begin=now+2days"), (), "BeginTime"),
)
HOSTILE = ("--comment=lr=0.1 Restarts=cosine JobId=1 NumNodes=9", "--job-name=a|JobState=x\xff")


@pytest.mark.parametrize(("words", "jobs", "why"), MATRIX)
def test_what_is_asked_for_is_what_a_job_can_use(lab, words, jobs, why):
    """Texts of users that look like Slurm's fields do not change that."""
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing else waits")
    sbatch = ("sbatch", "--parsable", "--partition=train", *HOSTILE, *words, "--wrap=true")

    job = lab.controller.run(*sbatch, account="ada", at="/home/ada").strip()

    lab.fleet.until(lambda: why in lab.row(job), JOB_S, "the controller has looked, and says why it waits")
    # a job of some seconds is asked for at the next look
    lab.fleet.until(
        lambda: replace(lab.need(), nodes=None) == PoolNeed(0, jobs), JOB_S, "the mover hears of it"
    )
    is_refused = jobs == () and not why.isalnum()
    assert ("AdminComment=gpu-fleet: " in lab.job(job)) is is_refused
    lab.slurm("scancel", job)


def test_a_run_of_two_instances_starts_from_none_and_outlives_one_of_them(lab):
    """A run submitted to an empty pool ends with its last step, though an instance died on the way."""
    fleet = lab.fleet
    submitted = time.monotonic()
    job = lab.submit("--nodes", "2", "digits.toml", *ALONE, *STEPS)
    assert fleet.instances().keys() == {lab.controller.id}

    first = lab.grow(2)

    fleet.until(lambda: "JobState=RUNNING" in lab.job(job), JOB_S, "the run starts")
    record("queue_submit_to_start_s", time.monotonic() - submitted)
    gpus = lab.slurm("sinfo", "--noheader", "-N", "--format=%N %G").splitlines()
    assert sorted(gpus) == sorted(f"{guest.id} gpu:1" for guest in first)
    fleet.until(lambda: len(lab.saved()) > 1, JOB_S, "the run saves")
    fleet.until(lambda: FIGURES.search(lab.row(job)), JOB_S, "its user sees step and loss")
    assert " running " in lab.row(job)

    began = time.monotonic()
    fleet.lose(first[1].id)
    (fresh,) = lab.grow(2)
    fleet.until(lambda: "event=resumed" in lab.log_of(job), JOB_S, "the run goes on from its checkpoint")
    record("queue_kill_to_resumed_s", time.monotonic() - began)
    known = lab.steps_of("runs/digits")
    fleet.until(lambda: lab.steps_of("runs/digits") > known, JOB_S, "it makes a new step")
    step_s = time.monotonic() - began - lab.booted_s
    record("queue_kill_to_step_s", step_s, f"<= {STEP_S}")
    record("queue_node_boot_s", lab.booted_s)
    assert step_s <= STEP_S

    assert lab.nodes()[first[1].id].startswith("down")
    assert lab.nodes()[fresh.id] == "allocated"
    fleet.until(lambda: lab.states() == [], RUN_S, "the run ends")
    assert "JobState=COMPLETED" in lab.job(job)
    assert "Restarts=1" in lab.job(job)
    fleet.until(lambda: "completed (restarts 1)" in lab.row(job), JOB_S, "its user sees that it ended")
    assert "event=resumed" in lab.say("logs", job)


def test_what_a_death_and_a_fresh_node_left_are_the_weights_of_an_undisturbed_run(lab):
    """Compare the previous run with the same configuration on two nodes that stay."""
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing else runs")

    job = lab.submit("--nodes", "2", "digits.toml", *ALONE, *STEPS, "--run.directory", "runs/undisturbed")

    lab.fleet.until(lambda: "JobState=COMPLETED" in lab.job(job), RUN_S, "the run ends")
    assert "Restarts=0" in lab.job(job)
    disturbed, straight = lab.result_of("runs/digits"), lab.result_of("runs/undisturbed")
    assert disturbed["resumed_from_step"] > 0
    assert not straight["resumed_from_step"]
    assert disturbed["step"] == straight["step"]
    assert disturbed["parameters_sha256"] == straight["parameters_sha256"]


def test_a_run_that_fails_for_good_is_not_tried_again(lab):
    """Exit code 65 of the trainer ends the job at its first start."""
    lab.fleet.until(lambda: "idle" in lab.nodes().values(), JOB_S, "there is an idle node")

    job = lab.submit("digits.toml", *ALONE, "--data.path", "no/such/folder")

    lab.fleet.until(lambda: "JobState=FAILED" in lab.job(job), JOB_S, "the job fails")
    assert "Restarts=0" in lab.job(job)
    assert "no/such/folder" in lab.log_of(job)


def test_a_run_that_fails_perhaps_is_tried_on_another_instance_each_time_and_then_no_more(lab):
    """It has three tries on three instances; the last instance started for it alone."""
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing else runs")
    words = ("sh", "-c", "echo $SLURMD_NODENAME >>tries; exit 3")

    job = lab.submit("--", *words)

    lab.grow(3)
    lab.fleet.until(lambda: "JobState=FAILED" in lab.job(job), RUN_S, "the last try fails")
    tries = (lab.fleet.homes / "ada/tries").read_text().split()
    assert len(tries) == len(set(tries)) == 3
    assert "failed on" in lab.row(job)


def test_a_run_that_its_user_cancels_saves_before_it_ends(lab):
    long = ("--run.epochs", "3000", "--run.directory", "runs/long", "--checkpoint.every_steps", "100000")
    job = lab.submit("digits.toml", *ALONE, *long)
    lab.fleet.until(lambda: FIGURES.search(lab.row(job)), JOB_S, "it has made steps")

    said = lab.say("cancel", job)

    assert "is asked to save and stop" in said
    lab.fleet.until(lambda: "JobState=CANCELLED" in lab.job(job), JOB_S, "the job ends")
    assert list((lab.fleet.homes / "ada/runs/long").rglob("step-*"))
    assert "Restarts=0" in lab.job(job)


def test_a_controller_that_is_lost_with_its_disk_comes_back_with_the_queue_as_it_was(lab):
    """The new instance, with an empty disk, knows waiting, running and ended jobs, and the nodes.

    The controller is lost as soon as slurmctld has saved the jobs that `sacct` shows.
    """
    fleet = lab.fleet
    runs = lab.submit("--", "sh", "-c", "sleep 600")
    if not lab.living():
        lab.grow(1)
    before = set(lab.living())
    waits, withdrawn = lab.submit("--nodes", "3", "true"), lab.submit("--nodes", "3", "true")
    fleet.until(lambda: "JobState=RUNNING" in lab.job(runs), JOB_S, "a job runs")
    fleet.until(lambda: lab.row(waits) and lab.row(withdrawn), JOB_S, "users see the jobs that wait")
    lab.say("cancel", withdrawn)
    by = f"{withdrawn}|nlp|CANCELLED by 5001"
    fleet.until(lambda: by in lab.accounted(), JOB_S, "sacct says who cancelled a job")
    accounted = lab.accounted()
    known_at, state = time.time(), fleet.homes / ".gpu-fleet-queue/test/job_state"
    lab.slurm("scontrol", "update", f"jobid={runs}", "comment=gpu-fleet")  # as it was; yet all is written
    fleet.until(lambda: state.stat().st_mtime > known_at, JOB_S, "slurmctld has written its state")

    lost = lab.controller.id
    fleet.lose(lost)
    began = time.monotonic()
    (lab.controller,) = fleet.until(fleet.boot_new, JOB_S, "the group starts another")
    fleet.until(lambda: "JobState=RUNNING" in lab.job(runs), BOOT_S, "the queue is back")
    back_s = time.monotonic() - began

    assert lab.controller.id != lost
    assert "JobState=PENDING" in lab.job(waits)
    assert before <= lab.nodes().keys()
    fleet.until(lambda: accounted <= lab.accounted(), JOB_S, "sacct knows what it knew")
    assert back_s <= BACK_S
    record("queue_controller_back_s", back_s)
    lab.slurm("scancel", runs, waits)
    ended = f"{waits}|nlp|CANCELLED by 0"
    fleet.until(lambda: ended in lab.accounted(), JOB_S, "slurmctld has said what it knows of all jobs")
    assert accounted <= lab.accounted()


def test_of_two_teams_the_one_that_has_used_less_comes_first(lab):
    """bob's job is later than ada's, and his team has run nothing yet."""
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing else runs")
    lab.fleet.until(lambda: "UserName=bob(5002)" in lab.users(), JOB_S, "the new controller knows bob")
    holds = lab.submit("--", "sh", "-c", "sleep 600")
    lab.fleet.until(lambda: "JobState=RUNNING" in lab.job(holds), JOB_S, "an instance is taken")
    adas = lab.submit("--nodes", "3", "true")
    words = ("sbatch", "--parsable", "--partition=train", "--nodes=3", "--wrap=true")

    bobs = lab.controller.run(*words, account="bob", at="/home/bob").strip()

    lab.fleet.until(lambda: lab.priority(bobs) > lab.priority(adas) > 0, JOB_S, "bob's is first")
    lab.slurm("scancel", holds, adas, bobs)
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing is left")


def test_a_run_that_gives_way_to_another_saves_and_is_resumed(lab):
    """The run has the QoS low: a job of another QoS gets its instance, once the run has saved."""
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing else runs")
    living = lab.living()
    at_rest = lambda: all(lab.nodes()[name] == "idle" for name in living)  # noqa: E731
    lab.fleet.until(at_rest, JOB_S, "every node is idle")
    long = ("--run.epochs", "3000", "--run.directory", "runs/low", "--checkpoint.every_steps", "100000")
    low = lab.submit("--qos", "low", "digits.toml", *ALONE, *long)
    lab.fleet.until(lambda: FIGURES.search(lab.row(low)), JOB_S, "it has made steps")
    others = [lab.submit("--", "sh", "-c", "sleep 5") for _ in living]  # one more than there are others

    lab.fleet.until(lambda: "event=resumed" in lab.log_of(low), JOB_S, "the run goes on")

    assert "Restarts=1" in lab.job(low)
    assert all("JobState=COMPLETED" in lab.job(job) and "Restarts=0" in lab.job(job) for job in others)
    assert list((lab.fleet.homes / "ada/runs/low").rglob("step-*"))
    lab.say("cancel", low)
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing is left")


def test_a_job_beyond_the_limit_of_its_team_waits_and_its_user_reads_why(lab):
    """The queue asks for no instance, since none would start it."""
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing else runs")
    words = ("sbatch", "--parsable", "--partition=train", "--gpus-per-node=1", "--wrap=true")

    within = lab.controller.run(*words, account="bob", at="/home/bob").strip()
    beyond = lab.controller.run(*words, "--nodes=2", account="bob", at="/home/bob").strip()

    why = "asks for 2 GPUs, teams.vision.max_gpus of the stack file is 1"
    lab.fleet.until(lambda: why in lab.row(beyond, "bob"), JOB_S, "bob reads why it waits")
    lab.fleet.until(lambda: "JobState=COMPLETED" in lab.job(within), JOB_S, "what is within it runs")
    assert "JobState=PENDING" in lab.job(beyond)
    assert lab.need().jobs == ()
    lab.slurm("scancel", beyond)


def test_an_instance_that_is_being_terminated_takes_no_job(lab):
    """The agent refuses work: the prolog refuses the job, the node drains, and the job waits."""
    fleet = lab.fleet
    living = lab.living()
    for name in living:
        fleet.guests[name].run("sh", "-c", "echo closed >/run/gpu-fleet/closed")

    job = lab.submit("true")

    drained = lambda: {lab.nodes()[name] for name in living} == {"drained"}  # noqa: E731
    fleet.until(drained, JOB_S, "every node is drained")
    assert "JobState=PENDING" in lab.job(job)
    for name in living:
        fleet.guests[name].run("rm", "/run/gpu-fleet/closed")
    fleet.until(lambda: "JobState=COMPLETED" in lab.job(job), JOB_S, "the job runs behind an open door")


# Says each way to root, or to munge's key, that is open to whoever runs it.
ATTACK = """
[ ! -r /etc/munge/munge.key ] || echo key
! timeout 5 bash -c 'exec 3<>/dev/tcp/169.254.169.254/80' 2>/dev/null || echo metadata
for own in --uid=0 --gid=0 --overlap; do
    [ -z "$(srun $own --partition=train --immediate=20 cat /etc/shadow 2>/dev/null)" ] || echo "srun $own"
done
for account in root slurm munge; do
    ! sudo -n -u $account true 2>/dev/null || echo "sudo -u $account"
done
echo tried
"""
METADATA = """
import socket
with socket.create_server(("169.254.169.254", 80)) as listening:
    while True:
        listening.accept()[0].close()
"""


@pytest.fixture(scope="module")
def target(lab):
    """Return a node with its own metadata service, closed by the product's rules."""
    if not lab.living():
        lab.submit("true")
        lab.grow(1)
    node = lab.fleet.guests[lab.living()[0]]
    node.run("ip", "address", "add", "169.254.169.254/32", "dev", "lo")
    node.run("sh", "-c", 'python3 -c "$1" </dev/null >/dev/null 2>&1 &', "sh", METADATA)
    node.run("nft", "--file", "/usr/share/gpu-fleet/metadata.nft")
    (lab.fleet.homes / "ada/attack").write_text(ATTACK)
    return node


@pytest.mark.parametrize("way", ["user", "job", "container", "sudo"])
def test_no_way_leads_a_user_to_root(lab, target, way):
    """With munge's key, a user's own munged could sign as root, and the queue would run jobs as root."""
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing else runs")
    script = ("sh", "/home/ada/attack")
    job = ("srun", "--partition=train", f"--nodelist={target.id}", "--gpus=1")
    attacks = {
        "user": script,
        "job": (*job, *script),
        "container": (*job, "unshare", "--user", "--map-root-user", *script),
        "sudo": (
            "sh",
            "-c",
            f"sudo -n sh {script[1]} 2>/dev/null || sudo -n -u slurm sh {script[1]} || echo tried",
        ),
    }

    said = target.run(*attacks[way], account="ada", at="/home/ada", check=False)

    assert {"key", "metadata"} <= {*target.run(*script).splitlines()}, "the attack itself works as root"
    assert said.splitlines() == ["tried"]


CHAIN = """#!/bin/sh
#SBATCH --partition=train
#SBATCH --gpus=1
trap 'sbatch /home/bob/chain.sh' TERM EXIT
sleep 1000 & wait
"""


def test_who_leaves_has_no_jobs_any_more_though_they_hand_themselves_in_again(lab):
    """The list of users in the bucket no longer has bob."""
    lab.fleet.until(lambda: lab.states() == [], JOB_S, "nothing else runs")
    (lab.fleet.homes / "bob/chain.sh").write_text(CHAIN)
    lab.controller.run("sbatch", "/home/bob/chain.sh", account="bob", at="/home/bob")
    lab.fleet.until(lambda: "RUNNING" in lab.states(), JOB_S, "bob's job runs")
    s3, key = boto3.client("s3", REGION), "reaper/accounts.json"
    roster = json.loads(s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
    stay = [user for user in roster["users"] if user["name"] != "bob"]

    s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(roster | {"users": stay}).encode())

    lab.fleet.until(lambda: "UserName=bob(" not in lab.users(), JOB_S, "Slurm has forgotten bob")
    assert lab.states() == []
    refused = lab.controller.run("sbatch", "/home/bob/chain.sh", account="bob", check=False)
    assert "Submitted" not in refused

"""What Slurm's own commands say, and the few that change something."""

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from image.queue.errors import SlurmError

TIMEOUT_S = 30
# Flags behind the state of a node, "IDLE+DRAIN+DYNAMIC_NORM" (scontrol(1), "NODE STATE CODES").
GONE_FLAGS = frozenset({"DOWN", "FAIL", "NOT_RESPONDING"})
BUSY_FLAGS = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
CLOSED_FLAGS = frozenset({"DRAIN", "INVALID_REG", "MAINTENANCE"})
# Why a job waits that no instance more would start (squeue(1), "JOB REASON CODES").
NOT_FOR_ROOM = frozenset(
    {
        *("BadConstraints", "DeadLine", "Dependency", "DependencyNeverSatisfied"),
        *("InvalidAccount", "InvalidQOS", "JobArrayTaskLimit", "JobHeldAdmin", "JobHeldUser", "Licenses"),
        *(
            "PartitionDown",
            "PartitionInactive",
            "PartitionTimeLimit",
            "Reservation",
            "launch_failed_requeued_held",
        ),
    }
)
OF_LIMITS = ("Assoc", "QOS")  # how reasons begin that are limits of an account or of a QoS
COUNTED_GPUS = re.compile(r"gpu(?::[A-Za-z][\w.-]*)?[:=](\d+)")
FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")
LIMITED_GPUS = re.compile(r"\bgres/gpu=(\d+)")
USER_NAME = re.compile(r"\bUserName=([^\s(]+)\(([^)]*)\)")
NO_UID = 0xFFFFFFFE  # slurm.h, NO_VAL
PENDING, AT_WORK = "%i|%P|%D|%b|%a|%r", "%a|%D|%b"

Run = Callable[[Sequence[str]], str]


def run(command: Sequence[str]) -> str:
    """Standard output of a command of Slurm.

    Raises:
        SlurmError: it failed, or the controller did not answer.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise SlurmError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


@dataclass(frozen=True)
class Node:
    """An instance as Slurm knows it.

    Attributes:
        name: the instance's id.
        pool: by its feature.
        flags: of its state.
        reason: why it takes no jobs, where that was said.
    """

    name: str
    pool: str
    flags: frozenset[str]
    reason: str = ""

    @property
    def is_free(self) -> bool:
        """Whether it runs no job and takes one."""
        return not self.flags & (GONE_FLAGS | BUSY_FLAGS | CLOSED_FLAGS)


@dataclass(frozen=True)
class Job:
    """A job as Slurm knows it, until some minutes after its end.

    Attributes:
        name: as its user gave it, up to the first blank.
        account: whose it is.
        nodes: how many it has, or needs.
        state: PENDING, RUNNING, COMPLETED ... (squeue(1), "JOB STATE CODES").
        reason: why it waits, or ended; empty for none.
        on: its nodes as Slurm writes them, ``i-0a[1-2]``; empty while it has none.
        log: the file of its output.
    """

    id: str
    name: str
    account: str
    pool: str
    nodes: int
    state: str
    reason: str
    on: str
    restarts: int
    log: str
    comment: str


@dataclass(frozen=True)
class Association:
    """An account of Slurm's accounting, or a user in it.

    Attributes:
        user: empty for the account itself.
        share: 0 where it has none of its own.
        max_gpus: its limit; None for none.
    """

    account: str
    user: str
    share: int = 1
    max_gpus: int | None = None


@dataclass(frozen=True)
class WaitingJob:
    """A job that waits for room.

    Attributes:
        nodes: how many it needs.
        gpus: on each; 0 where it does not say.
        team: whose share and limit it is under.
    """

    id: str
    pool: str
    nodes: int
    gpus: int
    team: str = ""


def nodes(ask: Run = run) -> list[Node]:
    """All that are registered. Raises SlurmError."""
    text = ask(["scontrol", "--oneliner", "show", "nodes"])
    registered = []
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "NodeName" in fields and "State" in fields:
            reason = re.search(r" Reason=(.*?)(?: \[\S+@\S+\])?\s*$", line)
            flags = frozenset(fields["State"].rstrip("*~#!%$@^-").split("+"))
            silent = {"NOT_RESPONDING"} if fields["State"].endswith("*") else set()
            pool = fields.get("AvailableFeatures", "").split(",")[0]
            registered.append(Node(fields["NodeName"], pool, flags | silent, reason[1] if reason else ""))
    return registered


def jobs(ask: Run = run) -> list[Job]:
    """All that Slurm knows. Raises SlurmError."""
    known = []
    for line in ask(["scontrol", "--oneliner", "show", "jobs"]).splitlines():
        fields = {name: "" if value == "(null)" else value for name, value in FIELD.findall(line)}
        if "JobId" in fields and "JobState" in fields:
            known.append(_job(fields))
    return known


def _job(fields: dict[str, str]) -> Job:
    reason = fields.get("Reason", "")
    return Job(
        id=fields["JobId"],
        name=fields.get("JobName", ""),
        account=fields.get("UserId", "").partition("(")[0],
        pool=fields.get("Partition", "").partition(",")[0],
        nodes=int(fields.get("NumNodes", "").partition("-")[0] or 0),
        state=fields["JobState"],
        reason="" if reason == "None" else reason,
        on=fields.get("NodeList", ""),
        restarts=int(fields.get("Restarts") or 0),
        log=fields.get("StdOut", ""),
        comment=fields.get("Comment", ""),
    )


def associations(ask: Run = run) -> list[Association]:
    """All accounts, and who works for which. Raises SlurmError."""
    fields = "format=account,user,share,grptres"
    text = ask(["sacctmgr", "--noheader", "--parsable2", "show", "assoc", fields])
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == fields.count(",")]
    return [_association(*row) for row in rows]


def _association(account: str, user: str, share: str, limits: str) -> Association:
    gpus = LIMITED_GPUS.search(limits)
    return Association(account, user, int(share) if share.isdigit() else 0, int(gpus[1]) if gpus else None)


def preempted(ask: Run = run) -> dict[str, list[str]]:
    """QoS -> those whose jobs give way to its own. Raises SlurmError."""
    text = ask(["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,preempt"])
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 1]
    return {name: [word for word in others.split(",") if word] for name, others in rows}


def known_users(ask: Run = run) -> set[str]:
    """Users of whom slurmctld knows that they work for a team, and by which number. Raises SlurmError."""
    text = ask(["scontrol", "show", "assoc_mgr", "flags=assoc"])
    return {name for name, uid in USER_NAME.findall(text) if uid.isdigit() and int(uid) != NO_UID}


def start_anew(ask: Run = run) -> None:
    """Let slurmctld end; its unit starts it again, and jobs that run go on. Raises SlurmError.

    Not ``scontrol reconfigure``: after that 22.05 keeps a dynamic node that ran a job ALLOCATED for good,
    and reads neither AccountingStorageEnforce nor the teams of users whom it had not found.
    """
    ask(["scontrol", "shutdown", "slurmctld"])


def change_accounts(words: Sequence[str], ask: Run = run) -> None:
    """Change accounts or users; what is so already is no error. Raises SlurmError."""
    ask(["sacctmgr", "--immediate", *words])


def keep_away(job: str, names: Sequence[str], ask: Run = run) -> None:
    """Let a job that waits start on none of these nodes, and on any other. Raises SlurmError."""
    ask(["scontrol", "update", f"jobid={job}", f"excnodelist={','.join(names)}"])


def cancel(job: str, *, saves: bool, ask: Run = run) -> None:
    """End a job, once it has saved where it can (gpu_fleet/submitted/queued.py). Raises SlurmError."""
    ask(["scancel", *(["--batch", "--signal=USR1"] if saves else []), job])


def waiting_jobs(ask: Run = run) -> list[WaitingJob]:
    """Jobs that more instances would start, those that come first first. Raises SlurmError."""
    command = ["squeue", "--noheader", "--states=PENDING", "--array", "--sort=-p,i", f"--format={PENDING}"]
    jobs = []
    for line in ask(command).splitlines():
        job, partition, number, gres, team, reason = line.strip().split("|", 5)
        why = reason.strip("()")
        if why in NOT_FOR_ROOM or why.startswith(OF_LIMITS):
            continue
        jobs.append(WaitingJob(job, partition.split(",")[0], int(number), _gpus(gres), team))
    return jobs


def gpus_at_work(ask: Run = run) -> dict[str, int]:
    """Team -> GPUs that its jobs have. Raises SlurmError."""
    states = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING"
    used: Counter[str] = Counter()
    for line in ask(["squeue", "--noheader", f"--states={states}", f"--format={AT_WORK}"]).splitlines():
        team, number, gres = line.strip().split("|", 2)
        used[team] += int(number) * _gpus(gres)
    return used


def _gpus(gres: str) -> int:
    return sum(int(count) for count in COUNTED_GPUS.findall(gres))


def give_up(node: str, why: str, ask: Run = run) -> None:
    """Put the jobs of a node whose instance is gone back into the queue, at once. Raises SlurmError."""
    ask(["scontrol", "update", f"nodename={node}", "state=down", f"reason={why}"])


def forget(node: str, ask: Run = run) -> None:
    """Delete a node that nothing of Slurm's waits for any more. Raises SlurmError."""
    ask(["scontrol", "delete", f"nodename={node}"])

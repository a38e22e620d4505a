"""Slurm's commands: their output, and the few that change something."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm.answers import ENVIRONMENT, JobList, answer
from gpu_fleet_image.slurm.sizes import NOTHING, NodeSize

TIMEOUT_S = 30
# Calls that change jobs in one poll, each of which may take seconds: the rest follow at the next.
MOST_CALLS = 100
# Flags after the state of a node, "IDLE+DRAIN+DYNAMIC_NORM" (scontrol(1), "NODE STATE CODES").
GONE_FLAGS = frozenset({"DOWN", "FAIL", "NOT_RESPONDING"})
BUSY_FLAGS = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})
CLOSED_FLAGS = frozenset({"DRAIN", "INVALID_REG", "MAINTENANCE"})
LIMITED_GPUS = re.compile(r"\bgres/gpu=([0-9]+)")
USER_NAME = re.compile(r"\bUserName=([^\s(]+)\(([^)]*)\)")
NO_UID = 0xFFFFFFFE  # slurm.h, NO_VAL
FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")
GPUS = re.compile(r"gpu:([0-9]+)")

Run = Callable[[Sequence[str]], str]
Item = TypeVar("Item")


def run(command: Sequence[str]) -> str:
    """Return the standard output of a command of Slurm. Raises SlurmError."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            encoding="utf-8",
            errors="replace",  # users write any bytes
            env={**os.environ, **ENVIRONMENT},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise SlurmError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout


@dataclass
class BoundedCalls:
    """Calls for many jobs, ``MOST_CALLS`` in a poll. The next poll begins with the jobs that are left.

    Every job gets its turn, even if the calls for the jobs before it fail.
    """

    ask: Run
    _calls: int = 0  # in this poll
    _begun: int = 0  # place of the next poll's first job

    def __call__(self, words: Sequence[str]) -> str:
        """Run a command of Slurm. Raises SlurmError."""
        self._calls += 1
        return self.ask(words)

    def turns(self, items: Sequence[Item]) -> Iterator[Item]:
        """Yield the items whose turn it is in this poll."""
        self._calls, first = 0, self._begun
        for self._begun in [*range(first, len(items)), *range(min(first, len(items)))]:
            if self._calls >= MOST_CALLS:
                return
            yield items[self._begun]
        self._begun = 0


@dataclass(frozen=True)
class Node:
    """A node of Slurm.

    Attributes:
        name: the instance's id.
        pool: from its feature.
        flags: of its state.
        reason: why it takes no jobs, if that is given.
        left: the part that jobs leave free.
    """

    name: str
    pool: str
    flags: frozenset[str]
    reason: str = ""
    left: NodeSize = NOTHING

    @property
    def is_there(self) -> bool:
        """True if Slurm places jobs on it, now or later."""
        return not self.flags & GONE_FLAGS

    @property
    def is_free(self) -> bool:
        """True if it runs no job and accepts one."""
        return not self.flags & (GONE_FLAGS | BUSY_FLAGS | CLOSED_FLAGS)

    @property
    def is_partly_free(self) -> bool:
        """True if it runs a job and accepts another."""
        return "MIXED" in self.flags and not self.flags & (GONE_FLAGS | CLOSED_FLAGS | {"COMPLETING"})


@dataclass(frozen=True)
class Association:
    """An account of Slurm's accounting, or a user in it.

    Attributes:
        user: empty for the account itself.
        share: 0 without a share of its own.
        max_gpus: its limit; None without one.
        takes_jobs: True if new jobs are accepted.
        frozen: it may use no CPU, and so starts no job.
    """

    account: str
    user: str
    share: int = 1
    max_gpus: int | None = None
    takes_jobs: bool = True
    frozen: bool = False


def nodes(ask: Run = run) -> list[Node]:
    """Return all registered nodes. Raises SlurmError.

    Only root writes these texts. The reason is free text and comes last: of two equal fields the first
    counts.
    """
    text = ask(["scontrol", "--oneliner", "--details", "show", "nodes"])
    registered = []
    for line in text.splitlines():
        fields = dict(reversed(FIELD.findall(line)))
        if "NodeName" in fields and "State" in fields:
            reason = re.search(r" Reason=(.*?)(?: \[\S+@\S+\])?\s*$", line)
            flags = frozenset(fields["State"].rstrip("*~#!%$@^-").split("+"))
            silent = {"NOT_RESPONDING"} if fields["State"].endswith("*") else set()
            pool = fields.get("AvailableFeatures", "").split(",")[0]
            known = Node(fields["NodeName"], pool, flags | silent, reason[1] if reason else "", _left(fields))
            registered.append(known)
    return registered


def _left(fields: dict[str, str]) -> NodeSize:
    """Return the part of a node that jobs leave free. Raises SlurmError."""
    try:
        return NodeSize(
            _gpus(fields.get("Gres", "")) - _gpus(fields.get("GresUsed", "")),
            int(fields.get("CPUTot", "0")) - int(fields.get("CPUAlloc", "0")),
            int(fields.get("RealMemory", "0")) - int(fields.get("AllocMem", "0")),
        )
    except ValueError as error:
        raise SlurmError(f"scontrol show nodes: {fields['NodeName']}: {error}") from error


def _gpus(gres: str) -> int:
    return sum(int(count) for count in GPUS.findall(gres))


def jobs(ask: Run = run) -> JobList:
    """Return all jobs in Slurm. Raises SlurmError."""
    return answer(ask(["squeue", "--json"]))


def notify(job: str, text: str, ask: Run = run) -> None:
    """Write a message to a job, for ``scontrol show job`` and ``squeue -O admin_comment``.

    Raises SlurmError.
    """
    _update(job, f"admincomment={text}", ask)


def start_in(job: str, seconds: int, ask: Run = run) -> None:
    """Let a pending job start in this many seconds at the earliest; raises SlurmError."""
    _update(job, f"starttime=now+{seconds}" if seconds else "starttime=now", ask)


def _update(job: str, change: str, ask: Run) -> None:
    """Change one field of a job; raises SlurmError."""
    try:
        ask(["scontrol", "update", f"jobid={job}", change])
    except SlurmError as error:
        # 22.05's reply about a job that its nodes cannot run, although it has changed it
        if "Requested partition configuration not available now" not in str(error):
            raise


def release(job: str, ask: Run = run) -> None:
    """Let Slurm try a job again that it has given up. Raises SlurmError."""
    ask(["scontrol", "release", job])


def associations(ask: Run = run) -> list[Association]:
    """Return all accounts, and the users of each. Raises SlurmError."""
    fields = "format=account,user,share,grptres,maxsubmit"
    text = ask(["sacctmgr", "--noheader", "--parsable2", "show", "assoc", fields])
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == fields.count(",")]
    return [_association(*row) for row in rows]


def _association(account: str, user: str, share: str, limits: str, most_jobs: str) -> Association:
    gpus = LIMITED_GPUS.search(limits)
    max_gpus = int(gpus[1]) if gpus else None
    return Association(
        account,
        user,
        int(share) if share.isascii() and share.isdigit() else 0,
        max_gpus,
        most_jobs != "0",
        "cpu=0" in limits.split(","),
    )


def preempted(ask: Run = run) -> dict[str, list[str]]:
    """Return QoS -> the QoS that it preempts. Raises SlurmError."""
    text = ask(["sacctmgr", "--noheader", "--parsable2", "show", "qos", "format=name,preempt"])
    rows = [line.split("|") for line in text.splitlines() if line.count("|") == 1]
    return {name: [word for word in others.split(",") if word] for name, others in rows}


def known_users(ask: Run = run) -> set[str]:
    """Return users whose team and number slurmctld knows. Raises SlurmError."""
    text = ask(["scontrol", "show", "assoc_mgr", "flags=assoc"])
    return {
        name
        for name, uid in USER_NAME.findall(text)
        if uid.isascii() and uid.isdigit() and int(uid) != NO_UID
    }


def start_anew(ask: Run = run) -> None:
    """Stop slurmctld; its unit starts it again, and running jobs continue. Raises SlurmError.

    ``scontrol reconfigure`` would not do: after it 22.05 keeps a dynamic node that ran a job ALLOCATED for
    good, and reads neither AccountingStorageEnforce nor the teams of users whom it had missed.
    """
    ask(["scontrol", "shutdown", "slurmctld"])


def change_accounts(words: Sequence[str], ask: Run = run) -> None:
    """Change accounts or users; a value that is already set is no error. Raises SlurmError."""
    ask(["sacctmgr", "--immediate", *words])


def keep_away(job: str, names: Sequence[str], ask: Run = run) -> None:
    """Keep a waiting job away from these nodes, and from no other. Raises SlurmError."""
    ask(["scontrol", "update", f"jobid={job}", f"excnodelist={','.join(names)}"])


def cancel(*jobs: str, saves: bool, ask: Run = run) -> None:
    """End jobs, after they have saved if they can (gpu_fleet_jobs/submitted/queued.py).

    One that cannot be ended keeps no other from its end. Raises SlurmError for it.
    """
    ask(["scancel", *(["--batch", "--signal=USR1"] if saves else []), *jobs])


def give_up(node: str, why: str, ask: Run = run) -> None:
    """Requeue the jobs of a node whose instance is gone, at once. Raises SlurmError."""
    ask(["scontrol", "update", f"nodename={node}", "state=down", f"reason={why}"])


def forget(node: str, ask: Run = run) -> None:
    """Delete a node that Slurm no longer waits for. Raises SlurmError."""
    ask(["scontrol", "delete", f"nodename={node}"])

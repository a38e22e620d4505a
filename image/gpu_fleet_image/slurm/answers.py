"""Parser of the jobs in ``squeue --json``, field by field. Pure.

Users' texts (names, comments, folders) are JSON strings: they cannot be taken for a field. Two formats are
read: that of 22.05, and that of 23.11, whose numbers are objects and whose states are lists.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_fleet_image.core.queue_errors import SlurmError
from gpu_fleet_image.slurm.sizes import THREADS, JobRequest

COMMAND = "squeue --json"
# Without it Slurm truncates the list of an array's tasks.
ENVIRONMENT = {"SLURM_BITSTR_LEN": "0"}
LONGEST_NAME = 200
LONGEST_PATH = 4096  # PATH_MAX of limits.h
WIDEST = 10  # sbatch(1): a number in a file name pattern is padded to ten digits at most
OURS = "gpu-fleet"  # prefix of comments that are not users' own
ANY_GROUP = "*"
PENDING = "PENDING"
# squeue(1), "JOB STATE CODES"
ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "REVOKED", "TIMEOUT"),
)
NODES = re.compile(r"(?:^|,)node=([0-9]+)")
GIVEN_GPUS = re.compile(r"(?:^|,)gres/gpu=([0-9]+)")
# A GPU may have a type too, but no node of the fleet has one: a pool has a single model.
GRES = re.compile(
    r"(?:gres[:/])?gpu(?::(?P<type>[A-Za-z][\w.-]*))?(?:[:=](?P<count>[0-9]+)(?P<unit>[kKmM]?))?"
)
CPUS = re.compile(
    r"cpu[:=][0-9]+"
)  # 23.11 writes it for each task, all of whose CPUs are on one node; `cpus` has the total
# Flags of a job that names its memory: of 22.05, and of 23.11. Without a size it is `--mem=0`: all of it.
MEMORY_NAMED = frozenset({"JOB_MEM_SET", "EXACT_MEMORY_REQUESTED"})
TRIED_AT = "last_sched_evaluation"
TRIED_REASONS = ("None", "Priority", "Resources")  # of jobs that Slurm has tried its nodes for
NO_GRES = ("gres:none", "gres/none", "none")  # written by `sbatch --gres=none`
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")
PATTERN = re.compile(r"%([0-9]{0,4})([%Aajux])")


@dataclass(frozen=True)
class Job:
    """A job in Slurm, until some minutes after its end.

    Attributes:
        name: the user's name of it, without control characters.
        nodes: number of nodes that it has, or needs.
        state: PENDING, RUNNING, COMPLETED ... (squeue(1), "JOB STATE CODES").
        reason: why it waits, or why it ended; empty for none.
        on: its nodes in Slurm's notation, ``i-0a[1-2]``; empty before it has any.
        log: the file of its output.
        comment: empty if it is the user's own.
        task: its number within its array as Slurm shows it, ``50_3``; empty for a job of no array.
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
    task: str = ""

    @property
    def number(self) -> str:
        """Number by which Slurm's commands and users name this job alone: ``50`` is the whole array."""
        return self.task or self.id


@dataclass(frozen=True)
class ListedJob:
    """A job with what the queue needs for its decisions, besides what users read.

    Attributes:
        request: the resources that it asks for.
        team: the account whose share and limit apply.
        eligible_s: earliest start, in seconds since 1970; 0 if Slurm does not give it.
        submitted_s: time of submission, likewise.
        tasks: number of an array's tasks that it stands for; 1 for any other job.
        at_once: number of tasks of its array that may run at once; 0 for all.
        array: the array's number, or empty.
        begin_by_s: latest start that meets its deadline, likewise; 0 for none.
        group: number of its heterogeneous job, or empty.
        is_whole: True if all other parts of that job could be read.
        pools: all pools that it may start in, `sbatch --partition=a,b`, the first one first.
        gpus: number of GPUs that it has.
        admin_comment: the queue's last message about it to its user.
        excluded: nodes that it must not use, in Slurm's notation.
        tried_s: when Slurm last looked whether it can start, in seconds since 1970; 0 if Slurm does not say.
    """

    job: Job
    request: JobRequest
    team: str = ""
    uid: int = 0
    priority: int = 1
    eligible_s: int = 0
    submitted_s: int = 0
    tasks: int = 1
    at_once: int = 0
    array: str = ""
    begin_by_s: int = 0
    group: str = ""
    is_whole: bool = True
    pools: tuple[str, ...] = ()
    gpus: int = 0
    admin_comment: str = ""
    excluded: str = ""
    tried_s: int = 0


@dataclass(frozen=True)
class JobList:
    """All jobs.

    Attributes:
        unread: for each job that could not be read, the reason.
    """

    jobs: tuple[ListedJob, ...]
    unread: tuple[str, ...] = ()


class JobFields:
    """Reader of one job's fields. Every method raises SlurmError if a field is missing or malformed."""

    def __init__(self, raw: Any) -> None:
        if not isinstance(raw, dict):
            raise SlurmError(f"{COMMAND}: jobs: {_short(raw)}; allowed: objects")
        self._raw: dict[str, Any] = raw

    def _get(self, name: str) -> Any:
        if name not in self._raw:
            raise SlurmError(f"{COMMAND}: job {_short(self._raw.get('job_id'))}: field {name!r} is missing")
        return self._raw[name]

    def _wrong(self, name: str, allowed: str) -> SlurmError:
        value = _short(self._raw[name])
        return SlurmError(
            f"{COMMAND}: job {_short(self._raw.get('job_id'))}: {name} = {value}; allowed: {allowed}"
        )

    def has(self, name: str) -> bool:
        """Return whether Slurm gives a field."""
        return name in self._raw

    def number(self, name: str) -> int:
        """Return a whole number; 0 for none."""
        value = self._get(name)
        if isinstance(value, dict):
            value = value.get("number") if value.get("set") and not value.get("infinite") else None
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(name, "a whole number")
        return value

    def is_object(self, name: str) -> bool:
        """Return whether a number is written as an object, as since 23.02."""
        return isinstance(self._get(name), dict)

    def text(self, name: str) -> str:
        """Return a text; empty for none, the first one of a list."""
        value = self._get(name)
        value = (value[0] if value else "") if isinstance(value, list) else value
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        value = self._get(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self._wrong(name, "a list of texts")
        return tuple(value)

    def gpus(self, name: str) -> tuple[int, str]:
        """Return the number of GPUs in a list of resources, and a resource that no pool has, if any."""
        count = 0
        for part in filter(None, self.text(name).split(",")):
            if CPUS.fullmatch(part) or part in NO_GRES:
                continue
            resource = GRES.fullmatch(part)
            if resource is None or resource["type"]:
                return 0, part
            count += int(resource["count"] or 1) * UNITS[(resource["unit"] or "").lower()]
        return count, ""


def answer(text: str) -> JobList:
    """Parse all jobs. A job that cannot be read is reported, and does not affect the others.

    Raises SlurmError if it is not Slurm's output, or none of its jobs can be read.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise SlurmError(f"{COMMAND}: no JSON: {error}") from error
    raws = content.get("jobs") if isinstance(content, Mapping) else None
    if not isinstance(raws, list):
        raise SlurmError(f"{COMMAND}: jobs = {_short(raws)}; allowed: a list")
    if content.get("errors"):  # which come with an empty list of jobs
        raise SlurmError(f"{COMMAND}: errors = {_short(content['errors'])}; allowed: none")
    jobs: list[ListedJob] = []
    unread: list[str] = []
    torn: set[str] = set()  # groups of jobs that cannot be read
    for raw in raws:
        try:
            jobs.append(listed(JobFields(raw)))
        except Exception as error:  # noqa: BLE001 - one user's text must not hide the jobs of all others
            known = isinstance(error, SlurmError)
            unread.append(str(error) if known else f"{COMMAND}: a job cannot be read: {type(error).__name__}")
            torn.add(_group_of(raw))
    if unread and not jobs:
        raise SlurmError(unread[0])
    whole = (replace(job, is_whole=not (job.group and torn & {job.group, ANY_GROUP})) for job in jobs)
    return JobList(tuple(whole), tuple(unread))


def _group_of(raw: Any) -> str:
    """Return the heterogeneous job of a part that cannot be read; empty for none."""
    try:
        number = JobFields(raw).number("het_job_id")
    except SlurmError:
        return ANY_GROUP
    return str(number) if number else ""


def listed(raw: JobFields) -> ListedJob:
    """Parse one job. Raises SlurmError."""
    tasks = raw.text("array_task_string")
    array = raw.number("array_job_id")
    group = raw.number("het_job_id")
    given = GIVEN_GPUS.search(raw.text("tres_alloc_str"))
    return ListedJob(
        _job(raw),
        request(raw),
        team=raw.text("account"),
        uid=raw.number("user_id"),
        priority=raw.number("priority"),
        eligible_s=raw.number("eligible_time"),
        submitted_s=raw.number("submit_time"),
        tasks=_count(tasks) if tasks else 1,
        at_once=raw.number("array_max_tasks"),
        array=str(array) if array else "",
        begin_by_s=_begin_by_s(raw),
        group=str(group) if group else "",
        pools=tuple(filter(None, raw.text("partition").split(","))),
        gpus=int(given[1]) if given else 0,
        admin_comment=raw.text("admin_comment"),
        excluded=raw.text("excluded_nodes"),
        tried_s=raw.number(TRIED_AT) if raw.has(TRIED_AT) else 0,
    )


def _begin_by_s(raw: JobFields) -> int:
    """Return the latest start: Slurm ends a waiting job once its minimum time would pass its deadline."""
    deadline_s = raw.number("deadline")
    minutes = raw.number("time_minimum") or raw.number("time_limit")
    return max(1, deadline_s - minutes * 60) if deadline_s else 0


def _job(raw: JobFields) -> Job:
    reason, comment = raw.text("state_reason"), raw.text("comment")
    return Job(
        id=str(raw.number("job_id")),
        name=printable(raw.text("name")),
        account=raw.text("user_name"),
        pool=raw.text("partition").partition(",")[0],
        nodes=max(raw.number("node_count"), 1),
        state=raw.text("job_state"),
        reason="" if reason == "None" else printable(reason),
        on=raw.text("nodes"),
        restarts=raw.number("restart_cnt"),
        log=_log(raw),
        comment=printable(comment, LONGEST_PATH) if comment.partition(":")[0] == OURS else "",
        task=_task(raw),
    )


def _task(raw: JobFields) -> str:
    """Return the number of a task; empty for several that Slurm lists together, as long as they wait."""
    array, waiting = raw.number("array_job_id"), raw.text("array_task_string").partition("%")[0]
    if not array or "-" in waiting or "," in waiting:
        return ""
    return f"{array}_{waiting or raw.number('array_task_id')}"


def request(raw: JobFields) -> JobRequest:
    """Return the resources that a job asks for. Raises SlurmError."""
    kinds = ("tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket")
    (of_job, _), (of_node, _), (of_task, _), (of_socket, _) = given = [raw.gpus(kind) for kind in kinds]
    cpus_per_gpu, memory_per_gpu = raw.gpus("cpus_per_tres")[0], raw.gpus("memory_per_tres")[0]
    nodes = NODES.search(raw.text("tres_req_str"))
    is_named = not MEMORY_NAMED.isdisjoint(raw.texts("flags"))
    memory, memory_per_cpu = raw.number("memory_per_node"), raw.number("memory_per_cpu")
    return JobRequest(
        min_nodes=int(nodes[1]) if nodes else 1,
        max_nodes=_max_nodes(raw),
        tasks=max(raw.number("tasks"), 1),
        tasks_per_node=raw.number("tasks_per_node"),
        cpus=raw.number("cpus"),
        min_cpus=raw.number("minimum_cpus_per_node"),
        single_threads=1 in (raw.number("threads_per_core"), raw.number("tasks_per_core")),
        gpus=of_job,
        gpus_per_node=of_node or of_socket,
        gpus_per_task=of_task,
        whole_tasks=any(map(CPUS.fullmatch, raw.text("tres_per_task").split(","))),
        cpus_per_gpu=cpus_per_gpu,
        memory=memory,
        memory_per_cpu=memory_per_cpu,
        memory_per_gpu=memory_per_gpu,  # the partition's default, where another memory is named
        whole_memory=is_named and not (memory or memory_per_cpu),
        exclusive=raw.text("shared").lower() == "none",
        unpromised=_unpromised(raw, [name for _, name in given]),
    )


def _max_nodes(raw: JobFields) -> int:
    """Return the maximum number of nodes; 0 for none, or if Slurm does not say.

    Of a job that it has not tried, such as in a pool without instances, 23.11 gives the minimum where there
    is no maximum (``job_mgr.c``, ``pack_job``). With a maximum such a job may get instances that it cannot
    use, once: Slurm gives it up with them.
    """
    most = raw.number("max_nodes")
    is_known = not raw.is_object("max_nodes") or raw.text("state_reason") in TRIED_REASONS
    return most if is_known or most != raw.number("node_count") else 0


def _unpromised(raw: JobFields, gres: Sequence[str]) -> str:
    """Return a requirement of a job that no pool guarantees; empty for none."""
    if wrong := next(filter(None, gres), ""):
        return printable(wrong)
    features = raw.text("features")
    if features not in ("", *raw.text("partition").split(",")):
        return f"the feature {printable(features)}"
    if raw.number("minimum_tmp_disk_per_node"):
        return "--tmp"
    if raw.number("sockets_per_node") > 1 or raw.number("cores_per_socket") or raw.number("tasks_per_socket"):
        return "sockets"
    if max(raw.number("threads_per_core"), raw.number("tasks_per_core")) > THREADS:
        return "threads of a core"
    return "--nodelist" if raw.text("required_nodes") else ""


def _count(tasks: str) -> int:
    """Return the number of tasks in ``0-7,9-21:4%2``. Raises SlurmError."""
    number = 0
    for part in tasks.partition("%")[0].split(","):
        tasks_of = RANGE.fullmatch(part)
        if tasks_of is None:
            raise SlurmError(f"{COMMAND}: array_task_string = {_short(tasks)}; allowed: 0-7,9-21:4%2")
        first, last, step = int(tasks_of[1]), int(tasks_of[2] or tasks_of[1]), int(tasks_of[3] or 1)
        number += max(0, last - first) // max(1, step) + 1
    return number


def printable(text: str, longest: int = LONGEST_NAME) -> str:
    """Return a user's text for a line of a table, without control characters and line ends."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:longest])


def _log(raw: JobFields) -> str:
    """Return the file of a job's output; 22.05 gives its pattern (sbatch(1), "FILENAME PATTERN").

    The result is empty for a path that no file can have, or that could not be shown unchanged.
    """
    array, task = raw.number("array_job_id"), raw.number("array_task_id")
    pattern = raw.text("standard_output") or ("slurm-%A_%a.out" if array else "slurm-%j.out")
    folder, number = raw.text("current_working_directory"), raw.number("job_id")
    values = {
        "%": "%",
        "A": str(array or number),
        "a": str(task),
        "j": str(number),
        "u": raw.text("user_name"),
        "x": raw.text("name"),
    }
    if sum(len(values[kind]) for _, kind in PATTERN.findall(pattern)) > LONGEST_PATH:
        return ""
    name = PATTERN.sub(lambda mark: values[mark[2]].zfill(min(int(mark[1] or 0), WIDEST)), pattern)
    path = name if name.startswith("/") or not folder else f"{folder}/{name}"
    return path if len(path) <= LONGEST_PATH and path.isprintable() else ""


def _short(value: Any) -> str:
    return repr(value)[:80]

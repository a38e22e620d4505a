"""Slurm's configuration as text: what the controller reads, and nodes fetch from it (configless). Pure.

A pool is a partition. Nodes are dynamic: an instance registers itself under its id, with its pool as a
feature, and the partition is whoever has that feature. https://slurm.schedmd.com/slurm.conf.html
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROLLER_PORT, NODE_PORT, DATABASE_PORT = 6817, 6818, 6819
# what srun listens on for its steps; the security groups let the controller and the pool in
SRUN_PORTS = (60001, 63000)
# of all pools, with those that were terminated a moment ago; the controller is restarted for another value
MOST_NODES = 4096
# Saved and to be run again (gpu_fleet/core/exit_codes.py): the same job goes on elsewhere.
REQUEUED_EXIT = 85
# How long a credential of a step holds. A job that was requeued waits as long, so that no node goes on with
# it: 120 s unless set. The prolog, which only looks at two files, must be over by then.
CREDENTIAL_S = 30
# A node that says nothing for so long is down, whatever the cloud says of its instance.
SILENT_S = 300
# Of the shared homes: encrypted, backed up, and there when the next controller comes.
HOMES = Path("/home")
STATE = HOMES / ".gpu-fleet-queue"
ACCOUNTING = HOMES / ".gpu-fleet-accounting"  # MariaDB's log, for its account alone
DATABASE = "slurm_acct_db"
DATABASE_MIB = 256  # of the controller's 4 GiB; Slurm's manual asks for more than MariaDB's own 128
LOG_NAME = "log"
LOG_MIB = 16  # of a file of the log, which goes once a dump has all of it
# Fair share weighs more than any age; what was used counts half after a week.
FAIR_SHARE, AGE, HALF_LIFE = 100_000, 1_000, "7-0"
# Before both: a job that gives way to another must not come before it, or it would be stopped as it starts.
QUALITY = 1_000_000
NORMAL, LOW = "normal", "low"  # the first is Slurm's own, for jobs that name none
# As long as a notice of a spot instance, within which a run saves.
GRACE_S = 120
LIBEXEC = "/usr/libexec/gpu-fleet"
NODE_GPUS = "/etc/gpu-fleet/gres.conf"


@dataclass(frozen=True)
class Cluster:
    """A stack's queue.

    Attributes:
        name: the stack's.
        host: the controller's host name, as it calls itself.
        address: the controller's fixed address.
        pools: their names, the first of them the default partition, and the MiB of memory that a job of each
            gets with a GPU unless it says more.
        state: folder of the controller's state, on storage that outlives it.
        counts_gpus_of_tasks: slurmctld has the plugin that ``job_submit`` is for.
    """

    name: str
    host: str
    address: str
    pools: Mapping[str, int]
    state: str
    counts_gpus_of_tasks: bool = True


def slurm_conf(cluster: Cluster) -> str:
    """``slurm.conf``; equal pools give equal text."""
    rows = [
        f"ClusterName={cluster.name}",
        f"SlurmctldHost={cluster.host}({cluster.address})",
        f"SlurmctldPort={CONTROLLER_PORT}",
        f"SlurmdPort={NODE_PORT}",
        f"SrunPortRange={SRUN_PORTS[0]}-{SRUN_PORTS[1]}",
        # a job that gives way hears of it by a signal of its own choice (sbatch --signal), else by SIGTERM
        "SlurmctldParameters=enable_configless,preempt_send_user_signal",
        "AuthType=auth/munge",
        f"AuthInfo=cred_expire={CREDENTIAL_S}",
        "CredType=cred/munge",
        "SlurmUser=slurm",
        f"StateSaveLocation={cluster.state}",
        "SlurmdSpoolDir=/var/spool/slurmd",
        "SlurmctldPidFile=/run/slurmctld.pid",
        "SlurmdPidFile=/run/slurmd.pid",
        "MailProg=/bin/true",
        "MpiDefault=none",
        # every process of a job is in its cgroup, and so ends with it
        "ProctrackType=proctrack/cgroup",
        "TaskPlugin=task/cgroup,task/affinity",
        "SelectType=select/cons_tres",
        # memory too is given to one job alone (cgroup.conf holds it to that)
        "SelectTypeParameters=CR_Core_Memory",
        "GresTypes=gpu",
        f"MaxNodeCount={MOST_NODES}",
        "TreeWidth=65533",
        "ReturnToService=2",
        f"SlurmdTimeout={SILENT_S}",
        "JobRequeue=1",
        # a job that a node refused goes on elsewhere by itself
        "SchedulerParameters=nohold_on_prolog_fail",
        f"RequeueExit={REQUEUED_EXIT}",
        # a step of its own on every node of a job, which the reaper's agent sees as work
        "PrologFlags=Alloc,Contain",
        f"Prolog={LIBEXEC}/queue-prolog",
        f"Epilog={LIBEXEC}/queue-epilog",
        f"HealthCheckProgram={LIBEXEC}/queue-health",
        "HealthCheckInterval=30",
        "HealthCheckNodeState=ANY",
        f"TaskProlog={LIBEXEC}/queue-task-prolog",
        *_accounting(cluster.address),
        # a user whom Slurm does not know has no jobs: who left hands none in, from a job that ends neither
        "AccountingStorageEnforce=limits",
        # after its time of grace a job that gave way goes back into the queue
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        *["JobSubmitPlugins=lua"] * cluster.counts_gpus_of_tasks,
    ]
    for index, (pool, memory) in enumerate(cluster.pools.items()):
        rows.append(f"NodeSet={pool} Feature={pool}")
        default = "YES" if index == 0 else "NO"
        given = f" DefMemPerGPU={memory}" if memory else ""
        rows.append(f"PartitionName={pool} Nodes={pool} Default={default} MaxTime=INFINITE State=UP{given}")
    return "\n".join(rows) + "\n"


def _accounting(address: str) -> list[str]:
    """What is written of each job, and how the shares of accounts order those that wait.

    Where the database is down slurmctld goes by what it remembers of the accounts.
    """
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={address}",
        f"AccountingStoragePort={DATABASE_PORT}",
        "AccountingStorageTRES=gres/gpu",
        "JobAcctGatherType=jobacct_gather/linux",
        "PriorityType=priority/multifactor",
        f"PriorityDecayHalfLife={HALF_LIFE}",
        "PriorityCalcPeriod=1",
        f"PriorityWeightFairshare={FAIR_SHARE}",
        f"PriorityWeightAge={AGE}",
        f"PriorityWeightQOS={QUALITY}",
    ]


def state_of(stack: str) -> Path:
    """Where a controller keeps what outlives it."""
    return STATE / stack


def accounting_log_of(stack: str) -> Path:
    """Where MariaDB writes its log."""
    return ACCOUNTING / stack


def slurmdbd_conf(host: str, address: str) -> str:
    """``slurmdbd.conf``: https://slurm.schedmd.com/slurmdbd.conf.html. No password: the socket says who."""
    rows = [
        "AuthType=auth/munge",
        f"DbdHost={host}",
        f"DbdAddr={address}",
        f"DbdPort={DATABASE_PORT}",
        "SlurmUser=slurm",
        "PidFile=/run/slurmdbd.pid",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=slurm",
        f"StorageLoc={DATABASE}",
        # a dump holds all of it: years of steps would make it large
        "PurgeJobAfter=12months",
        "PurgeStepAfter=1month",
    ]
    return "\n".join(rows) + "\n"


def mariadb_conf(log: Path | None) -> str:
    """What Slurm asks of MariaDB (https://slurm.schedmd.com/accounting.html): by its socket alone.

    Args:
        log: the folder to which each change goes before it counts as done; None to write none.
    """
    rows = [
        "[mariadbd]",
        "skip-networking",
        f"innodb_buffer_pool_size={DATABASE_MIB}M",
        "innodb_lock_wait_timeout=900",
    ]
    if log is not None:
        rows += [
            f"log_bin={log / LOG_NAME}",
            "binlog_format=ROW",
            "sync_binlog=1",
            f"max_binlog_size={LOG_MIB}M",
            # only what a dump has goes (image/gpu_fleet_image/queue/database.py)
            "expire_logs_days=0",
            # slurmdbd makes functions of its own, and is not the database's root
            "log_bin_trust_function_creators=1",
        ]
    return "\n".join(rows) + "\n"


def job_submit() -> str:
    """``job_submit.lua``: as many GPUs as ``--ntasks-per-gpu`` means where a job names none.

    sbatch(1) says that Slurm counts them; 22.05 does not, starts such a job nowhere, and says of it in no
    answer why. https://slurm.schedmd.com/job_submit_plugins.html
    """
    return """\
function slurm_job_submit(job, _partitions, _uid)
    local per_gpu, tasks = job.ntasks_per_tres, job.num_tasks
    local given = job.tres_per_job or job.tres_per_node or job.tres_per_task or job.tres_per_socket
    local counts = per_gpu and per_gpu > 0 and per_gpu < slurm.NO_VAL16 and tasks and tasks < slurm.NO_VAL
    if counts and not given then
        job.tres_per_job = "gres:gpu:" .. math.ceil(tasks / per_gpu)
    end
    return slurm.SUCCESS
end

function slurm_job_modify(_job, _record, _partitions, _uid)
    return slurm.SUCCESS
end
"""


def gres_conf() -> str:
    """``gres.conf``, the same for every node: each brings the list of its own GPUs.

    slurmd drops GPUs without device files, and only the node knows its own; what is included is read there.
    """
    return f"Include {NODE_GPUS}\n"


def cgroup_conf() -> str:
    """``cgroup.conf``: a job has the GPUs, cores and memory that it was given, and no others."""
    return "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"


def node_gpus(count: int) -> str:
    """The node's own part of ``gres.conf``; empty without GPUs."""
    if count == 0:
        return ""
    devices = "/dev/nvidia0" if count == 1 else f"/dev/nvidia[0-{count - 1}]"
    return f"Name=gpu File={devices}\n"


def node_command(instance_id: str, pool: str, gpus: int, address: str) -> list[str]:
    """How slurmd starts on an instance."""
    parameters = f"Feature={pool}" + (f" Gres=gpu:{gpus}" if gpus else "")
    server = f"{address}:{CONTROLLER_PORT}"
    return ["slurmd", "-D", "-Z", "-N", instance_id, "--conf", parameters, "--conf-server", server]

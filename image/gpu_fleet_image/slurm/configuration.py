"""Slurm's configuration as text: read by the controller, and fetched from it by nodes (configless). Pure.

A pool is a partition. Nodes are dynamic: an instance registers itself under its id, with its pool as a
feature, and the partition contains all nodes with that feature. https://slurm.schedmd.com/slurm.conf.html
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CONTROLLER_PORT, NODE_PORT, DATABASE_PORT = 6817, 6818, 6819
# ports of srun for its steps; the security groups admit the controller and the pool
SRUN_PORTS = (60001, 63000)
# of all pools, with recently terminated ones; another value needs a restart of the controller
MOST_NODES = 4096
# Saved and to be run again (gpu_fleet/core/exit_codes.py): the same job continues elsewhere.
REQUEUED_EXIT = 85
# Lifetime of a step's credential; the default is 120 s. A requeued job waits for as long, so that no node
# continues it. The prolog, which only checks two files, must end within it.
CREDENTIAL_S = 30
# A node that does not respond for so long is down, whatever the cloud reports of its instance.
SILENT_S = 300
# On the shared homes: encrypted, backed up, and there for the next controller.
HOMES = Path("/home")
STATE = HOMES / ".gpu-fleet-queue"
ACCOUNTING = HOMES / ".gpu-fleet-accounting"  # MariaDB's log, readable by its account only
DATABASE = "slurm_acct_db"
DATABASE_MIB = 256  # of the controller's 4 GiB; Slurm's manual asks for more than MariaDB's own 128
LOG_NAME = "log"
LOG_MIB = 16  # of a file of the log, which is deleted once a dump contains all of it
# Fair share weighs more than any age; usage counts half after a week.
FAIR_SHARE, AGE, HALF_LIFE = 100_000, 1_000, "7-0"
# Above both: a job that can be preempted must not start before the one that preempts it.
QUALITY = 1_000_000
NORMAL, LOW = "normal", "low"  # the first is Slurm's own, for jobs without a QoS
# As long as a spot instance's interruption notice, within which a run saves.
GRACE_S = 120
LIBEXEC = "/usr/libexec/gpu-fleet"
NODE_GPUS = "/etc/gpu-fleet/gres.conf"


@dataclass(frozen=True)
class Cluster:
    """Settings of a stack's queue.

    Attributes:
        name: the stack's.
        host: the controller's own host name.
        address: the controller's fixed address.
        pools: name -> default MiB of memory for each GPU of a job; the first pool that takes
            instances is the default partition.
        state: folder of the controller's state, on storage that outlives it.
        counts_gpus_of_tasks: slurmctld has the plugin that runs ``job_submit``.
        gpus_named: the name of GPUs in a job, ``gres/gpu`` for 23.11.
        drained: pools that take no new instances: their partitions take no new jobs, and those that wait run
            where instances still stand.
    """

    name: str
    host: str
    address: str
    pools: Mapping[str, int]
    state: str
    counts_gpus_of_tasks: bool = True
    gpus_named: str = "gres:gpu"
    drained: frozenset[str] = frozenset()


def slurm_conf(cluster: Cluster) -> str:
    """Return ``slurm.conf``; equal pools give equal text."""
    rows = [
        f"ClusterName={cluster.name}",
        f"SlurmctldHost={cluster.host}({cluster.address})",
        f"SlurmctldPort={CONTROLLER_PORT}",
        f"SlurmdPort={NODE_PORT}",
        f"SrunPortRange={SRUN_PORTS[0]}-{SRUN_PORTS[1]}",
        # a preempted job gets the signal of its own choice (sbatch --signal), else SIGTERM
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
        # every process of a job is in its cgroup, and ends with it
        "ProctrackType=proctrack/cgroup",
        "TaskPlugin=task/cgroup,task/affinity",
        "SelectType=select/cons_tres",
        # memory too is allocated to one job alone (cgroup.conf enforces it)
        "SelectTypeParameters=CR_Core_Memory",
        "GresTypes=gpu",
        f"MaxNodeCount={MOST_NODES}",
        "TreeWidth=65533",
        "ReturnToService=2",
        f"SlurmdTimeout={SILENT_S}",
        "JobRequeue=1",
        # a job that a node refused continues elsewhere by itself
        "SchedulerParameters=nohold_on_prolog_fail",
        f"RequeueExit={REQUEUED_EXIT}",
        # an extern step on every node of a job, which the reaper's agent counts as activity
        "PrologFlags=Alloc,Contain",
        f"Prolog={LIBEXEC}/queue-prolog",
        f"Epilog={LIBEXEC}/queue-epilog",
        f"HealthCheckProgram={LIBEXEC}/queue-health",
        "HealthCheckInterval=30",
        "HealthCheckNodeState=ANY",
        f"TaskProlog={LIBEXEC}/queue-task-prolog",
        *_accounting(cluster.address),
        # a user whom Slurm does not know has no jobs: users who left cannot submit, not even from a job that
        # ends
        "AccountingStorageEnforce=limits",
        # after its grace time a preempted job returns to the queue
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        *["JobSubmitPlugins=lua"] * cluster.counts_gpus_of_tasks,
    ]
    first = next((pool for pool in cluster.pools if pool not in cluster.drained), None)
    for pool, memory in cluster.pools.items():
        rows.append(f"NodeSet={pool} Feature={pool}")
        default, state = "YES" if pool == first else "NO", "DRAIN" if pool in cluster.drained else "UP"
        given = f" DefMemPerGPU={memory}" if memory else ""
        partition = f"PartitionName={pool} Nodes={pool} Default={default} MaxTime=INFINITE"
        rows.append(f"{partition} State={state}{given}")
    return "\n".join(rows) + "\n"


def _accounting(address: str) -> list[str]:
    """Return the settings of job records, and of the order of waiting jobs by the shares of accounts.

    While the database is down, slurmctld uses the accounts in its memory.
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
    """Return the folder of a controller's state that outlives it."""
    return STATE / stack


def accounting_log_of(stack: str) -> Path:
    """Return the folder of MariaDB's log."""
    return ACCOUNTING / stack


def slurmdbd_conf(host: str, address: str) -> str:
    """Return ``slurmdbd.conf``: https://slurm.schedmd.com/slurmdbd.conf.html.

    The socket replaces a password.
    """
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
        # a dump contains all of it: years of steps would make it large
        "PurgeJobAfter=12months",
        "PurgeStepAfter=1month",
    ]
    return "\n".join(rows) + "\n"


def mariadb_conf(log: Path | None) -> str:
    """Return MariaDB's settings for Slurm (https://slurm.schedmd.com/accounting.html), with its socket only.

    Args:
        log: the folder of the log, to which each change is written before it counts as done; None for no log.
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
            # only what a dump contains is deleted (image/gpu_fleet_image/slurm/database.py)
            "expire_logs_days=0",
            # slurmdbd makes functions of its own, and is not the database's root
            "log_bin_trust_function_creators=1",
        ]
    return "\n".join(rows) + "\n"


def job_submit(gpus_named: str) -> str:
    """Return ``job_submit.lua``: it derives a job's GPUs from ``--ntasks-per-gpu`` if the job names none.

    sbatch(1) says that Slurm counts them. 22.05 does not, never starts such a job, and gives no reason in its
    replies. 23.11 does, and does not report how many. https://slurm.schedmd.com/job_submit_plugins.html
    """
    return """\
function slurm_job_submit(job, _partitions, _uid)
    local per_gpu, tasks = job.ntasks_per_tres, job.num_tasks
    local given = job.tres_per_job or job.tres_per_node or job.tres_per_task or job.tres_per_socket
    local counts = per_gpu and per_gpu > 0 and per_gpu < slurm.NO_VAL16 and tasks and tasks < slurm.NO_VAL
    if counts and not given then
        job.tres_per_job = "GPUS:" .. math.ceil(tasks / per_gpu)
    end
    return slurm.SUCCESS
end

function slurm_job_modify(_job, _record, _partitions, _uid)
    return slurm.SUCCESS
end
""".replace("GPUS", gpus_named)


def gres_conf() -> str:
    """Return ``gres.conf``, the same for every node: it includes the node's own list of GPUs.

    slurmd drops GPUs without device files, and only the node knows its own; included files are read there.
    """
    return f"Include {NODE_GPUS}\n"


def cgroup_conf() -> str:
    """Return ``cgroup.conf``: a job has only the GPUs, cores and memory that it was allocated."""
    return "ConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"


def node_gpus(count: int) -> str:
    """Return the node's own part of ``gres.conf``; empty without GPUs."""
    if count == 0:
        return ""
    devices = "/dev/nvidia0" if count == 1 else f"/dev/nvidia[0-{count - 1}]"
    return f"Name=gpu File={devices}\n"


def node_command(instance_id: str, pool: str, gpus: int, address: str) -> list[str]:
    """Return slurmd's command on an instance."""
    parameters = f"Feature={pool}" + (f" Gres=gpu:{gpus}" if gpus else "")
    server = f"{address}:{CONTROLLER_PORT}"
    return ["slurmd", "-D", "-Z", "-N", instance_id, "--conf", parameters, "--conf-server", server]

"""The batch script of a run that ``gpu-fleet submit`` passes to Slurm on a stack with a queue. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_fleet_image.slurm.exclusion import COMMENT

PORT = 29400  # rendezvous of a run's instances (gpu_fleet_jobs/launch/rendezvous.py)
PYTHON = "/opt/gpu-fleet/venv/bin/python"


@dataclass(frozen=True)
class JobScript:
    """A run for the queue.

    Attributes:
        arguments: of ``python -m gpu_fleet``.
        qos: Slurm's QoS of the job; empty for the default.
        gpus: on each instance; 0 for none.
    """

    name: str
    pool: str
    nodes: int
    gpus: int
    folder: str
    log: str
    arguments: Sequence[str]
    qos: str = ""


def script(batch: JobScript) -> str:
    """Return the script's text.

    Slurm runs it on the first instance; gpu_fleet_jobs/submitted/queued.py continues.

    If an instance dies, Slurm requeues the job by itself; else the exit code decides.
    """
    gpus = [f"#SBATCH --gpus-per-node={batch.gpus}"] if batch.gpus else []
    log = batch.log.replace("%j", "$SLURM_JOB_ID")
    work = f'exec {PYTHON} -m gpu_fleet queued --log "{log}" {shlex.join(batch.arguments)}'
    rows = [
        "#!/bin/bash",
        f"#SBATCH --job-name={batch.name}",
        f"#SBATCH --partition={batch.pool}",
        f"#SBATCH --nodes={batch.nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        *gpus,
        *([f"#SBATCH --qos={batch.qos}"] if batch.qos else []),
        "#SBATCH --requeue",
        f"#SBATCH --comment={COMMENT}",
        "#SBATCH --open-mode=append",
        f"#SBATCH --chdir={batch.folder}",
        f"#SBATCH --output={batch.log}",
        "# the batch host is the first node, the rendezvous of all",
        r"""address=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')""",
        f"export PET_NNODES=$SLURM_NNODES PET_MASTER_ADDR=$address PET_MASTER_PORT={PORT}",
        "# start it on each by srun, report progress in the bucket, exit with 85 to be requeued",
        work,
    ]
    return "\n".join(rows) + "\n"

"""The batch script of a run: what ``gpu-fleet submit`` hands to Slurm on a stack with a queue. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_fleet_image.queue.exclusion import COMMENT

PORT = 29400  # where the instances of a run meet (gpu_fleet_jobs/launch/rendezvous.py)
PYTHON = "/opt/gpu-fleet/venv/bin/python"


@dataclass(frozen=True)
class JobScript:
    """A run for the queue.

    Attributes:
        name: of the job.
        folder: where it runs, on the shared homes.
        log: where its output goes.
        arguments: of ``python -m gpu_fleet``.
        qos: Slurm's name for how it gives way; empty for its default.
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
    """The script's text. Slurm runs it on the first instance, as gpu_fleet_jobs/submitted/queued.py goes on.

    Where an instance dies Slurm puts the job back by itself; else the exit code decides.
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
        "# the batch host is the first of the nodes: all meet at its address",
        r"""address=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')""",
        f"export PET_NNODES=$SLURM_NNODES PET_MASTER_ADDR=$address PET_MASTER_PORT={PORT}",
        "# starts it on each by srun, says in the bucket how far it is, and ends with 85 to be run again",
        work,
    ]
    return "\n".join(rows) + "\n"

"""The batch script of a run: what ``gpu-fleet submit`` hands to Slurm on a stack with a queue. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from image.queue.configuration import REQUEUED_EXIT

PORT = 29400  # where the instances of a run meet (gpu_fleet/pool/rendezvous.py)
PYTHON = "/opt/gpu-fleet/venv/bin/python"
TRIES = 3  # of a run that failed for a reason that may pass
# gpu_fleet/exit_codes.py: finished, usage, failed for good
NEVER_AGAIN = (0, 2, 65)


@dataclass(frozen=True)
class JobScript:
    """A run for the queue.

    Attributes:
        name: of the job.
        folder: where it runs, on the shared homes.
        log: where its output goes.
        arguments: of ``python -m gpu_fleet``.
        gpus: on each instance; 0 for none.
    """

    name: str
    pool: str
    nodes: int
    gpus: int
    folder: str
    log: str
    arguments: Sequence[str]


def script(batch: JobScript) -> str:
    """The script's text. Slurm runs it on the first instance; srun starts the trainer once on each.

    A run that was stopped and has saved ends with 85, and the queue runs it again; so it does with one that
    failed for a reason that may pass, a few times. Where an instance dies Slurm puts the job back by itself.
    """
    gpus = [f"#SBATCH --gpus-per-node={batch.gpus}"] if batch.gpus else []
    work = shlex.join([PYTHON, "-m", "gpu_fleet", *batch.arguments])
    inner = f"PET_NODE_RANK=$SLURM_NODEID exec {work}"
    rows = [
        "#!/bin/bash",
        f"#SBATCH --job-name={batch.name}",
        f"#SBATCH --partition={batch.pool}",
        f"#SBATCH --nodes={batch.nodes}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        *gpus,
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --chdir={batch.folder}",
        f"#SBATCH --output={batch.log}",
        "# the batch host is the first of the nodes: all meet at its address",
        r"""address=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')""",
        f"export PET_NNODES=$SLURM_NNODES PET_MASTER_ADDR=$address PET_MASTER_PORT={PORT}",
        f"srun --kill-on-bad-exit=1 bash -c {shlex.quote(inner)}",
        "status=$?",
        "case $status in",
        f"    {' | '.join(str(code) for code in NEVER_AGAIN)}) exit $status ;;",
        "esac",
        f"# the queue runs a job again that ends with {REQUEUED_EXIT}",
        f"[ $status -eq {REQUEUED_EXIT} ] || [ ${{SLURM_RESTART_COUNT:-0}} -ge {TRIES - 1} ] ||",
        f"    status={REQUEUED_EXIT}",
        "exit $status",
    ]
    return "\n".join(rows) + "\n"

"""Shell scripts that an acceptance run has an instance run as root. Pure.

They use parts of every instance of a stack: the gate's report, the trainer's unit with its folder of jobs,
the stop file. AWS-RunShellScript and Cloud Assistant run them with ``sh``, so the scripts avoid bash syntax.
"""

import base64
import json
import shlex
from dataclasses import dataclass
from typing import Any

from gpu_fleet_image.recipe import places

JOBS = "/etc/gpu-fleet/jobs"
WORK = "/scratch/accept"
DATA = f"{WORK}/digits"
PYTHON = "/opt/gpu-fleet/venv/bin/python"
STOP_FILE = "/run/gpu-fleet/stop"
READY_FILE = "/run/gpu-fleet/ready.json"
EXAMPLE = places.folder("training/examples") / "digits.toml"
MARK = "--- gpu-fleet ---"


@dataclass(frozen=True)
class TrainerJob:
    """One run of the trainer.

    Attributes:
        name: of the job and its unit ``trainer@NAME``.
        on_gpu: False hides the GPUs, for two ranks on one GPU: NCCL needs a GPU for each rank.
    """

    name: str
    checkpoint_uri: str
    ranks: int
    epochs: float
    on_gpu: bool

    @property
    def folder(self) -> str:
        """The run directory on the instance."""
        return f"{WORK}/{self.name}"

    @property
    def unit(self) -> str:
        """The run's systemd unit."""
        return f"trainer@{self.name}"


def gate() -> str:
    """Print the gate's report; exit code 3 while there is none or its checks still run."""
    return (
        f"[ -f {READY_FILE} ] || exit 3\ngrep -q '\"ready\": null' {READY_FILE} && exit 3\ncat {READY_FILE}\n"
    )


def environment() -> str:
    """Print torch's version and the number of GPUs that it sees; exit code 3 without an environment."""
    probe = "import torch, gpu_fleet; print(torch.__version__, torch.cuda.device_count())"
    return f"[ -x {PYTHON} ] || exit 3\n{PYTHON} -c {shlex.quote(probe)} || exit 3\n"


def start(job: TrainerJob, example: str) -> str:
    """Prepare the data where it is missing, write the job and start its unit."""
    overrides = {
        "data.path": DATA,
        "run.directory": job.folder,
        "run.epochs": f"{job.epochs:g}",
        "checkpoint.uri": job.checkpoint_uri,
        "metrics.progress": "false",
    }
    options = ["--alone", "--nproc-per-node", str(job.ranks)]
    options += [word for key, value in overrides.items() for word in (f"--{key}", value)]
    variables = [f"LAUNCH_OPTIONS={' '.join(options)}", "OMP_NUM_THREADS=1"]
    variables += [] if job.on_gpu else ["CUDA_VISIBLE_DEVICES="]
    return "\n".join(
        (
            "set -eu",
            f"install -d -o gpu-fleet -g gpu-fleet {WORK}",
            f"if [ ! -f {DATA}/dataset.json ]; then",
            f"  runuser -u gpu-fleet -- {PYTHON} -m gpu_fleet prepare digits {DATA}",
            "fi",
            f"mkdir -p {JOBS}",
            f"echo {_base64(example)} | base64 -d > {JOBS}/{job.name}.toml",
            f"echo {_base64(chr(10).join(variables) + chr(10))} | base64 -d > {JOBS}/{job.name}.env",
            f"rm -f {STOP_FILE}",
            f"systemctl start {job.unit}",
            "",
        )
    )


def look(job: TrainerJob) -> str:
    """Print the unit's state, the run's result and the last line of its metrics."""
    return "\n".join(
        (
            f"systemctl show {job.unit} --property=ActiveState --property=Result --property=NRestarts",
            f"echo '{MARK}'",
            f"cat {job.folder}/result.json 2>/dev/null || true",
            f"echo '{MARK}'",
            f"tail -n 1 {job.folder}/metrics.jsonl 2>/dev/null || true",
            "",
        )
    )


def journal(job: TrainerJob) -> str:
    """Print the last lines of the unit's log."""
    return f"journalctl --unit {job.unit} --no-pager --lines 40\n"


def ask_to_stop() -> str:
    """Write the stop file that the trainer looks for, as the agent and users do."""
    return f"echo 'gpu-fleet accept: a rehearsed interruption' > {STOP_FILE}\n"


def forget(job: TrainerJob) -> str:
    """Remove the run from the instance's disk, so that only the bucket holds it."""
    return f"rm -rf {job.folder}\n"


@dataclass(frozen=True)
class Progress:
    """State of a run.

    Attributes:
        state: systemd's ``ActiveState`` of its unit.
        result: systemd's ``Result``.
        restarts: how often systemd restarted the unit after a failure.
        outcome: the content of ``result.json``; empty until the run ends.
        step: the last step in its metrics; 0 before the first.
    """

    state: str
    result: str
    restarts: int
    outcome: dict[str, Any]
    step: int

    @property
    def over(self) -> bool:
        """Return whether the unit ended and left its result."""
        return self.state == "inactive" and bool(self.outcome)

    @property
    def failed(self) -> bool:
        """Return whether the unit failed, or failed and was restarted."""
        return self.state == "failed" or self.restarts > 0


def progress(printed: str) -> Progress:
    """Parse the output of ``look``.

    Raises:
        ValueError: the output has another form, or was cut.
        KeyError: it lacks the unit's state.
    """
    unit, result, metrics = (part.strip() for part in printed.split(MARK))
    properties = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    return Progress(
        state=properties["ActiveState"],
        result=properties.get("Result", ""),
        restarts=int(properties.get("NRestarts") or 0),
        outcome=json.loads(result) if result else {},
        step=int(json.loads(metrics).get("step", 0)) if metrics else 0,
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()

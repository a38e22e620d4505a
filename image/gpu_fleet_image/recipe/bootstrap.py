"""The recipe at the first boot of an image that gpu-fleet did not bake: runs the marked steps in order.

It is in the payload beside ``provision.sh`` and needs only the system's Python. The agent comes first and
needs no download. A failed step is reported to the journal and in ``/run/gpu-fleet/bootstrap.json``, and the
next one runs. Failed steps are tried again later, since archives and indexes are often only slow to reach.
Steps that still fail are tried at the next boot, and only those.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

# the payload has the project's modules beside this file; the system's Python has none of them
sys.path.append(str(Path(__file__).resolve().parent / "python"))

from gpu_fleet_image.core.files import replace_text

# An instance that has just booted may get internet access minutes later; what still fails after these waits
# will not recover.
WAITS_S = (30, 120, 600)
INCOMPLETE = 3  # exit status: the agent may run, but not every step is done; the unit does not restart for it
FIRST = "15-agent"


@dataclass(frozen=True)
class RecipePlace:
    """Folders and target of the recipe.

    Attributes:
        root: the instance's root, or a folder that replaces it.
        target: ``aws`` or ``alicloud``.
    """

    payload: Path
    root: Path
    target: str

    @property
    def is_folder(self) -> bool:
        """True in a rehearsal: no root rights, no systemd, no packages."""
        return self.root != Path("/")

    @property
    def report_file(self) -> Path:
        """Report of the steps, for users and tests."""
        return self.root / "run/gpu-fleet/bootstrap.json"

    @property
    def marker(self) -> Path:
        """File that keeps the unit of the user data from running all steps again at the next boot."""
        return self.root / "var/lib/gpu-fleet/bootstrapped"

    @property
    def done_file(self) -> Path:
        """File with the payload's digest and its completed steps, for the next boot."""
        return self.root / "var/lib/gpu-fleet/steps-done"


@dataclass
class BootstrapReport:
    """Progress of the steps.

    Attributes:
        state: ``running``, ``done`` or ``incomplete``.
        steps: step -> ``done``, or why it failed.
        seconds: step -> seconds of its last try.
    """

    payload: str
    state: str = "running"
    steps: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def marked(order: str, target: str, mark: str) -> tuple[str, ...]:
    """Return the steps of ``steps/ORDER`` that are for a target and have a mark, in their order. Pure."""
    rows = [line.split() for line in order.splitlines() if line.strip() and not line.startswith("#")]
    return tuple(name for name, *words in rows if target in words and mark in words)


def run_step(place: RecipePlace, step: str) -> str:
    """Run one step and pass its output on; return ``done``, or its last line if it failed."""
    environment = {
        **os.environ,
        "TARGET": place.target,
        "BOOTSTRAP": "1",
        "ROOT": str(place.root) if place.is_folder else "",
    }
    command = ["bash", str(place.payload / "provision.sh"), step]
    said = ""
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            # "event=step-failed" follows the step's own output
            said = line.strip() if line.strip() and not line.startswith("event=step-") else said
    return "done" if process.returncode == 0 else said or f"exit status {process.returncode}"


def bootstrap(
    place: RecipePlace,
    steps: Sequence[str],
    run: Callable[[RecipePlace, str], str] = run_step,
    wait: Callable[[float], None] = time.sleep,
) -> BootstrapReport:
    """Run the steps, and run failed ones again after a while.

    Args:
        steps: their names in order; those that an earlier boot completed are not run again.
        wait: sleeps for this many seconds.
    """
    report = BootstrapReport((place.payload / "payload.sha256").read_text(encoding="utf-8").strip())
    before = _done_before(place, report.payload)
    report.steps = dict.fromkeys((step for step in steps if step in before), "done")
    # the agent's step is cheap and starts the agent; the trainer's would empty an environment in use
    left = [step for step in steps if step == FIRST or step not in before]
    for pause_s in (*WAITS_S, None):
        left = [step for step in left if not _succeeds(place, step, report, run)]
        if not left or place.is_folder or pause_s is None:
            break
        wait(pause_s)
    report.state = "incomplete" if left else "done"
    write(place, report)
    return report


def _succeeds(
    place: RecipePlace, step: str, report: BootstrapReport, run: Callable[[RecipePlace, str], str]
) -> bool:
    started = time.monotonic()
    report.steps[step] = run(place, step)
    report.seconds[step] = round(time.monotonic() - started, 1)
    write(place, report)
    if report.steps[step] != "done":
        print(f"event=bootstrap-step-failed step={step} reason={report.steps[step]!r}", flush=True)  # noqa: T201 - the journal
        return False
    return True


def _done_before(place: RecipePlace, payload: str) -> frozenset[str]:
    """Return the steps of the same payload that an earlier boot completed."""
    try:
        digest, *steps = place.done_file.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return frozenset()
    return frozenset(steps) if digest == payload else frozenset()


def write(place: RecipePlace, report: BootstrapReport) -> None:
    """Write the report and the completed steps, each in one move; log a folder that cannot be written."""
    done = [step for step, state in report.steps.items() if state == "done"]
    _put(place.report_file, json.dumps(asdict(report), indent=1) + "\n")
    _put(place.done_file, "\n".join([report.payload, *done]) + "\n")


def _put(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, text)
    except OSError as error:
        print(f"event=bootstrap-report-failed reason={str(error)!r}", flush=True)  # noqa: T201 - the journal


def mark_of(place: RecipePlace) -> str:
    """Return the mark of the steps to run here: a queue's controller has no GPU and is in no pool."""
    if place.is_folder:
        return "folder"
    try:
        queue = json.loads((place.root / "etc/gpu-fleet/queue.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "bootstrap"
    return "controller" if queue.get("role") == "controller" else "bootstrap"


def main() -> int:
    """Run the recipe; return 0 if every step is done, else ``INCOMPLETE``."""
    place = RecipePlace(
        Path(__file__).resolve().parent, Path(os.environ.get("GPU_FLEET_ROOT", "/")), os.environ["TARGET"]
    )
    order = (place.payload / "steps" / "ORDER").read_text(encoding="utf-8")
    report = bootstrap(place, marked(order, place.target, mark_of(place)))
    failed = sorted(step for step, state in report.steps.items() if state != "done")
    print(f"event=bootstrap state={report.state} failed={','.join(failed) or 'none'}", flush=True)  # noqa: T201 - the journal
    if failed:
        return INCOMPLETE
    place.marker.parent.mkdir(parents=True, exist_ok=True)
    place.marker.write_text(f"{report.payload}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""``python -m gpu_fleet_image.instance.gate``.

Waits at boot until the instance is complete; the agent reports the verdict.

Fabric, network interfaces and driver come up while the instance boots: checks that may still pass are
repeated until all pass, one fails for good, or ``MAY_TAKE_S`` have passed.

``python -m gpu_fleet_image.instance.gate health`` prints at any later time why no job may start here: a
broken GPU, or access of users to what only root may use. It prints nothing if jobs may start. Slurm's health
check calls it (rootfs/usr/libexec/gpu-fleet/queue-health).
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped] # NVIDIA ships no types

from gpu_fleet_image.core import instance_file, paths
from gpu_fleet_image.core.errors import CloudError, InstanceFileError
from gpu_fleet_image.core.files import replace_text
from gpu_fleet_image.core.instance_file import Expected
from gpu_fleet_image.core.metadata import Metadata
from gpu_fleet_image.instance.gate.checks import CheckResult, ProbedInstance, judge, judge_running
from gpu_fleet_image.instance.gate.probes import measured, probe
from gpu_fleet_image.instance.gate.user_access import opened, probed

# An H100's fabric takes about a minute (CUDA returns 802 meanwhile), EFA some seconds.
MAY_TAKE_S = 300.0
LOOK_EVERY_S = 5.0
TIMED_OUT = "timed-out"  # argument: the unit exceeded its time limit
HEALTH = "health"  # argument: report what broke since the boot check

LOG = logging.getLogger("gpu_fleet_image.instance.gate")


def main(arguments: Sequence[str] = ()) -> int:
    """Run the gate; return 0 if the instance may be used, else 1."""
    logging.basicConfig(level=logging.INFO, format="time=%(asctime)s level=%(levelname)s %(message)s")
    try:
        if list(arguments) == [TIMED_OUT]:
            hangs = CheckResult("gate", ok=False, detail="no answer in time: a GPU or its driver hangs")
            return 0 if report([hangs]) else 1
        if list(arguments) == [HEALTH]:
            seen = replace(
                _probe(False), metadata_problem=opened(instance_file.load(paths.instance_file()).cloud)
            )
            sys.stdout.write("".join(f"{why}\n" for why in broken_since(paths.ready_file(), seen)))
            return 0
        instance = instance_file.load(paths.instance_file())
        expected = instance.expected_of(_type_of(Metadata(instance.cloud)))
        return 0 if report(awaited(expected, _prober(instance.cloud), report)) else 1
    except InstanceFileError as error:
        LOG.error("event=not-ready reason=%r", str(error))
    except (OSError, ValueError, KeyError) as error:
        LOG.error("event=no-report reason=%r", f"{paths.ready_file()}: {error!r}")
    return 1


def broken_since(report: Path, seen: ProbedInstance) -> list[str]:
    """Return why the instance is unfit for a job, by changes since the boot check counted its GPUs.

    Raises OSError, ValueError, KeyError if there is no report of a boot check with a count.
    """
    counted = json.loads(report.read_text(encoding="utf-8"))["checks"]["gpu_count"]["count"]
    return [finding.detail for finding in judge_running(Expected(gpus=counted), seen) if not finding.ok]


def awaited(
    expected: Expected,
    see: Callable[[bool], ProbedInstance],
    report: Callable[[Sequence[CheckResult]], object],
    wait: Callable[[float], None] = time.sleep,
    now_s: Callable[[], float] = time.monotonic,
) -> tuple[CheckResult, ...]:
    """Repeat the checks while some may still pass, then add copies on the GPUs; return the final findings.

    Args:
        wait: sleeps for this many seconds.
        now_s: returns monotonic seconds.
    """
    until_s = now_s() + MAY_TAKE_S
    while True:
        findings = judge(expected, see(False))
        if all(finding.ok for finding in findings):
            findings = judge(expected, see(True))
        if not _may_come(findings):
            return findings
        if now_s() >= until_s:
            return tuple(_given_up(finding) for finding in findings)
        report(findings)
        wait(LOOK_EVERY_S)


def _may_come(findings: Sequence[CheckResult]) -> bool:
    """Return whether a failed check may still pass, and none has failed for good."""
    failed = [finding for finding in findings if not finding.ok]
    return bool(failed) and all(finding.waiting for finding in failed)


def _given_up(finding: CheckResult) -> CheckResult:
    late = f"{finding.detail}; still so after {MAY_TAKE_S:.0f} s"
    return replace(finding, detail=late, waiting=False) if finding.waiting else finding


def _probe(copies: bool) -> ProbedInstance:
    return probe(pynvml, measured if copies else None)


def _prober(cloud: str) -> Callable[[bool], ProbedInstance]:
    """Return the probe at the boot, which also tests a user's access."""

    def see(copies: bool) -> ProbedInstance:
        metadata_problem, credentials_problem = probed(cloud)
        return replace(
            _probe(copies), metadata_problem=metadata_problem, credentials_problem=credentials_problem
        )

    return see


def report(findings: Sequence[CheckResult]) -> bool:
    """Write the report of this boot, and the file that lets trainers start, or remove that.

    Raises OSError if a file cannot be written.
    """
    ready = write_report(findings, paths.ready_file(), datetime.now(UTC))
    if ready:
        replace_text(paths.passed_file(), "")
    elif not _may_come(findings):
        paths.passed_file().unlink(missing_ok=True)
    return ready


def write_report(findings: Sequence[CheckResult], file: Path, now: datetime) -> bool:
    """Log every finding, write all of them as JSON in one move; return True if every check passed.

    The report has ``ready: null`` while a check may still pass.

    Raises OSError if the file cannot be written.
    """
    ready = all(finding.ok for finding in findings)
    waiting = _may_come(findings)
    for finding in findings:
        if finding.waiting or not waiting:  # while waiting, log only the checks that may still pass
            level = logging.INFO if finding.ok or waiting else logging.ERROR
            LOG.log(level, "event=check name=%s ok=%s detail=%r", finding.check, finding.ok, finding.detail)
    content: dict[str, Any] = {
        "schema_version": 1,
        "ready": None if waiting else ready,
        "at": now.isoformat(),
        "checks": {finding.check: _written(finding) for finding in findings},
        "waiting_for": [finding.check for finding in findings if finding.waiting],
    }
    replace_text(file, json.dumps(content, indent=1) + "\n")
    LOG.info("event=gate ready=%s file=%s", "waiting" if waiting else ready, file)
    return ready


def _written(finding: CheckResult) -> dict[str, Any]:
    counted = {} if finding.count is None else {"count": finding.count}
    return {"ok": finding.ok, "detail": finding.detail, **counted}


def _type_of(metadata: Metadata) -> str | None:
    try:
        return metadata.instance_type()
    except CloudError as error:
        LOG.warning("event=metadata-silent reason=%r", str(error))
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

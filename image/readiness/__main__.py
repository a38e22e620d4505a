"""``python -m image.readiness``: looks once at boot; the agent reports its verdict to the sweep."""

import json
import logging
import sys
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped] # NVIDIA ships no types

from image.instance.files import replace_text
from image.readiness.checks import Finding, expected_of, judge
from image.readiness.probes import look
from image.reaper import paths
from image.reaper.errors import ReaperError
from image.reaper.metadata import Metadata

LOG = logging.getLogger("image.readiness")


def main() -> int:
    """Exit status 0 when the machine may be used, 1 when it may not."""
    logging.basicConfig(level=logging.INFO, format="time=%(asctime)s level=%(levelname)s %(message)s")
    try:
        instance_file = tomllib.loads(paths.instance_file().read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        LOG.error("event=not-ready reason=%r", f"{paths.instance_file()}: {error}")
        return 1
    metadata = Metadata(str(instance_file.get("cloud", "aws")))
    findings = judge(expected_of(instance_file, _ask(metadata, "instance-type")), look(pynvml))
    try:
        ready = write_report(findings, paths.ready_file(), datetime.now(UTC))
    except OSError as error:
        LOG.error("event=no-report reason=%r", f"{paths.ready_file()}: {error.strerror}")
        return 1
    return 0 if ready else 1


def write_report(findings: Sequence[Finding], file: Path, now: datetime) -> bool:
    """Log every finding, write all of them as JSON in one move; True when every check passed.

    Raises:
        OSError: the file cannot be written.
    """
    for finding in findings:
        level = logging.INFO if finding.ok else logging.ERROR
        LOG.log(level, "event=check name=%s ok=%s detail=%r", finding.check, finding.ok, finding.detail)
    ready = all(finding.ok for finding in findings)
    content: dict[str, Any] = {
        "schema_version": 1,
        "ready": ready,
        "at": now.isoformat(),
        "checks": {finding.check: {"ok": finding.ok, "detail": finding.detail} for finding in findings},
    }
    replace_text(file, json.dumps(content, indent=1) + "\n")
    LOG.info("event=gate ready=%s file=%s", ready, file)
    return ready


def _ask(metadata: Metadata, path: str) -> str | None:
    try:
        return metadata.get(path)
    except ReaperError as error:
        LOG.warning("event=metadata-silent path=%s reason=%r", path, str(error))
        return None


if __name__ == "__main__":
    sys.exit(main())

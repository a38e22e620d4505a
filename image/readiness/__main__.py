"""``python -m image.readiness``: looks once at boot; the agent reports its verdict to the sweep."""

import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped] # NVIDIA ships no types

from image.instance import instance_file, paths
from image.instance.errors import CloudError, InstanceFileError
from image.instance.files import replace_text
from image.instance.metadata import Metadata
from image.readiness.checks import Finding, judge
from image.readiness.probes import look

LOG = logging.getLogger("image.readiness")


def main() -> int:
    """Exit status 0 when the instance may be used, 1 when it may not."""
    logging.basicConfig(level=logging.INFO, format="time=%(asctime)s level=%(levelname)s %(message)s")
    try:
        instance = instance_file.load(paths.instance_file())
    except InstanceFileError as error:
        LOG.error("event=not-ready reason=%r", str(error))
        return 1
    findings = judge(instance.expected_of(_type_of(Metadata(instance.cloud))), look(pynvml))
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


def _type_of(metadata: Metadata) -> str | None:
    try:
        return metadata.instance_type()
    except CloudError as error:
        LOG.warning("event=metadata-silent reason=%r", str(error))
        return None


if __name__ == "__main__":
    sys.exit(main())

"""Atomic writes of files: the whole content or none."""

import os
import tempfile
from pathlib import Path


def replace(path: Path, content: str | bytes) -> None:
    """Write a file so that concurrent readers see the old content or the new, never a part.

    Raises:
        OSError: it could not be written; the old content stays. The error names the folder or the file.
    """
    path = path.resolve()  # a link stays a link
    try:
        unfinished = tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False)  # noqa: SIM115 - closed below
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path.parent)) from error
    with unfinished as target:
        part = Path(target.name)
        try:
            target.write(content.encode() if isinstance(content, str) else content)
            target.flush()
            os.fsync(target.fileno())
            part.chmod(path.stat().st_mode if path.exists() else 0o644)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

"""The version of gpu-fleet: the package's number, and on an instance its payload's digest."""

import json
import sys
from pathlib import Path
from platform import python_version

NAME = "gpu-fleet"
PAYLOAD_DIGEST = Path("opt/gpu-fleet/payload/payload.sha256")  # unpacked by the first boot
MANIFEST = Path("usr/share/gpu-fleet/manifest.json")  # of a built image (steps/95-manifest.sh)
SHOWN_DIGITS = 12
CHECKOUT = Path(__file__).resolve().parents[3]  # of a wheel it is a folder without git
BY_TAGS = (sys.executable, "-m", "setuptools_scm")


def text(root: Path = Path("/")) -> str:
    """Return one line for ``--version``, with all that a report of a defect needs."""
    number = _by_tags(CHECKOUT) or _of_package()
    payload = _payload_of(root)
    parts = [part for part in (number, payload and f"payload {payload[:SHOWN_DIGITS]}") if part]
    return f"{NAME} {' '.join(parts) or 'of an unknown version'}, Python {python_version()}"


def _by_tags(checkout: Path) -> str:
    """Return a checkout's number by git's tags; empty without git or setuptools-scm.

    An installation in place keeps the number of the day when it was made.
    """
    import subprocess  # noqa: PLC0415 - every other command would pay for it

    if not (checkout / ".git").exists():
        return ""
    done = subprocess.run(BY_TAGS, cwd=checkout, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def _of_package() -> str:
    """Return the number of the installed package; empty without one, as on an instance."""
    from importlib import metadata  # noqa: PLC0415 - it loads e-mail and zip, which every other command would pay for

    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return ""


def _payload_of(root: Path) -> str:
    """Return the SHA-256 of the payload that this instance was made from; empty on any other computer."""
    try:
        return (root / PAYLOAD_DIGEST).read_text(encoding="utf-8").strip()
    except OSError:
        pass  # a built image does not have it
    try:
        return str(json.loads((root / MANIFEST).read_text(encoding="utf-8"))["payload_sha256"])
    except (OSError, ValueError, KeyError):
        return ""

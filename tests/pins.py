"""Versions of what tests and benches install beside the project: from the requirements, written once."""

from pathlib import Path

LIBRARIES = Path(__file__).parent / "libraries" / "requirements.txt"


def pinned(*names: str) -> tuple[str, ...]:
    """``NAME==VERSION`` of each package; ValueError where the requirements do not have it."""
    lines = [line for line in LIBRARIES.read_text(encoding="utf-8").splitlines() if "==" in line]
    pins = {line.partition("==")[0]: line for line in lines}
    if missing := [name for name in names if name not in pins]:
        raise ValueError(f"{LIBRARIES}: has no {', '.join(missing)}")
    return tuple(pins[name] for name in names)

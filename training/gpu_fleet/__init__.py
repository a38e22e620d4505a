"""The trainer: exact, elastic, fast. Start it with `torchrun -m gpu_fleet start CONFIG.toml`.

`from gpu_fleet import Run` gives a user's own loop exact resume, stops for notices, and upload.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpu_fleet.integrations.run import Run

__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    """Load `Run`, and torch with it, on first use."""
    if name == "Run":
        from gpu_fleet.integrations.run import Run  # noqa: PLC0415 - see above

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

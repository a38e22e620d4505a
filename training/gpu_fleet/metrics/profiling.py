"""A trace of chosen steps, for chrome://tracing or https://ui.perfetto.dev."""

import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Self, cast

import torch
from torch.cuda import nvtx
from torch.profiler import ProfilerActivity, profile

from gpu_fleet.core.errors import ConfigError

UNMARKED = nullcontext()
log = logging.getLogger(__name__)


def marked(name: str) -> AbstractContextManager[None]:
    """Return a named range for Nsight Systems (https://nvidia.github.io/NVTX/); no effect without a GPU."""
    # not is_available: it asks the driver each time, for 10 us
    here = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch has no hints here
    return cast("AbstractContextManager[None]", nvtx.range(name)) if here else UNMARKED


class StepTrace:
    """A context around the run that traces it from the start of step A to the end of step B."""

    def __init__(self, steps: tuple[int, ...], directory: Path, active: bool = True) -> None:
        """Check the steps (A, B), from 1, or empty; raises ConfigError. Trace only if `active`."""
        if steps and (len(steps) != 2 or not 1 <= steps[0] <= steps[1]):  # noqa: PLR2004 - a first and a last
            raise ConfigError(
                f"metrics.profile_steps = {list(steps)}: write the first and the last step, [A, B], "
                "with 1 <= A <= B"
            )
        self._steps, self._directory = steps if active else (), directory
        self._profile: profile | None = None

    @property
    def file(self) -> Path:
        first, last = self._steps
        return self._directory / f"trace-steps-{first}-{last}.json"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._profile is not None:  # the run ended inside the range: keep the part that there is
            self._finish()

    def before_step(self, step: int) -> None:
        """Start the trace if `step`, which is about to begin, is in the range."""
        if not self._steps or self._profile is not None or not self._steps[0] <= step <= self._steps[1]:
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=True)
        self._profile.start()

    def after_step(self, step: int) -> None:
        """Write the trace if `step`, which is done, is the last of the range."""
        if self._profile is not None and step >= self._steps[1]:
            self._finish()

    def _finish(self) -> None:
        assert self._profile is not None
        self._profile.stop()
        self._profile.export_chrome_trace(str(self.file))
        self._profile = None
        log.info("event=trace steps=%d-%d file=%s", *self._steps, self.file)

"""Coordination of the ranks that write parts of one checkpoint: short messages in the rendezvous store.

They use no collectives, in which the others would hang if one rank abandons an upload.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._C._distributed_c10d import Store

from gpu_fleet.core.errors import CheckpointError, StoreError

LOOK_EVERY_S = 0.05
PASSING = "passing"  # kind of an error after which a later try may succeed


@dataclass(frozen=True)
class Team:
    """This rank as a member of the ranks that write a checkpoint together."""

    rank: int
    size: int
    store: Store
    patience_s: float  # longest wait for a message of a rank
    sleep: Callable[[float], None] = time.sleep

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def post(self, step: int, what: str, value: Any = None, error: CheckpointError | None = None) -> None:
        """Report the result of `what` for checkpoint `step` to the other ranks; `value` must fit JSON."""
        kind = PASSING if isinstance(error, StoreError) and error.passing else ""
        said = {"value": value, "error": "" if error is None else str(error), "kind": kind}
        self.store.set(_key(step, what, self.rank), json.dumps(said))

    def hear(self, step: int, what: str, rank: int, poll: Callable[[], None] = lambda: None) -> Any:
        """Return a rank's report; raises its error, that of `poll`, or CheckpointError after `patience_s`."""
        key, waited_s = _key(step, what, rank), 0.0
        while not self.store.check([key]):
            poll()
            if waited_s > self.patience_s:
                raise CheckpointError(
                    f"rank {rank}: reported nothing about {what} for {waited_s:.0f} s, at step {step}"
                )
            self.sleep(LOOK_EVERY_S)
            waited_s += LOOK_EVERY_S
        said = json.loads(self.store.get(key))
        if said["error"]:
            text = said["error"] if said["error"].startswith("rank ") else f"rank {rank}: {said['error']}"
            raise StoreError(text, passing=True) if said["kind"] == PASSING else CheckpointError(text)
        return said["value"]

    def gather(self, step: int, what: str, poll: Callable[[], None] = lambda: None) -> list[Any]:
        """Return the values of all ranks, in rank order; raises CheckpointError as `hear` does."""
        return [self.hear(step, what, rank, poll) for rank in range(self.size)]


def _key(step: int, what: str, rank: int) -> str:
    return f"gpu-fleet/checkpoint/{step}/{what}/{rank}"

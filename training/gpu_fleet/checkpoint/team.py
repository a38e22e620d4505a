"""How the ranks that write parts of one checkpoint come to one end: by short words in the rendezvous store.

Not by collectives: uploads run beside the training and beside each other, each at its own pace, and one that
is given up on one rank must not leave the others in a collective that never ends.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gpu_fleet.errors import CheckpointError, StoreError

LOOK_EVERY_S = 0.05
PASSING = "passing"  # of an error: the same may well go right in a minute


@dataclass(frozen=True)
class Team:
    """This rank among those that write a checkpoint."""

    rank: int
    size: int
    store: Store
    patience_s: float  # with a rank that says nothing
    sleep: Callable[[float], None] = time.sleep

    @property
    def leads(self) -> bool:
        """Whether this rank puts the parts together."""
        return self.rank == 0

    def post(self, step: int, what: str, value: Any = None, error: CheckpointError | None = None) -> None:
        """Reports to the others how `what` of checkpoint `step` went here; `value` as JSON."""
        kind = PASSING if isinstance(error, StoreError) and error.passing else ""
        said = {"value": value, "error": "" if error is None else str(error), "kind": kind}
        self.store.set(_key(step, what, self.rank), json.dumps(said))

    def hear(self, step: int, what: str, rank: int, look: Callable[[], None] = lambda: None) -> Any:
        """What rank `rank` has to say about it.

        `look` is called again and again meanwhile, and ends the wait by raising. Raises CheckpointError with
        that rank's error, or where it says nothing for `patience_s`.
        """
        key, waited_s = _key(step, what, rank), 0.0
        while not self.store.check([key]):
            look()
            if waited_s > self.patience_s:
                raise CheckpointError(
                    f"rank {rank}: said nothing of {what} for {waited_s:.0f} s, at step {step}"
                )
            self.sleep(LOOK_EVERY_S)
            waited_s += LOOK_EVERY_S
        said = json.loads(self.store.get(key))
        if said["error"]:
            text = said["error"] if said["error"].startswith("rank ") else f"rank {rank}: {said['error']}"
            raise StoreError(text, passing=True) if said["kind"] == PASSING else CheckpointError(text)
        return said["value"]

    def gather(self, step: int, what: str, look: Callable[[], None] = lambda: None) -> list[Any]:
        """What every rank has to say about it, in rank order; raises CheckpointError as `hear` does."""
        return [self.hear(step, what, rank, look) for rank in range(self.size)]


def _key(step: int, what: str, rank: int) -> str:
    return f"gpu-fleet/checkpoint/{step}/{what}/{rank}"


def of_world(rank: int, size: int, patience_s: float) -> Team:
    """Through the store that the process group has met by."""
    store = dist.distributed_c10d._get_default_store()
    if size > 1:  # a connection of its own: the training's may be waiting in a call
        store = store.clone()  # type: ignore[attr-defined]  # missing from torch's hints
    return Team(rank, size, store, patience_s)

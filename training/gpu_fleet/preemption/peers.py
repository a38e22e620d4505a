"""Search for the rank that delays the others: each rank reports in the rendezvous store while it trains.

When one rank hangs, all wait, and the first at its time limit is seldom the one at fault. A rank that no
longer posts is stopped or gone. If all post, they wait for the one with the fewest steps and collectives.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gpu_fleet.core.world import store_of_world

ANSWER_S = 5.0  # longest wait for the store, which may be in the process that hangs
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Post:
    """Report of one rank about itself."""

    step: int  # steps done
    collectives: int  # begun since the start
    place: str  # line of code where its training thread is
    at_s: float  # seconds of the epoch


@dataclass
class Peers:
    """Posts of this rank and of the others. One thread calls `exchange` repeatedly."""

    rank: int
    size: int
    store: Store  # a connection of its own
    every_s: float  # from one post to the next
    clock: Callable[[], float] = time.time
    _known: Mapping[int, Post] = field(default_factory=dict)
    _read_at: float = 0.0

    def exchange(self, step: int, collectives: int, place: str, *, read: bool) -> None:
        """Post, and with `read` also read the posts of all ranks; returns after ANSWER_S at most."""
        thread = threading.Thread(
            target=self._exchange, args=(Post(step, collectives, place, self.clock()), read), daemon=True
        )
        thread.start()
        thread.join(ANSWER_S)

    def _exchange(self, mine: Post, read: bool) -> None:
        try:
            self.store.set(_key(self.rank), json.dumps(asdict(mine)))
            if read:
                ranks = [rank for rank in range(self.size) if self.store.check([_key(rank)])]
                posts = self.store.multi_get([_key(rank) for rank in ranks])
                self._known = {
                    rank: Post(**json.loads(post)) for rank, post in zip(ranks, posts, strict=True)
                }
                self._read_at = self.clock()
        except (RuntimeError, ValueError, TypeError) as error:  # torch raises these if the store is gone
            log.debug("event=store-silent error=%r", str(error))

    def verdict(self) -> str:
        """Return the rank that delays this one, for users."""
        if self.clock() - self._read_at > 3 * self.every_s + ANSWER_S:
            return "unknown: the rendezvous store does not answer; rank 0 or its instance is stopped or gone"
        return held_up_by(self._known, self.size, self._read_at, 3 * self.every_s)


def held_up_by(posts: Mapping[int, Post], size: int, now_s: float, silence_s: float) -> str:
    """Return the rank that the others wait for, for users; one that is silent for `silence_s` is gone."""
    if missing := sorted(set(range(size)) - posts.keys()):
        return f"rank {missing[0]}: has never posted"
    rank, oldest = min(posts.items(), key=lambda item: item[1].at_s)
    if now_s - oldest.at_s > silence_s:
        silent_s = now_s - oldest.at_s
        return f"rank {rank}: stopped or gone, silent for {silent_s:.0f} s after step {oldest.step}"
    rank, last = min(posts.items(), key=lambda item: (item[1].step, item[1].collectives, item[0]))
    if all((post.step, post.collectives) == (last.step, last.collectives) for post in posts.values()):
        return f"no rank alone: all are after step {last.step} at the same collective"
    return f"rank {rank}: behind the others, after step {last.step} at {last.place}"


def _key(rank: int) -> str:
    return f"gpu-fleet/beat/{rank}"


def of_world(rank: int, size: int, every_s: float) -> Peers | None:
    """Return the peers of this rank; None if there are no others."""
    return Peers(rank, size, store_of_world(), every_s) if size > 1 else None


def collectives_begun() -> int:
    """Return the number of collectives that this rank has begun; 0 without a process group."""
    group = dist.group.WORLD
    return int(group._get_sequence_number_for_group()) if group is not None else 0  # type: ignore[attr-defined]  # missing from its hints

"""What a pass does with its decisions when the cloud refuses one of them."""

from dataclasses import dataclass, field
from typing import Any

from image.capacity.model import QUEUED, Coming, MoverState
from image.capacity.mover import _Mover
from image.capacity.placement import Action, PlacementDecision
from image.reaper.errors import CloudError
from tests.capacity.cloud_of_groups import LABELS, NO_ROOM, START, policy

A, B = LABELS
MOVED, OTHER = "coming-1", "coming-2"


@dataclass
class Groups:
    """Scaling groups of a cloud that throttles some calls."""

    refused: tuple[str, ...]
    calls: list[str] = field(default_factory=list)

    def start(self, group: str, number: int) -> str:
        return self._call(f"start {number} in {group}")

    def withdraw(self, group: str, number: int) -> None:
        self._call(f"withdraw {number} from {group}")

    def _call(self, text: str) -> str:
        if text in self.refused:
            raise CloudError("set_desired_capacity: throttled", "RequestLimitExceeded")
        self.calls.append(text)
        return ""


def carried_out(*refused: str) -> tuple[list[str], MoverState]:
    """What becomes of an instance that is moved from the one zone to the other."""
    groups, nothing = Groups(refused), _nothing()
    state = MoverState(coming=(Coming(MOVED, "train", QUEUED, START, group=B, since=START, goal=1),))
    decisions = [
        PlacementDecision(Action.WITHDRAW, "train", NO_ROOM, group=A, coming=(MOVED,), desired=1),
        PlacementDecision(Action.START, "train", "for the queue", group=B, coming=(MOVED,), desired=0),
        PlacementDecision(Action.START, "other", "for the queue", group="c", coming=(OTHER,), desired=0),
    ]
    mover = _Mover(nothing, nothing, groups, policy(), lambda: START)  # type: ignore[arg-type] # a part of them
    return groups.calls, mover._carry_out(state, decisions)


def _nothing() -> Any:
    return None


def test_an_instance_moves_once_the_group_without_room_wants_it_no_more():
    calls, state = carried_out()

    assert calls == [f"withdraw 1 from {A}", f"start 1 in {B}", "start 1 in c"]
    assert state.coming[0].started


def test_where_a_group_could_not_be_lowered_its_pool_wants_no_more_elsewhere():
    """Both groups together would want more than the pool may have."""
    calls, state = carried_out(f"withdraw 1 from {A}")

    assert calls == ["start 1 in c"]
    assert state.coming == (Coming(MOVED, "train", QUEUED, START),)

"""Telling people, before anything is taken away."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from image.reaper.calls import batches
from image.reaper.errors import CloudError
from image.reaper.model import Decision
from image.reaper.times import format_time

MACHINES_PER_MESSAGE = 500  # a line each, of less than 400 bytes
TELL_AGAIN_AFTER = timedelta(hours=24)
HOW_TO_KEEP = (
    'On the machine: gpu-fleet keep 8h --reason "..." keeps it (14 days at most); using it does too.'
)


class Channel(Protocol):
    """How people are told on one cloud."""

    def tell(self, subject: str, message: str) -> None:
        """Tell one message; raises CloudError when nobody heard it."""


class Notifier:
    """Tells owners and operators.

    Args:
        channel: of the stack's cloud.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def tell(self, subject: str, message: str) -> None:
        """Tell one message; raises CloudError when nobody heard it."""
        self._channel.tell(subject, message)

    def announce(self, stack: str, decisions: Iterable[Decision]) -> tuple[list[Decision], list[str]]:
        """Tell each owner which of their machines are about to go.

        Returns:
            The decisions whose owner was told, and what went wrong with the others.
        """
        told: list[Decision] = []
        problems: list[str] = []
        messages = [
            (owner, part)
            for owner, own in _by_owner(decisions).items()
            for part in batches(own, MACHINES_PER_MESSAGE)
        ]
        for owner, part in messages:
            try:
                self.tell(
                    f"{stack}: {len(part)} idle GPU machine(s) of {owner} will go", _notice(owner, part)
                )
            except CloudError as error:
                problems.append(f"owner {owner} not told: {error}")
            else:
                told += part
        return told, problems


def due_alerts(
    decisions: Iterable[Decision], told: dict[str, datetime], now: datetime
) -> tuple[list[Decision], dict[str, datetime]]:
    """The alerts people have not been told of for a day, and what to remember once they are told.

    Args:
        decisions: of this sweep.
        told: subject -> when it was last told.
        now: the time of this sweep.
    """
    alerts = {f"{one.instance.id} {one.verdict}": one for one in decisions if one.alert}
    due = {key: one for key, one in alerts.items() if key not in told or now - told[key] >= TELL_AGAIN_AFTER}
    # Also what is well again: one that is unknown every other sweep would be told every other sweep.
    remembered = {key: at for key, at in told.items() if now - at < TELL_AGAIN_AFTER}
    remembered |= dict.fromkeys(due, now)
    return list(due.values()), remembered


def alert_text(decisions: Sequence[Decision]) -> str:
    """One line for each machine that somebody should look at."""
    return "\n".join(_line(one) for one in decisions)


def _by_owner(decisions: Iterable[Decision]) -> dict[str, list[Decision]]:
    owners: dict[str, list[Decision]] = defaultdict(list)
    for decision in decisions:
        owners[decision.instance.owner or "nobody"].append(decision)
    return dict(sorted(owners.items()))


def _notice(owner: str, decisions: Sequence[Decision]) -> str:
    lines = [f"Machines of {owner} that nobody uses:", ""]
    lines += [_line(one) for one in decisions]
    return "\n".join([*lines, "", HOW_TO_KEEP])


def _line(decision: Decision) -> str:
    instance = decision.instance
    goes = f", goes after {format_time(decision.reap_after)}" if decision.reap_after else ""
    price = f", {decision.hourly_price} an hour" if decision.hourly_price is not None else ""
    return f"- {instance.id} ({instance.type}, pool {instance.pool}{price}{goes}): {decision.reason}"

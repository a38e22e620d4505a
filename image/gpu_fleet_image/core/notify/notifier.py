"""Notices before an instance is terminated: to its users, its owner, chat rooms, and the operators."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Annotated, Protocol

from gpu_fleet_image.core import document, keys
from gpu_fleet_image.core.calls import batches
from gpu_fleet_image.core.document import TEXT
from gpu_fleet_image.core.model import Decision, Instance, Tie, User
from gpu_fleet_image.core.notify import webhooks
from gpu_fleet_image.core.notify.webhooks import Webhook
from gpu_fleet_image.core.reaper_errors import CloudError, DeadlineError
from gpu_fleet_image.core.store import Store
from gpu_fleet_image.core.times import format_time

# A line about an instance has up to 1,000 bytes; SNS takes 262,144, DirectMail 80,000, a room 15,000.
_MOST_FOR_OPERATORS, _MOST_FOR_A_USER = 200, 75
_MOST_FOR_A_ROOM, _MOST_NAMED_IN_A_ROOM = 12, 100  # with a line; or at least with the id
MOST_USERS = 8  # of an instance, as its agent publishes them (agent/users.py)
NOTIFY_AGAIN_AFTER = timedelta(hours=24)
_NO_ADDRESS = "has no address in notify.users"
OPERATORS = "the operators"
_DEEDS = {Tie.LAUNCHED: "launched a job", Tie.LOGGED_IN: "logged in", Tie.RUNS: "owned processes"}
REFUSED = (CloudError, DeadlineError)


class Channel(Protocol):
    """Channel that notifies operators on one cloud, and its other subscribers."""

    def send(self, subject: str, message: str, users: Sequence[str] = ()) -> None:
        """Send one message, which is for some users too; raises CloudError if it was not accepted."""

    def deaf(self, addresses: Sequence[str]) -> Mapping[str, str]:
        """Return those of the addresses that do not receive the channel, with the reason.

        Raises CloudError.
        """


@dataclass(frozen=True)
class Roster:
    """Addresses of users and operators, from the stack.

    Attributes:
        users: login name, or a pool's owner -> e-mail address.
        operators: e-mail addresses that receive every notice.
        sender: sender address of mail; None if users subscribe to the channel.
        webhooks: of rooms that receive every notice.
    """

    users: dict[str, Annotated[str, TEXT]]
    operators: tuple[Annotated[str, TEXT], ...]
    sender: Annotated[str, TEXT] | None
    webhooks: tuple[Webhook, ...]


def roster_in(store: Store) -> Roster:
    """Return the roster as the stack last wrote it; raises CloudError, also if there is none."""
    stored = store.newest(keys.ROSTER)
    if stored is None:
        raise CloudError(f"{keys.ROSTER} is not among the stack's records; run pulumi up", "NoSuchKey")
    problems: list[str] = []
    roster = document.read(Roster, stored.content, "", problems)
    if roster is None:
        raise CloudError(f"{keys.ROSTER} cannot be read: {'; '.join(problems)}", "Malformed")
    return roster


@dataclass(frozen=True)
class Reach:
    """Ways of one cloud to reach users besides its channel.

    Attributes:
        roster: returns the stack's roster; raises CloudError.
        users: returns the users seen on an instance, one word each (``User.of``); raises CloudError.
        mail: sends (sender, address, subject, message); raises CloudError.
        secret: name of a secret -> its value; raises CloudError.
        post: writes (webhook -> its address, subject, message); returns why a room did not accept it.
    """

    roster: Callable[[], Roster]
    users: Callable[[Instance], Sequence[str]]
    mail: Callable[[str, str, str, str], None]
    secret: Callable[[str], str]
    post: Callable[[Mapping[Webhook, str], str, str], Mapping[Webhook, str]] = webhooks.post


@dataclass
class Announced:
    """Results of a round of notices.

    Attributes:
        notified: decisions whose instance has a notified user.
        problems: why nobody was notified of the others, for users.
        unreached: user, or room -> why it was not reached.
        users: instance -> login names of users seen on it.
    """

    notified: list[Decision] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unreached: dict[str, str] = field(default_factory=dict)
    users: dict[str, tuple[str, ...]] = field(default_factory=dict)


class Notifier:
    """Sender of notices to users, owners and operators.

    Args:
        reach: ways to reach users; None if the stack has none.
    """

    def __init__(self, channel: Channel, reach: Reach | None = None) -> None:
        self._channel = channel
        self._reach = reach

    def send(self, subject: str, message: str) -> None:
        """Send one message to the operators; raises CloudError if nobody received it."""
        self._channel.send(subject, message)

    def seen_on(self, instance: Instance) -> tuple[str, ...]:
        """Return the login names of the users seen on an instance, from its agent; raises CloudError."""
        return tuple(user.name for user in users_of(self._reach, instance))

    def announce(self, stack: str, decisions: Iterable[Decision]) -> Announced:
        """Notify the instances' users and owners that these are about to be terminated.

        Each user gets one mail, each room one message, the operators one for each owner. An instance's
        users count as notified when one of them was reached, or a room, or an operator.
        """
        wanted = list(decisions)
        roster = Roster({}, (), None, ())
        if self._reach is not None and wanted:
            try:
                roster = self._reach.roster()
            except REFUSED as error:
                return Announced(problems=[f"nobody notified: {error}"])
        return _Round(stack, self._channel, self._reach, roster, wanted).announce()


def users_of(reach: Reach | None, instance: Instance) -> tuple[User, ...]:
    """Return the users seen on an instance. The list is unverified: its root user may have written it."""
    words = reach.users(instance) if reach is not None else ()
    return tuple(user for word in words[:MOST_USERS] if (user := User.of(word)))


class _Round:
    """The notices of one sweep: the recipients of each instance, and those that were reached."""

    def __init__(
        self,
        stack: str,
        channel: Channel,
        reach: Reach | None,
        roster: Roster,
        decisions: Sequence[Decision],
    ) -> None:
        self._stack = stack
        self._channel = channel
        self._reach = reach
        self._roster = roster
        self._decisions = decisions
        self._unreached: dict[str, str] = {}
        self._notified = set[str]()
        self._users = {decision.instance.id: self._users_of(decision.instance) for decision in decisions}

    def announce(self) -> Announced:
        """Notify users first, so that the operators read which of them were not reached."""
        theirs_by_user: dict[str, list[Decision]] = defaultdict(list)
        owners: dict[str, list[Decision]] = defaultdict(list)
        for decision in self._decisions:
            owners[decision.instance.owner or "nobody"].append(decision)
            for name in self._recipients_of(decision.instance):
                theirs_by_user[name].append(decision)
        if self._reach is not None and self._decisions:
            for name, theirs in sorted(theirs_by_user.items()):
                self._mail(self._reach, name, theirs)
            self._write_to_rooms(self._reach)
        problems = [
            problem
            for owner, theirs in sorted(owners.items())
            for part in batches(theirs, _MOST_FOR_OPERATORS)
            if (problem := self._notify_operators(owner, part))
        ]
        notified = [decision for decision in self._decisions if decision.instance.id in self._notified]
        seen = {key: tuple(user.name for user in users) for key, users in self._users.items()}
        return Announced(notified, problems, self._unreached, seen)

    def _users_of(self, instance: Instance) -> tuple[User, ...]:
        try:
            return users_of(self._reach, instance)
        except REFUSED as error:
            self._unreached[f"the users of {instance.id}"] = str(error)
            return ()

    def _recipients_of(self, instance: Instance) -> list[str]:
        """Return the users seen on the instance, and its owner if the roster has that name."""
        owner = [instance.owner] if instance.owner in self._roster.users else []
        return list(dict.fromkeys([*(user.name for user in self._users[instance.id]), *owner]))

    @cached_property
    def _deaf(self) -> Mapping[str, str]:
        """Expected subscribers that do not receive the channel: address -> why."""
        roster = self._roster
        listening = roster.operators if roster.sender else [*roster.operators, *roster.users.values()]
        try:
            return self._channel.deaf(listening)
        except REFUSED as error:
            return dict.fromkeys(listening, str(error))

    def _mail(self, reach: Reach, name: str, decisions: Sequence[Decision]) -> None:
        """Send one user's mail, if the stack sends mail; subscribers of the channel are notified by it."""
        address = self._roster.users.get(name)
        if address is None:
            self._unreached[name] = _NO_ADDRESS
        elif self._roster.sender is None:
            if address in self._deaf:
                self._unreached[name] = self._deaf[address]
        else:
            subject = self._subject(len(decisions), "you use or own")
            try:
                for part in batches(decisions, _MOST_FOR_A_USER):
                    reach.mail(self._roster.sender, address, subject, self._message(part))
                    self._notified |= {decision.instance.id for decision in part}
            except REFUSED as error:
                self._unreached[name] = str(error)

    def _write_to_rooms(self, reach: Reach) -> None:
        """Post one message for the whole sweep to each room.

        DingTalk blocks a robot for 10 minutes at its 21st message in a minute.

        https://open.dingtalk.com/document/orgapp/custom-robots-send-group-messages
        """
        addresses, refused = dict[Webhook, str](), dict[Webhook, str]()
        for room in self._roster.webhooks:
            try:
                addresses[room] = reach.secret(room.secret)
            except REFUSED as error:
                refused[room] = str(error)
        ids = [decision.instance.id for decision in self._decisions]
        named = ids[:_MOST_NAMED_IN_A_ROOM]
        more = "".join(f", {name}" for name in named[_MOST_FOR_A_ROOM:])
        message = self._message(self._decisions[:_MOST_FOR_A_ROOM]) + (f"\n- and {more[2:]}" if more else "")
        if addresses:
            refused |= reach.post(addresses, self._subject(len(named), ""), message)
        self._unreached |= {f"{room.kind} webhook {room.secret!r}": why for room, why in refused.items()}
        if len(refused) < len(self._roster.webhooks):
            self._notified |= set(named)

    def _notify_operators(self, owner: str, decisions: Sequence[Decision]) -> str:
        """Notify of one owner's instances, also subscribed users.

        Return why some instances have no reader.
        """
        recipients = list(
            dict.fromkeys(name for decision in decisions for name in self._recipients_of(decision.instance))
        )
        listening = [] if self._roster.sender else [name for name in recipients if name in self._roster.users]
        unreached = [f"- {name}: {self._unreached[name]}" for name in recipients if name in self._unreached]
        warning = ["", "Could not be notified:", *unreached] if unreached else []
        message = "\n".join([self._message(decisions), *warning])
        try:
            self._channel.send(self._subject(len(decisions), f"of {owner}"), message, listening)
        except REFUSED as error:
            why = str(error)
            self._unreached |= dict.fromkeys([*listening, OPERATORS], why)
        else:
            why = "nobody is subscribed"
            self._note_notified(decisions, listening)
        missed = [
            decision.instance.id for decision in decisions if decision.instance.id not in self._notified
        ]
        return f"owner {owner} not notified of {', '.join(missed)}: {why}" if missed else ""

    def _note_notified(self, decisions: Sequence[Decision], listening: Sequence[str]) -> None:
        """Record who received a message of the channel, for which instance."""
        reached = {name for name in listening if name not in self._unreached}
        operators = self._reach is None or any(
            operator not in self._deaf for operator in self._roster.operators
        )
        if self._roster.operators and not operators:
            self._unreached[OPERATORS] = "none of them confirmed the topic's mail"
        self._notified |= {
            decision.instance.id
            for decision in decisions
            if operators or reached.intersection(self._recipients_of(decision.instance))
        }

    def _subject(self, count: int, whose: str) -> str:
        which = f" {whose}" if whose else ""
        return f"{self._stack}: {count} idle GPU instance(s){which} will be stopped or terminated"

    def _message(self, decisions: Sequence[Decision]) -> str:
        """Return the two commands, which work from anywhere, and a line for each instance."""
        where = f"--instance {decisions[0].instance.id} --stack {self._stack}"
        others = ", each by its own id" if len(decisions) > 1 else ""
        return "\n".join(
            [
                f"To keep an instance, 14 days at most{others}; using it keeps it too:",
                f'  gpu-fleet keep 8h --reason "..." {where}',
                "To keep it no longer:",
                f"  gpu-fleet release {where}",
                "",
                *(f"{_line(decision)}{self._seen(decision.instance)}" for decision in decisions),
            ]
        )

    def _seen(self, instance: Instance) -> str:
        owner = (
            "".join(character if character.isprintable() else "?" for character in instance.owner) or "nobody"
        )
        seen = [
            f"{user.name} {' and '.join(_DEEDS[tie] for tie in user.ties)}"
            for user in self._users[instance.id]
        ]
        return f"; owner: {owner}" + (f"; seen: {', '.join(seen)}" if seen else "")


def due_alerts(
    decisions: Iterable[Decision], notified_at: dict[str, datetime], now: datetime
) -> tuple[list[Decision], dict[str, datetime]]:
    """Return the alerts whose users were not notified for a day, and the times to remember once they are.

    Args:
        notified_at: subject -> when users were last notified of it.
    """
    alerts = {
        f"{decision.instance.id} {decision.verdict}": decision for decision in decisions if decision.alert
    }
    due = {
        key: decision
        for key, decision in alerts.items()
        if key not in notified_at or now - notified_at[key] >= NOTIFY_AGAIN_AFTER
    }
    # Alerts that are over are remembered too: an instance that is unknown in every other sweep would
    # otherwise be reported in every other sweep.
    remembered = {key: at for key, at in notified_at.items() if now - at < NOTIFY_AGAIN_AFTER}
    remembered |= dict.fromkeys(due, now)
    return list(due.values()), remembered


def alert_text(decisions: Sequence[Decision]) -> str:
    """Return one line for each instance that a user should look at."""
    return "\n".join(_line(decision) for decision in decisions)


def flooding_text(caller: str, names: int) -> str:
    """Return one line about a caller that writes more names into the records than agents do.

    ``*`` for all.
    """
    who = "all instances together" if caller == "*" else caller
    return (
        f"- {who}: wrote more names below reaper/handshake/ in the records than agents do ({names} or more). "
        "The rest is not read: an instance without a reply is not terminated. Check what runs there"
    )


def _line(decision: Decision) -> str:
    instance = decision.instance
    after = decision.reap_after
    ends = f", will be stopped or terminated after {format_time(after)}" if after else ""
    price = f", {decision.hourly_price} an hour" if decision.hourly_price is not None else ""
    return f"- {instance.id} ({instance.type}, pool {instance.pool}{price}{ends}): {decision.reason}"

"""Users of this instance, reported to the sweep, which notifies them before it terminates the instance."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpu_fleet_image.core.files import read_text, replace_text
from gpu_fleet_image.core.model import LOGIN_NAME, Tie, User
from gpu_fleet_image.core.reaper_errors import CloudError

MOST_USERS = 8
LONGEST = 240  # characters of all words together; a tag's value has 256 (EC2, API Tag)
NOBODY = frozenset({"root", "nobody"})  # of containers and services; no user has this name
TRY_AGAIN_AFTER_S = 600.0
SAY_AGAIN_AFTER_S = 300.0  # with many users in turn, each look has a new name; a sweep runs every ten minutes

LOG = logging.getLogger(__name__)


class Users:
    """Record of users' actions since boot, reported once for each new name or action.

    Args:
        say: reports to the sweep, newest first; raises ``CloudError``.
        file: memory across restarts of the agent; on tmpfs, so never of an earlier boot.
        real_s: returns real seconds, monotonic.
    """

    def __init__(
        self, say: Callable[[Sequence[User]], None], file: Path, real_s: Callable[[], float]
    ) -> None:
        self._say = say
        self._file = file
        self._real_s = real_s
        self._known = _read(file)
        self._said = self._known
        self._next_s = real_s()

    def saw(self, seen: Iterable[tuple[str, Tie]]) -> None:
        """Record users and their actions; a report that fails is logged, and repeated later."""
        self._known = _fitting(_with(self._known, seen))
        if self._known == self._said or self._real_s() < self._next_s:
            return
        try:
            self._say(self._known)
            replace_text(self._file, "\n".join(str(user) for user in self._known))
        except (CloudError, OSError) as error:
            self._next_s = self._real_s() + TRY_AGAIN_AFTER_S
            LOG.warning("event=users-not-said reason=%r", str(error))
            return
        self._said = self._known
        self._next_s = self._real_s() + SAY_AGAIN_AFTER_S


def _with(known: Sequence[User], seen: Iterable[tuple[str, Tie]]) -> list[User]:
    """Return all users, new ones first; a known user keeps the place and gains new ties."""
    before = {user.name: set(user.ties) for user in known}
    new: dict[str, set[Tie]] = {}
    for name, tie in seen:
        if name not in NOBODY and LOGIN_NAME.fullmatch(name) is not None:
            (before if name in before else new).setdefault(name, set()).add(tie)
    return [User(name, tuple(sorted(ties))) for name, ties in {**new, **before}.items()]


def _fitting(users: Sequence[User]) -> list[User]:
    kept = list[User]()
    for user in users[:MOST_USERS]:
        if len(" ".join(str(each) for each in [*kept, user])) > LONGEST:
            break
        kept.append(user)
    return kept


def _read(file: Path) -> list[User]:
    try:
        return [user for word in read_text(file).split() if (user := User.of(word))]
    except (OSError, ValueError):
        return []

"""What the accounts of ``access.people`` must agree on."""

import base64
import binascii
import struct
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator

from stacks.catalog import Cloud
from stacks.errors import Problem
from stacks.settings.people import team_number
from stacks.settings.schema import Stack

# Accounts and groups of Ubuntu 24.04, of its packages on our image, of the clouds' own agents, and ours.
TAKEN_NAMES = frozenset(
    word
    for line in (
        "root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats",
        "nobody systemd-network systemd-timesync systemd-resolve messagebus syslog _apt tss uuidd sshd",
        "pollinate landscape polkitd fwupd-refresh tcpdump dnsmasq usbmux lxd chrony _chrony ubuntu",
        "debian admin ec2-user ec2-instance-connect ssm-user ecs-user ecs-assist-user ecs-assist nvidia-",
        "persistenced stunnel4 prometheus munge slurm sudo adm tty disk kmem dialout fax voice cdrom",
        "floppy tape audio dip operator src shadow utmp video sasl plugdev staff users nogroup crontab",
        "render kvm netdev input sgx docker wheel",
    )
    for word in line.split()
)
OWN_PREFIX = "gpu-fleet"
SHORTEST_RSA_BITS = 2048  # NIST SP 800-57 part 1, "112 bits of security"


def _names(stack: Stack) -> Iterator[Problem]:
    for name in stack.access.people:
        if name in TAKEN_NAMES or name.startswith((OWN_PREFIX, "systemd-")):
            yield Problem("access.people", name, "is an account or group of the system; any other name")


def _one_number_each(stack: Stack) -> Iterator[Problem]:
    people = stack.access.people
    for number, names in _shared((person.uid, name) for name, person in people.items()):
        allowed = f"is the number of {' and '.join(names)}: files of one would be the other's; each its own"
        yield Problem(f"access.people.{names[-1]}.uid", number, allowed)


def _teams(stack: Stack) -> Iterator[Problem]:
    people = stack.access.people
    teams = sorted({person.team for person in people.values() if person.team is not None})
    for name, person in people.items():
        team = person.team
        if team is not None and (team in people or team in TAKEN_NAMES or team.startswith(OWN_PREFIX)):
            allowed = "is the name of a user, or of a group of the system; any other name"
            yield Problem(f"access.people.{name}.team", team, allowed)
    for _, names in _shared((team_number(team), team) for team in teams):
        allowed = f"gets the same group number as {names[0]!r}, which follows from the name; choose another"
        yield Problem("access.people", names[-1], allowed)


def _keys(stack: Stack) -> Iterator[Problem]:
    people = stack.access.people
    for name, person in people.items():
        for index, key in enumerate(person.keys):
            if problem := _problem_of(key):
                yield Problem(f"access.people.{name}.keys[{index}]", key, problem)
    bodies = ((key.split()[1], name) for name, person in people.items() for key in person.keys)
    for body, names in _shared(bodies):
        allowed = f"is a key of {' and '.join(names)}; each key once"
        yield Problem(f"access.people.{names[-1]}.keys", f"{body!s:.24}...", allowed)


def _problem_of(key: str) -> str:
    """What is wrong with a public key whose line looks like one; empty for nothing (RFC 4253, 6.6)."""
    kind, text = key.split()[:2]
    try:
        parts = list(_strings(base64.b64decode(text, validate=True)))
    except (binascii.Error, struct.error, ValueError):
        return "is cut off or mistyped: no public key"
    if not parts or parts[0] != kind.encode():
        return f"is no key of type {kind}"
    if kind == "ssh-rsa" and int.from_bytes(parts[-1], "big").bit_length() < SHORTEST_RSA_BITS:
        return f"is shorter than {SHORTEST_RSA_BITS} bits; ssh-keygen -t ed25519 makes a better one"
    return ""


def _strings(content: bytes) -> Iterator[bytes]:
    """The strings of an SSH message, each behind its length. Raises ValueError where it is cut off."""
    while content:
        (length,) = struct.unpack(">I", content[:4])
        if len(content) < 4 + length:
            raise ValueError
        yield content[4 : 4 + length]
        content = content[4 + length :]


def _way_in(stack: Stack) -> Iterator[Problem]:
    """Alibaba Cloud's sessions know no accounts: one comes in by SSH, or not at all."""
    if stack.cloud is not Cloud.ALICLOUD or not stack.access.people:
        return
    if not stack.access.ssh_from:
        allowed = "needs a network that users come from: on Alibaba Cloud accounts are reached by SSH alone"
        yield Problem("access.ssh_from", {}, allowed)
    for name, person in stack.access.people.items():
        if not person.keys:
            allowed = "needs a key: on Alibaba Cloud accounts are reached by SSH alone"
            yield Problem(f"access.people.{name}.keys", [], allowed)


def _managed(stack: Stack) -> Iterator[Problem]:
    if stack.access.people and not stack.image.managed:
        allowed = "needs instances that run our programs, which make the accounts; leave it out"
        yield Problem("access.people", sorted(stack.access.people), f"image.mode is none: {allowed}")


def _shared(pairs: Iterable[tuple[Hashable, str]]) -> Iterator[tuple[Hashable, list[str]]]:
    """What several have: the thing, and who."""
    owners: defaultdict[Hashable, list[str]] = defaultdict(list)
    for thing, name in pairs:
        owners[thing].append(name)
    return ((thing, names) for thing, names in owners.items() if len(names) > 1)


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (
    *(_names, _one_number_each, _teams, _keys, _way_in, _managed),
)

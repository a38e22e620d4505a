"""Rules for the accounts of ``access.people``."""

import base64
import binascii
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator

from gpu_fleet_stacks.catalog import Cloud
from gpu_fleet_stacks.core.errors import Problem
from gpu_fleet_stacks.settings.people import team_number
from gpu_fleet_stacks.settings.schema import LoginName, Stack

# Accounts and groups of Ubuntu 24.04, its packages on our image, the clouds' agents, and this project.
TAKEN_NAMES = frozenset(
    word
    for line in (
        "root daemon bin sys sync games man lp mail news uucp proxy www-data backup list irc gnats",
        "nobody systemd-network systemd-timesync systemd-resolve messagebus syslog _apt tss uuidd sshd",
        "pollinate landscape polkitd fwupd-refresh tcpdump dnsmasq usbmux lxd chrony _chrony ubuntu",
        "debian admin ec2-user ec2-instance-connect ssm-user ecs-user ecs-assist-user ecs-assist mysql",
        "nvidia-persistenced stunnel4 prometheus munge slurm sudo adm tty disk kmem dialout fax voice cdrom",
        "floppy tape audio dip operator src shadow utmp video sasl plugdev staff users nogroup crontab",
        "render kvm netdev input sgx docker wheel rdma ssl-cert avahi statd dhcpcd nvidia-dcgm",
    )
    for word in line.split()
)
OWN_PREFIX = "gpu-fleet"
_UUID = r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}"
# docs.aws.amazon.com/singlesignon/latest/IdentityStoreAPIReference/API_ListGroupMemberships.html;
# www.alibabacloud.com/help/en/ram/developer-reference/api-ims-2019-08-15-creategroup
GROUPS = {
    Cloud.AWS: (rf"([0-9a-f]{{10}}-)?{_UUID}", "must be a group's id: aws identitystore list-groups"),
    Cloud.ALICLOUD: (r"[A-Za-z0-9.-]{1,64}", "must be the name of a RAM user group"),
}
IDENTITY_CENTER = {
    "identity_store": (rf"d-[0-9a-f]{{10}}|{_UUID}", "an identity store's id, such as d-1234567890"),
    "region": (r"[a-z]{2}(-[a-z]+)+-[0-9]", "a region of AWS, such as us-east-1"),
    "role": (r"arn:aws(-us-gov)?:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]{1,512}", "a role's ARN"),
}
SHORTEST_RSA_BITS = 2048  # NIST SP 800-57 part 1, "112 bits of security"


def _names(stack: Stack) -> Iterator[Problem]:
    for name in stack.access.people:
        if _is_taken(name):
            yield Problem("access.people", name, "is an account or group of the system; any other name")


def _is_taken(name: str) -> bool:
    return name in TAKEN_NAMES or name.startswith((OWN_PREFIX, "systemd-"))


def _one_number_each(stack: Stack) -> Iterator[Problem]:
    people = stack.access.people
    for number, names in _shared((person.uid, name) for name, person in people.items()):
        allowed = f"is the number of {' and '.join(names)}: files of one would be the other's; each its own"
        yield Problem(f"access.people.{names[-1]}.uid", number, allowed)


def _teams(stack: Stack) -> Iterator[Problem]:
    people = stack.access.people
    named = stack.access.directory.teams if stack.access.directory is not None else {}
    teams = sorted({*named, *(person.team for person in people.values() if person.team is not None)})
    for group in named:
        if group in people or _is_taken(group):
            allowed = "is the name of a user, or of a group of the system; any other name"
            yield Problem("access.directory.teams", group, allowed)
    for name, person in people.items():
        team = person.team
        if team is not None and (team in people or _is_taken(team)):
            allowed = "is the name of a user, or of a group of the system; any other name"
            yield Problem(f"access.people.{name}.team", team, allowed)
    for _, names in _shared((team_number(team), team) for team in teams):
        allowed = f"gets the same group number as {names[0]!r}, which follows from the name; choose another"
        yield Problem("access.people", names[-1], allowed)


def _keys(stack: Stack) -> Iterator[Problem]:
    listed = {f"access.people.{name}.keys": person.keys for name, person in stack.access.people.items()}
    if stack.access.directory is not None:
        members = stack.access.directory.keys
        listed |= {f"access.directory.keys.{name}": keys for name, keys in members.items()}
    for place, keys in listed.items():
        for index, key in enumerate(keys):
            if problem := _problem_of(key):
                yield Problem(f"{place}[{index}]", key, problem)
    bodies = ((key.split()[1], place) for place, keys in listed.items() for key in keys)
    for body, places in _shared(bodies):
        names = [place.removesuffix(".keys").rpartition(".")[2] for place in places]
        allowed = f"is a key of {' and '.join(names)}; each key once"
        yield Problem(places[-1], f"{body!s:.24}...", allowed)


def _directory(stack: Stack) -> Iterator[Problem]:
    """Check that each group of the directory is named once, and that no user has keys in two places."""
    directory = stack.access.directory
    if directory is None:
        return
    pattern, allowed = GROUPS[stack.cloud]
    for team, each in directory.teams.items():
        if not re.fullmatch(pattern, each.group):
            yield Problem(f"access.directory.teams.{team}.group", each.group, allowed)
    for group, teams in _shared((each.group, team) for team, each in directory.teams.items()):
        allowed = f"is the group of {' and '.join(teams)}: a group is of one team alone"
        yield Problem("access.directory.teams", group, allowed)
    for name in sorted(directory.keys.keys() & stack.access.people.keys()):
        allowed = "has an account in access.people: put its keys there"
        yield Problem("access.directory.keys", name, allowed)


def _identity_center(stack: Stack) -> Iterator[Problem]:
    """Check the keys that only one cloud's directory has."""
    directory = stack.access.directory
    if directory is None:
        return
    given = {"identity_store": directory.identity_store, "region": directory.region, "role": directory.role}
    if stack.cloud is Cloud.ALICLOUD:
        login = None if directory.login is LoginName.USER_NAME else str(directory.login)
        for key, value in (given | {"login": login}).items():
            if value is not None:
                allowed = "is only for IAM Identity Center on AWS; leave it out"
                yield Problem(f"access.directory.{key}", value, allowed)
        return
    if directory.identity_store is None:
        said = IDENTITY_CENTER["identity_store"][1]
        yield Problem("access.directory.identity_store", None, f"required, and missing: {said}")
    for key, (shape, said) in IDENTITY_CENTER.items():
        text = given[key]
        if text is not None and not re.fullmatch(shape, text):
            yield Problem(f"access.directory.{key}", text, f"must be {said}")


def _problem_of(key: str) -> str:
    """Return what is wrong with a public key's line; empty for nothing (RFC 4253, 6.6)."""
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
    """Yield the strings of an SSH message, each after its length. Raises ValueError where it is cut off."""
    while content:
        (length,) = struct.unpack(">I", content[:4])
        if len(content) < 4 + length:
            raise ValueError
        yield content[4 : 4 + length]
        content = content[4 + length :]


def _way_in(stack: Stack) -> Iterator[Problem]:
    """Require SSH on Alibaba Cloud, whose sessions have no accounts."""
    if stack.cloud is not Cloud.ALICLOUD or not stack.access.accounts:
        return
    if not stack.access.ssh_from:
        allowed = "needs a network that users come from: on Alibaba Cloud accounts are reached by SSH alone"
        yield Problem("access.ssh_from", {}, allowed)
    for name, person in stack.access.people.items():
        if not person.keys:
            allowed = "needs a key: on Alibaba Cloud accounts are reached by SSH alone"
            yield Problem(f"access.people.{name}.keys", [], allowed)


def _managed(stack: Stack) -> Iterator[Problem]:
    if stack.access.accounts and not stack.image.managed:
        allowed = "needs instances that run our programs, which make the accounts; leave it out"
        yield Problem("access.people", sorted(stack.access.people), f"image.mode is none: {allowed}")


def _shared(pairs: Iterable[tuple[Hashable, str]]) -> Iterator[tuple[Hashable, list[str]]]:
    """Yield each value that several users share, with their names."""
    owners: defaultdict[Hashable, list[str]] = defaultdict(list)
    for thing, name in pairs:
        owners[thing].append(name)
    return ((thing, names) for thing, names in owners.items() if len(names) > 1)


RULES: tuple[Callable[[Stack], Iterator[Problem]], ...] = (
    *(_names, _one_number_each, _teams, _keys, _directory, _identity_center, _way_in, _managed),
)

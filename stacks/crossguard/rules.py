"""All rules, and the judge that holds resources to them. Pure; needs neither Pulumi nor a cloud."""

import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from stacks.crossguard import access_rules, encryption_rules, governance_rules
from stacks.crossguard.model import PolicyRule, Profile, Resource, Violation

RULES: tuple[PolicyRule, ...] = (*access_rules.RULES, *encryption_rules.RULES, *governance_rules.RULES)
PROFILES = Path(__file__).with_name("profiles.toml")


class ProfileError(Exception):
    """A profile file that names a rule or a profile that is not there."""


@cache
def profile_of(stack: str, path: Path = PROFILES) -> Profile:
    """What a stack is held to.

    Raises:
        ProfileError: naming the rule or profile that is not there, and those that are.
    """
    content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    profiles = content["profiles"]
    entry = content.get("stacks", {}).get(stack, {})
    name = entry.get("profile", "default")
    if name not in profiles:
        raise ProfileError(f"{path}: stacks.{stack}.profile = {name!r}: there are {', '.join(profiles)}")
    advisory = frozenset(entry.get("advisory", ()))
    known = {rule.name for rule in RULES}
    if strangers := sorted(advisory - known):
        raise ProfileError(
            f"{path}: stacks.{stack}.advisory names {strangers[0]!r}: there are {', '.join(sorted(known))}"
        )
    return Profile(tuple(profiles[name]["regions"]), advisory)


def violations(resources: Sequence[Resource], profile: Profile) -> Iterator[Violation]:
    """Every rule that the resources break, rule by rule."""
    for rule in RULES:
        mandatory = is_mandatory(rule, profile)
        for resource, finding in _findings(rule, resources, profile):
            yield Violation(rule, resource, finding, mandatory)


def is_mandatory(rule: PolicyRule, profile: Profile) -> bool:
    """Whether breaking the rule refuses the stack, or only warns."""
    return not rule.advisory and rule.name not in profile.advisory


def _findings(
    rule: PolicyRule, resources: Sequence[Resource], profile: Profile
) -> Iterator[tuple[Resource | None, str]]:
    if rule.each is not None:
        for resource in resources:
            for finding in rule.each(resource):
                yield resource, finding
    if rule.whole is not None:
        yield from rule.whole(resources, profile)

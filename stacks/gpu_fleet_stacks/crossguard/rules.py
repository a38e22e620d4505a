"""All rules, and the profile of each stack. Pure; needs neither Pulumi nor a cloud."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from gpu_fleet_stacks.crossguard import access_rules, encryption_rules, governance_rules
from gpu_fleet_stacks.crossguard.model import PolicyRule, Profile

RULES: tuple[PolicyRule, ...] = (*access_rules.RULES, *encryption_rules.RULES, *governance_rules.RULES)
PROFILES = Path(__file__).with_name("profiles.toml")


class ProfileError(Exception):
    """A profile file names a rule or a profile that does not exist."""


@cache
def profile_of(stack: str, path: Path = PROFILES) -> Profile:
    """Return a stack's profile. Raises ProfileError."""
    content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    profiles = content["profiles"]
    entry = content.get("stacks", {}).get(stack, {})
    name = entry.get("profile", "default")
    if name not in profiles:
        raise ProfileError(
            f"{path}: gpu_fleet_stacks.{stack}.profile = {name!r}: there are {', '.join(profiles)}"
        )
    advisory = frozenset(entry.get("advisory", ()))
    known = {rule.name for rule in RULES}
    if strangers := sorted(advisory - known):
        raise ProfileError(
            f"{path}: stacks.{stack}.advisory names {strangers[0]!r}: there are {', '.join(sorted(known))}"
        )
    return Profile(tuple(profiles[name]["regions"]), advisory)


def is_mandatory(rule: PolicyRule, profile: Profile) -> bool:
    """Return whether breaking the rule refuses the stack; otherwise it only warns."""
    return not rule.advisory and rule.name not in profile.advisory

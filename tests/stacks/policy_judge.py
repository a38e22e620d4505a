"""Check of resources by the rules of the policy pack, as the engine does: each alone, then all together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpu_fleet_stacks.crossguard.model import Finding, PolicyRule, Profile, Resource
from gpu_fleet_stacks.crossguard.rules import RULES, is_mandatory


@dataclass(frozen=True)
class Violation:
    """A broken rule.

    Attributes:
        resource: the resource at fault; None if a resource is missing.
        mandatory: the stack is refused.
    """

    rule: PolicyRule
    resource: Resource | None
    finding: Finding
    mandatory: bool

    def __str__(self) -> str:
        where = "the stack" if self.resource is None else f"{self.resource.type} {self.resource.name}"
        return f"{self.rule.name} ({self.rule.severity}): {where}: {self.finding}; {self.rule.remedy}"


def violations(resources: Sequence[Resource], profile: Profile) -> Iterator[Violation]:
    """Return every violation by the resources, rule by rule."""
    for rule in RULES:
        mandatory = is_mandatory(rule, profile)
        for resource, finding in _findings(rule, resources, profile):
            yield Violation(rule, resource, finding, mandatory)


def _findings(
    rule: PolicyRule, resources: Sequence[Resource], profile: Profile
) -> Iterator[tuple[Resource | None, str]]:
    if rule.each is not None:
        for resource in resources:
            for finding in rule.each(resource):
                yield resource, finding
    if rule.whole is not None:
        yield from rule.whole(resources, profile)

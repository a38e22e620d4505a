"""The CrossGuard pack: the rules in the form of the SDK.

The SDK is in an environment of its own (requirements.txt), which this environment's type checker does not
see.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pulumi_policy import (  # type: ignore[import-not-found]
    EnforcementLevel,
    PolicyPack,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    Severity,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.proxy import UnknownValueError  # type: ignore[import-not-found] # the same

from gpu_fleet_stacks.crossguard.model import UNKNOWN, PolicyRule, Profile, Resource
from gpu_fleet_stacks.crossguard.rules import RULES, is_mandatory, profile_of

STACK_VARIABLE = "PULUMI_STACK"


def policy(rule: PolicyRule, profile: Profile) -> object:
    """Return a rule in the form of CrossGuard."""
    common = {
        "name": rule.name,
        "description": rule.reason,
        "remediation_steps": rule.remedy,
        "severity": Severity(str(rule.severity)),
        "enforcement_level": EnforcementLevel.MANDATORY
        if is_mandatory(rule, profile)
        else EnforcementLevel.ADVISORY,
    }
    each, whole = rule.each, rule.whole
    if each is not None:

        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            for finding in each(Resource(args.resource_type, args.name, args.props)):
                report(f"{finding}; {rule.remedy}")

        return ResourceValidationPolicy(validate=validate, **common)

    def validate_stack(args: StackValidationArgs, report: ReportViolation) -> None:
        pairs = [
            (Resource(resource.resource_type, resource.name, known(resource.props)), resource.urn)
            for resource in args.resources
        ]
        urns = {id(resource): urn for resource, urn in pairs}
        assert whole is not None
        for resource, finding in whole([resource for resource, _ in pairs], profile):
            report(f"{finding}; {rule.remedy}", None if resource is None else urns[id(resource)])

    return StackValidationPolicy(validate=validate_stack, **common)


def known(value: Any) -> Any:
    """Return the SDK's proxies as plain values; a value unknown in a preview becomes ``UNKNOWN``."""
    if isinstance(value, Mapping):
        return {key: _at(value, key) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_at(value, index) for index in range(len(value))]
    return value


def _at(value: Any, key: Any) -> Any:
    try:
        return known(value[key])
    except UnknownValueError:
        return UNKNOWN


def serve() -> None:
    """Serve the rules until the engine stops asking."""
    profile = profile_of(os.environ.get(STACK_VARIABLE, ""))
    PolicyPack("gpu-fleet", [policy(rule, profile) for rule in RULES])

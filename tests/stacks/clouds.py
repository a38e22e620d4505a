"""Declared stacks of either cloud, with each provider's names for what both clouds have."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from gpu_fleet_stacks.payload import sweep_policy
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.rehearsal.registrations import Registration
from gpu_fleet_stacks.settings import Cloud, Stack, stack_files
from tests.stacks import registrations
from tests.stacks.alicloud_programs import EVERYTHING
from tests.stacks.examples import BUILDING
from tests.stacks.shipped import SHIPPED

# Every shipped stack, and one of each cloud that makes what no shipped one does.
STACKS: dict[str, str | Stack] = {name: name for name in SHIPPED}
STACKS |= {"aws-building": BUILDING, "alicloud-everything": EVERYTHING}
ON_ALICLOUD = [name for name in STACKS if name.startswith("alicloud-")]


@dataclass(frozen=True)
class Words:
    """The types of a provider, and the input that holds the document of a role's policy."""

    group: str
    hook: str
    key: str
    alias: str
    bucket: str
    file_system: str
    function: str
    role_policy: str
    document: str


WORDS = {
    Cloud.AWS: Words(
        group="aws:autoscaling/group:Group",
        hook="aws:autoscaling/lifecycleHook:LifecycleHook",
        key="aws:kms/key:Key",
        alias="aws:kms/alias:Alias",
        bucket="aws:s3/bucket:Bucket",
        file_system="aws:efs/fileSystem:FileSystem",
        function="aws:lambda/function:Function",
        role_policy="aws:iam/rolePolicy:RolePolicy",
        document="policy",
    ),
    Cloud.ALICLOUD: Words(
        group="alicloud:ess/scalingGroup:ScalingGroup",
        hook="alicloud:ess/lifecycleHook:LifecycleHook",
        key="alicloud:kms/key:Key",
        alias="alicloud:kms/alias:Alias",
        bucket="alicloud:oss/bucket:Bucket",
        file_system="alicloud:nas/fileSystem:FileSystem",
        function="alicloud:fc/v3Function:V3Function",
        role_policy="alicloud:ram/policy:Policy",
        document="policyDocument",
    ),
}


@dataclass(frozen=True)
class Declared:
    """A stack's settings, and its program's registrations in an empty account."""

    settings: Stack
    rehearsed: Rehearsed

    @property
    def words(self) -> Words:
        return WORDS[self.settings.cloud]

    def of_type(self, *tokens: str) -> list[Registration]:
        return [resource for token in tokens for resource in self.rehearsed.of_type(token)]

    def inputs(self, token: str, name: str = "") -> list[dict[str, Any]]:
        """Return the inputs of every resource of a type whose name contains `name`; of all by default."""
        return [resource.inputs for resource in self.of_type(token) if name in resource.name]

    def statements(self, role: str = "", effect: str = "Allow") -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the statements of the policies of roles whose name ends so, each with the role's name."""
        for policy in self.of_type(self.words.role_policy):
            if policy.name.endswith(role):
                for statement in json.loads(policy.inputs[self.words.document])["Statement"]:
                    if statement["Effect"] == effect:
                        yield policy.name, statement


def code_of(stack: Stack, label: str) -> Any:
    """Return the code of one of the stack's scheduled functions, as it is registered."""
    rows = import_module(f"gpu_fleet_stacks.{stack.cloud}.scheduled_functions").rows(stack)
    (row,) = [row for row in rows if row.label == label]
    return import_module(f"gpu_fleet_stacks.{stack.cloud}.functions").code(
        row, sweep_policy.policy_text(stack)
    )


@cache
def declared(name: str) -> Declared:
    """Return a stack of ``STACKS``, registered once a process; tests must not change it."""
    of = STACKS[name]
    settings = of if isinstance(of, Stack) else stack_files.settings_of(of)
    return Declared(settings, registrations.declared(of))

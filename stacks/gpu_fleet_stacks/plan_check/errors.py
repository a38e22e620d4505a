"""Errors of the plan check."""

from gpu_fleet_stacks.core.errors import StacksError


class PlanError(StacksError):
    """Pulumi made no plan, or one that cannot be read; nothing was touched."""


class ReplacementError(StacksError):
    """The plan would replace or delete a resource that holds data; nothing was touched."""

"""What the guard refuses."""

from stacks.errors import StacksError


class PlanError(StacksError):
    """Pulumi made no plan, or one that cannot be read. Nothing was touched."""


class ReplacementError(StacksError):
    """The plan would replace or delete something that holds data. Nothing was touched."""

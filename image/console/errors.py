"""What the console itself refuses, and what of other rooms it shows as one message."""


class ConsoleError(Exception):
    """Base: one message for a user, shown without a traceback."""


class CommandNotHereError(ConsoleError):
    """The command's room, or a package that it needs, is not on this computer."""


# The base exception of each room, as text: the console knows no room.
BASES = frozenset(
    {
        "image.console.errors.ConsoleError",
        "image.errors.ImageError",
        "image.instance.errors.InstanceError",
        "stacks.errors.StacksError",
        "gpu_fleet.errors.TrainingError",
    }
)


def is_meant(error: BaseException) -> bool:
    """Whether a room raised it on purpose, so that its text is for the user."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in BASES for kind in type(error).__mro__)

"""Errors of the console itself, and of other packages that it shows as one message."""


class ConsoleError(Exception):
    """Base: one message for a user, without a traceback."""


class CommandNotHereError(ConsoleError):
    """The command's package, or one that it needs, is not on this computer."""


# The base exception of each package, as text: the console imports none.
BASES = frozenset(
    {
        "gpu_fleet_image.console.errors.ConsoleError",
        "gpu_fleet_image.recipe.errors.ImageError",
        "gpu_fleet_image.core.errors.InstanceError",
        "gpu_fleet_stacks.core.errors.StacksError",
        "gpu_fleet.core.errors.TrainingError",
    }
)

# botocore's errors about this computer's configuration, and where to correct it.
_MISCONFIGURED = {
    "ProfileNotFound": "AWS_PROFILE; `aws configure list-profiles` names those of this computer",
    "ConfigParseError": "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, by default in ~/.aws",
    "ConfigNotFound": "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, by default in ~/.aws",
    "InvalidConfigError": "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, by default in ~/.aws",
    "InvalidRegionError": "AWS_REGION, AWS_DEFAULT_REGION and AWS_CONFIG_FILE",
}
# Beginnings of its other errors about it, and the same.
_MISSET = {
    "Invalid endpoint: ": "allowed: a URL such as https://HOST; see AWS_ENDPOINT_URL",
    "Unsupported host ": "see AWS_CONTAINER_CREDENTIALS_FULL_URI",
}


def misconfigured(error: BaseException) -> str | None:
    """Return a message if an error is about this computer's AWS configuration; else None."""
    if type(error).__module__ == "botocore.exceptions" and type(error).__name__ in _MISCONFIGURED:
        return f"{error}: see {_MISCONFIGURED[type(error).__name__]}"
    remedies = [remedy for beginning, remedy in _MISSET.items() if str(error).startswith(beginning)]
    return f"{error}; {remedies[0]}" if isinstance(error, ValueError) and remedies else None


def is_meant(error: BaseException) -> bool:
    """Return whether an error was raised on purpose, so that its text is for the user."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in BASES for kind in type(error).__mro__)

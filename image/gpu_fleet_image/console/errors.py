"""What the console itself refuses, and what of other rooms it shows as one message."""


class ConsoleError(Exception):
    """Base: one message for a user, shown without a traceback."""


class CommandNotHereError(ConsoleError):
    """The command's room, or a package that it needs, is not on this computer."""


# The base exception of each room, as text: the console knows no room.
BASES = frozenset(
    {
        "gpu_fleet_image.console.errors.ConsoleError",
        "gpu_fleet_image.recipe.errors.ImageError",
        "gpu_fleet_image.core.errors.InstanceError",
        "gpu_fleet_stacks.core.errors.StacksError",
        "gpu_fleet.core.errors.TrainingError",
    }
)

# What a computer is configured wrongly with, as botocore says it, and where to mend it.
MISCONFIGURED = {
    "ProfileNotFound": "AWS_PROFILE; `aws configure list-profiles` names those of this computer",
    "ConfigParseError": "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, by default in ~/.aws",
    "ConfigNotFound": "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, by default in ~/.aws",
    "InvalidConfigError": "AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE, by default in ~/.aws",
    "InvalidRegionError": "AWS_REGION, AWS_DEFAULT_REGION and AWS_CONFIG_FILE",
}
INVALID_ENDPOINT = "Invalid endpoint: "


def misconfigured(error: BaseException) -> str | None:
    """Return one sentence where an error is of this computer's configuration of AWS; else None."""
    if type(error).__module__ == "botocore.exceptions" and type(error).__name__ in MISCONFIGURED:
        return f"{error}: see {MISCONFIGURED[type(error).__name__]}"
    if isinstance(error, ValueError) and str(error).startswith(INVALID_ENDPOINT):
        return f"{error}; allowed: a URL such as https://HOST; see AWS_ENDPOINT_URL"
    return None


def is_meant(error: BaseException) -> bool:
    """Whether a room raised it on purpose, so that its text is for the user."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in BASES for kind in type(error).__mro__)

"""Start of a run on AWS: one command of Systems Manager by the stack's own document."""

from collections.abc import Mapping, Sequence

from gpu_fleet_image.core.calls import Calls
from gpu_fleet_image.core.error_codes import DENIED
from gpu_fleet_image.core.reaper_errors import CloudError, ConfigurationError
from gpu_fleet_image.core.runs import Job, parameters
from gpu_fleet_image.providers.aws import instances, session

# How long Systems Manager tries to reach an instance that does not answer, seconds (API SendCommand).
TIMEOUT_S = 600
UNKNOWN = "InvalidDocument"


def document_name(stack: str) -> str:
    """Return the name of the stack's own document (``stacks/gpu_fleet_stacks/core/naming.py``)."""
    return f"gpu-fleet-{stack}-run"


def request(job: Job) -> Mapping[str, object]:
    """Return the request for all instances of a run."""
    return {
        "DocumentName": document_name(job.stack),
        "InstanceIds": [member.id for member in job.instances],
        "Parameters": {key: [value] for key, value in parameters(job).items()},
        "Comment": f"gpu-fleet submit: {job.run}"[:100],
        "TimeoutSeconds": TIMEOUT_S,
    }


def send(region: str, calls: Calls, job: Job) -> str:
    """Start a run on its instances; return the cloud's id of the command.

    Raises:
        ConfigurationError: the stack has no such document, or the caller may not use it.
        CloudError: anything else.
    """
    try:
        answer = calls.change(session.client("ssm", region).send_command, **request(job))
    except CloudError as error:
        if error.code == UNKNOWN:
            raise ConfigurationError(
                f"stack {job.stack!r} has no document {document_name(job.stack)}: `gpu-fleet up` creates it "
                "if access.people has users"
            ) from error
        if error.code in DENIED:
            raise ConfigurationError(
                "these credentials may not start a run on "
                f"{', '.join(member.id for member in job.instances)}: "
                f"the output people_policy lets users do so on instances that they took ({error})"
            ) from error
        raise
    return str(answer["Command"]["CommandId"])


def addresses(region: str, calls: Calls, ids: Sequence[str]) -> Mapping[str, str]:
    """Return instance -> private IPv4, without instances that have none. Raises CloudError."""
    return instances.addresses_of(calls, session.client("ec2", region), ids)

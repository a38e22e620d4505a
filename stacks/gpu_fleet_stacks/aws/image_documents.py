"""Steps of the image's builder, as documents of Image Builder. Pure."""

from typing import Any

import yaml

from gpu_fleet_stacks.payload import image_files
from gpu_fleet_stacks.settings import Stack

# docs.aws.amazon.com/imagebuilder/latest/APIReference/API_CreateComponent.html: data
LARGEST_COMPONENT_CHARACTERS = 16_000
FOLDER = "/opt/gpu-fleet-recipe"
FILES = "/var/cache/gpu-fleet/files"


def component_content(stack: Stack, payload: image_files.ImageFile) -> str:
    """Return the component that fetches the payload, checks its hash, runs it, and validates the image.

    Raises ValueError when it is larger than the cloud takes.
    """
    source = f"s3://{stack.bucket_name('records')}/{payload.object_key}"
    fetch = [{"source": source, "destination": f"{FOLDER}.tar"}]
    steps = [
        _step("Folders", "ExecuteBash", {"commands": [f"mkdir -p {FOLDER} {FILES}"]}),
        {"name": "Fetch", "action": "S3Download", "maxAttempts": 3, "inputs": fetch},
        _step(
            "Check", "ExecuteBash", {"commands": [f"echo '{payload.sha256}  {FOLDER}.tar' | sha256sum -c -"]}
        ),
        _step("Unpack", "ExecuteBash", {"commands": [f"tar -xf {FOLDER}.tar -C {FOLDER}"]}),
        _step("Provision", "ExecuteBash", {"commands": [f"TARGET=aws FILES={FILES} {FOLDER}/provision.sh"]}),
        _step("Leave", "ExecuteBash", {"commands": [f"rm -rf {FOLDER} {FOLDER}.tar {FILES}"]}),
    ]
    return _document("The recipe of gpu-fleet", {"build": steps, "validate": [_look()]})


def tests_content() -> str:
    """Return the tests of the finished image, for an instance that booted it."""
    return _document("What an image of gpu-fleet must show", {"test": [_look(" booted")]})


def canary_content(types: list[str]) -> str:
    """Return the test workflow: launch the image on one of these types, run the test component, terminate."""
    instance = {"instanceId.$": "$.stepOutputs.LaunchCanary.instanceId"}
    launch = {"waitFor": "ssmAgent", "instanceTypesOverride": types}
    steps = [
        {
            "name": "LaunchCanary",
            "action": "LaunchInstance",
            "onFailure": "Abort",
            "inputs": launch,
        },
        {"name": "Test", "action": "ExecuteComponents", "onFailure": "Abort", "inputs": instance},
        {
            "name": "TerminateCanary",
            "action": "TerminateInstance",
            "onFailure": "Continue",
            "inputs": instance,
        },
    ]
    head = {"name": "canary", "description": "A built image on a GPU", "schemaVersion": 1.0}
    return str(yaml.safe_dump({**head, "steps": steps}, sort_keys=False, width=1000))


def _look(when: str = "") -> dict[str, Any]:
    return _step("Look", "ExecuteBash", {"commands": [f"/usr/libexec/gpu-fleet/check-image{when}"]})


def _step(name: str, action: str, inputs: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "action": action, "onFailure": "Abort", "inputs": inputs}


def _document(description: str, phases: dict[str, list[dict[str, Any]]]) -> str:
    """Return a component document, docs.aws.amazon.com/imagebuilder "toe-use-documents"."""
    listed = [{"name": name, "steps": steps} for name, steps in phases.items()]
    text = yaml.safe_dump(
        {"schemaVersion": "1.0", "description": description, "phases": listed}, sort_keys=False, width=1000
    )
    if len(text) > LARGEST_COMPONENT_CHARACTERS:
        raise ValueError(f"component of {len(text)} characters; {LARGEST_COMPONENT_CHARACTERS} allowed")
    return str(text)

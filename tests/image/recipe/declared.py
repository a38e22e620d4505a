"""The user data that a stack declares for its instances."""

import base64

import yaml

from gpu_fleet_stacks.payload import instance_file
from gpu_fleet_stacks.settings import Stack
from tests.stacks.registrations import declared


def user_data(stack: Stack) -> dict[str, str]:
    """Launch template, or scaling configuration -> the text cloud-init would read on an instance of it."""
    return {
        made.name: base64.b64decode(made.inputs["userData"]).decode()
        for made in declared(stack).registrations
        if "userData" in made.inputs
    }


def instance_file_of(user_data_text: str) -> str:
    """The file that cloud-init writes from the user data."""
    files = yaml.safe_load(user_data_text)["write_files"]
    return next(file["content"] for file in files if file["path"] == instance_file.PATH)

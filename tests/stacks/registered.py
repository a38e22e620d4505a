"""Reads of a program's registrations."""

import base64
import tomllib
from typing import Any

import yaml

from gpu_fleet_stacks.payload import instance_file
from gpu_fleet_stacks.rehearsal.program import Rehearsed

TEMPLATES = (
    "aws:ec2/launchTemplate:LaunchTemplate",
    "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate",
    "alicloud:ess/scalingConfiguration:ScalingConfiguration",
)


def files_of(template) -> dict[str, str]:
    """Return path -> content of the files that a launch template's user data writes."""
    config = yaml.safe_load(base64.b64decode(template.inputs["userData"]))
    return {file["path"]: file["content"] for file in config["write_files"]}


def instance_files(rehearsed: Rehearsed) -> list[dict[str, Any]]:
    """Return ``instance.toml`` of each pool's instances, in no order."""
    started = [made for kind in TEMPLATES for made in rehearsed.of_type(kind)]
    texts = [files_of(made)[instance_file.PATH] for made in started]
    return [table for table in map(tomllib.loads, texts) if table["pool"]]


def named(rehearsed, kind, name):
    """Return the registered resource of a kind and a logical name."""
    return next(made for made in rehearsed.of_type(kind) if made.name == name)

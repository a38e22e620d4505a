"""Looks at what a program registered."""

import base64

import yaml


def files_of(template) -> dict[str, str]:
    """Path to content of what a launch template's user data writes."""
    config = yaml.safe_load(base64.b64decode(template.inputs["userData"]))
    return {file["path"]: file["content"] for file in config["write_files"]}


def named(rehearsed, kind, name):
    """The registered resource of a kind and a logical name."""
    return next(made for made in rehearsed.of_type(kind) if made.name == name)

"""boto3's descriptions of services, without their documentation.

boto3 keeps the whole description of a service for as long as a client lives, in ordered dictionaries and with
its documentation: 7 MB of memory for S3, 18 MB for EC2, of which an agent calls three operations. The
instance's memory belongs to its users.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import boto3
import botocore.loaders
import botocore.session

# The operations that an instance's services call, for services with a large description.
NEEDED = {"ec2": ("CreateTags", "DeleteTags", "DescribeTags"), "logs": ("CreateLogStream", "PutLogEvents")}
_MODEL = "service-2"


def use_small_models() -> None:
    """Make all later clients of boto3 without a session of their own read small models."""
    session = botocore.session.get_session()
    loader = botocore.loaders.create_loader(session.get_config_variable("data_path"))
    loader.file_loader = SmallModels()
    session.register_component("data_loader", loader)
    boto3.setup_default_session(botocore_session=session)


class SmallModels(botocore.loaders.JSONFileLoader):
    """Loader of botocore's data files, without documentation."""

    def load_file(self, file_path: str) -> Any:
        """Return the content of a file, which is named without its extension; None if there is none."""
        for file, opened in ((f"{file_path}.json", open), (f"{file_path}.json.gz", gzip.open)):
            if Path(file).is_file():
                with opened(file, "rb") as content:
                    model = json.loads(content.read(), object_hook=_without_text)
                return _needed(model, Path(file_path))
        return None


def _without_text(part: dict[str, Any]) -> dict[str, Any]:
    if isinstance(part.get("documentation"), str):  # a field of a service may have that name too
        part["documentation"] = ""  # botocore reads it in some places
    return part


def _needed(model: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return a large service's model reduced to the agent's operations."""
    service = path.parent.parent.name
    if path.name != _MODEL or service not in NEEDED:
        return model
    operations = {name: model["operations"][name] for name in NEEDED[service]}
    shapes: dict[str, Any] = {}
    wanted = _shapes_in(operations)
    while wanted:
        name = wanted.pop()
        if name not in shapes:
            shapes[name] = model["shapes"][name]
            wanted += _shapes_in(shapes[name])
    return {**model, "operations": operations, "shapes": shapes}


def _shapes_in(part: Any) -> list[str]:
    """Return the names of the shapes that a part of a model refers to."""
    if isinstance(part, list):
        return [name for each in part for name in _shapes_in(each)]
    if not isinstance(part, dict):
        return []
    own = [part["shape"]] if isinstance(part.get("shape"), str) else []
    return own + [name for each in part.values() for name in _shapes_in(each)]

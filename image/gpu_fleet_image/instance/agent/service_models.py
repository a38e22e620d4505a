"""boto3's description of each service, without what only its documentation needs.

boto3 keeps the whole description of a service for as long as a client lives, in ordered dictionaries and with
the text of its documentation: 7 MB of memory for S3, 18 MB for EC2, of which an agent calls three operations.
An instance's memory is its users'.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import boto3
import botocore.loaders
import botocore.session

# Of a service whose description is large, the operations that an instance's services call.
NEEDED = {"ec2": ("CreateTags", "DeleteTags", "DescribeTags"), "logs": ("CreateLogStream", "PutLogEvents")}
_MODEL = "service-2"


def use_small_models() -> None:
    """Let every client that boto3 makes from now on, without a session of its own, read small models."""
    session = botocore.session.get_session()
    loader = botocore.loaders.create_loader(session.get_config_variable("data_path"))
    loader.file_loader = SmallModels()
    session.register_component("data_loader", loader)
    boto3.setup_default_session(botocore_session=session)


class SmallModels(botocore.loaders.JSONFileLoader):
    """Reads a file of botocore's data, without documentation."""

    def load_file(self, file_path: str) -> Any:
        """What is in a file, whose name is given without its ending; None where there is none."""
        for file, opened in ((f"{file_path}.json", open), (f"{file_path}.json.gz", gzip.open)):
            if Path(file).is_file():
                with opened(file, "rb") as content:
                    model = json.loads(content.read(), object_hook=_without_text)
                return _needed(model, Path(file_path))
        return None


def _without_text(part: dict[str, Any]) -> dict[str, Any]:
    if isinstance(part.get("documentation"), str):  # a field of a service may have that name too
        part["documentation"] = ""  # botocore asks for it here and there
    return part


def _needed(model: dict[str, Any], path: Path) -> dict[str, Any]:
    """Of a large service, what the agent's operations are made of."""
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
    """Names of the shapes that a part of a model refers to."""
    if isinstance(part, list):
        return [name for each in part for name in _shapes_in(each)]
    if not isinstance(part, dict):
        return []
    own = [part["shape"]] if isinstance(part.get("shape"), str) else []
    return own + [name for each in part.values() for name in _shapes_in(each)]

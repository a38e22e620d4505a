"""Checks AWS calls against what the API's own description says of each parameter, and EC2's prose beside it.

boto3 checks types and required keys before a call; lengths, ranges and patterns it leaves to the service, and
moto checks few of them. EC2's description has none, so what its reference says in words stands here.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.model import OperationModel, Shape

# docs.aws.amazon.com/AWSEC2/latest/APIReference/API_IpRange.html and API_CreateSecurityGroup.html
EC2_TEXT = re.compile(r"[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]{0,255}")
# docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateLaunchTemplate.html
EC2_NAME = re.compile(r"[a-zA-Z0-9().\-/_]{3,128}")
EC2_PATTERNS = {
    ("AuthorizeSecurityGroupEgress", "Description"): EC2_TEXT,
    ("AuthorizeSecurityGroupIngress", "Description"): EC2_TEXT,
    ("CreateSecurityGroup", "Description"): EC2_TEXT,
    ("CreateSecurityGroup", "GroupName"): EC2_TEXT,
    ("CreateLaunchTemplate", "LaunchTemplateName"): EC2_NAME,
}
# docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html
TAG_KEY = re.compile(r"[\w .:/=+\-@]{1,128}")
TAG_VALUE = re.compile(r"[\w .:/=+\-@]{0,256}")


def violations(operation: OperationModel, parameters: Mapping[str, Any]) -> list[str]:
    """What a call's parameters break, each named by its path.

    Args:
        operation: the call, as botocore describes it.
        parameters: as boto3 was given them.
    """
    found = _of_shape(operation.input_shape, parameters, operation.name) if operation.input_shape else ()
    return [*found, *_of_prose(operation, parameters, operation.name)]


def _of_shape(shape: Shape, value: Any, path: str) -> Iterator[str]:
    if shape.type_name == "structure":
        for key, item in value.items():
            yield from _of_shape(shape.members[key], item, f"{path}.{key}")
    elif shape.type_name == "list":
        yield from _of_size(shape, len(value), path)
        for index, item in enumerate(value):
            yield from _of_shape(shape.member, item, f"{path}[{index}]")
    elif shape.type_name == "map":
        yield from _of_size(shape, len(value), path)
        for key, item in value.items():
            yield from _of_shape(shape.key, key, f"{path}.{key}")
            yield from _of_shape(shape.value, item, f"{path}.{key}")
    elif isinstance(value, str):
        yield from _of_text(shape, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _of_size(shape, value, path)


def _of_size(shape: Shape, size: float, path: str) -> Iterator[str]:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is not None and size < low) or (high is not None and size > high):
        yield f"{path} is {size}: allowed {low} to {high}"


def _of_text(shape: Shape, text: str, path: str) -> Iterator[str]:
    yield from _of_size(shape, len(text), f"length of {path}")
    enumeration = getattr(shape, "enum", None)
    if enumeration and text not in enumeration:
        yield f"{path} = {text!r}: allowed {', '.join(enumeration)}"
    pattern = shape.metadata.get("pattern")
    if pattern is None:
        return
    try:
        matches = re.fullmatch(pattern, text, re.DOTALL)
    except re.error:  # of Java, with classes that Python's re lacks
        return
    if matches is None:
        yield f"{path} = {text!r}: must match {pattern}"


def _of_prose(operation: OperationModel, value: Any, path: str) -> Iterator[str]:
    """EC2's texts and everybody's tags."""
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _of_prose(operation, item, f"{path}[{index}]")
    if not isinstance(value, Mapping):
        return
    if value.keys() == {"Key", "Value"}:
        if not TAG_KEY.fullmatch(str(value["Key"])) or not TAG_VALUE.fullmatch(str(value["Value"])):
            yield f"{path}: no tag may be {value['Key']!r} = {value['Value']!r}"
        return
    for key, item in value.items():
        pattern = EC2_PATTERNS.get((operation.name, key))
        if pattern is not None and not pattern.fullmatch(str(item)):
            yield f"{path}.{key} = {item!r}: must match {pattern.pattern}"
        yield from _of_prose(operation, item, f"{path}.{key}")

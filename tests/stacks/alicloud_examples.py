"""A valid Alibaba Cloud stack file, to be changed by tests."""

import re
from typing import Any

from gpu_fleet_stacks.core.errors import SettingsError
from gpu_fleet_stacks.settings import Stack
from gpu_fleet_stacks.settings.reader import from_mapping


def stack_file(**changes: Any) -> dict[str, Any]:
    """Return the content of a valid file, with some top-level keys replaced."""
    content: dict[str, Any] = {
        "cloud": "alicloud",
        "region": "cn-shenzhen",
        "account_id": "1234567890123456",
        "network": {"cidr": "10.0.0.0/16", "zones": ["cn-shenzhen-d", "cn-shenzhen-e"]},
        "storage": {"kms_instance_id": "kst-szh0000000000000000"},
        "pools": [pool()],
        "budget": {
            "monthly": 40000,
            "currency": "CNY",
            "recipients": ["team@example.com"],
            "allow_overcommit": True,
        },
        "image": {"id": "m-wz90000000000000000"},
    }
    return content | changes


def pool(**changes: Any) -> dict[str, Any]:
    """Return a valid pool, with some keys replaced."""
    sound = {"name": "dev", "types": ["ecs.gn7i-c8g1.2xlarge"], "size": {"min": 0, "desired": 1, "max": 2}}
    return sound | changes


def stack(name: str = "test", **changes: Any) -> Stack:
    """Return a valid stack, with some keys of its file replaced, and assumed prices where no list has one."""
    return priced(name, stack_file(**changes))


def priced(name: str, content: dict[str, Any]) -> Stack:
    """Return the stack of a file, with an assumed price for everything without a list price."""
    return from_mapping(name, content | {"budget": content["budget"] | {"assume": assumptions(content)}})


def assumptions(content: dict[str, Any]) -> dict[str, str]:
    """Return a price for everything that needs an assumed one."""
    assume = dict(content["budget"].get("assume", {}))
    try:
        from_mapping("test", content)
    except SettingsError as error:
        texts = [problem.allowed for problem in error.problems]
        assume |= {name: "2.5" for text in texts for name in re.findall(r"budget.assume: {(\S+): ", text)}
    return assume

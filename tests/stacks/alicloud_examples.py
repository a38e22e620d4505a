"""A sound Alibaba Cloud stack file to bend in tests."""

from typing import Any

from stacks.settings import Stack
from stacks.settings_reader import from_mapping


def stack_file(**changes: Any) -> dict[str, Any]:
    """The content of a sound file, with some top-level keys replaced."""
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
    """A sound pool, with some keys replaced."""
    sound = {"name": "dev", "types": ["ecs.gn7i-c8g1.2xlarge"], "size": {"min": 0, "desired": 1, "max": 2}}
    return sound | changes


def stack(name: str = "test", **changes: Any) -> Stack:
    """A sound stack, with some top-level keys of its file replaced."""
    return from_mapping(name, stack_file(**changes))

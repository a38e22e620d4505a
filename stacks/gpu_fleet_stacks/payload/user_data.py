"""User data: the text of cloud-init's work at an instance's first boot.

Cloud-init writes ``instance.toml``. In mode ``bootstrap``, and in mode ``baked`` until the first build has
ended, it also writes three files: where the payload is, the program that fetches it, and a unit that runs
the program until it succeeds. On an image that a build made the unit does nothing.
"""

import base64
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.payload import built, instance_file
from gpu_fleet_stacks.settings import Pool, Stack

# EC2 refuses more (docs.aws.amazon.com/AWSEC2, "user data must be limited to 16 KB"), Alibaba Cloud 32 KB.
LARGEST_BYTES = 16_384
# Placeholder for names that are known only after deployment, to check the size before. The longest is a
# role's ARN: 64 characters after ``arn:aws-us-gov:iam::123456789012:role/``.
LONGEST_NAME = "x" * 103
LONGEST_QUEUE = instance_file.queue_json("controller", "255.255.255.255", LONGEST_NAME * 2)
PAYLOAD_FILE = "/etc/gpu-fleet/payload.json"
PROGRAM = "/usr/local/libexec/gpu-fleet/fetch"
UNIT = "gpu-fleet-bootstrap.service"
# The last step of a build writes it; a bootstrap does not.
MANIFEST = "/usr/share/gpu-fleet/manifest.json"
NOT_BOOTSTRAPPED = "ConditionPathExists=!/var/lib/gpu-fleet/bootstrapped\n"
UNIT_TEXT = f"""\
[Unit]
Description=Fetch the payload of this instance's stack and run its recipe
{NOT_BOOTSTRAPPED}\
After=network-online.target
Wants=network-online.target
# retried until it succeeds: the network may be late, a disk emptied, a payload uploaded again
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/python3 -I {PROGRAM}
Restart=on-failure
RestartSec=15
RestartPreventExitStatus=2 3
TimeoutStartSec=infinity
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
"""


class _Text(str):
    """A text of many lines, for the user data in readable form."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """YAML's safe dumper, with texts of many lines as blocks."""


_Dumper.add_representer(
    _Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", str(text), style="|")
)


@cache
def program() -> str:
    """Return the text of the program that fetches the payload."""
    return Path(__file__).with_name("fetch.py").read_text(encoding="utf-8")


def unit_text(stack: Stack) -> str:
    """Return the bootstrap unit; it skips built images where the stack follows its builds. Pure."""
    if not stack.image.follows_builds:
        return UNIT_TEXT
    return UNIT_TEXT.replace(NOT_BOOTSTRAPPED, f"{NOT_BOOTSTRAPPED}ConditionPathExists=!{MANIFEST}\n")


def payload_document(stack: Stack, bucket: str, payload: built.Payload) -> dict[str, str]:
    """Return the facts of the payload for an instance. Pure."""
    return {
        "cloud": str(stack.cloud),
        "region": stack.region,
        "bucket": bucket,
        "key": payload.object_key,
        "sha256": payload.sha256,
        "wheels": "index" if stack.network.reaches_internet else "bucket",
    }


def encoded(
    stack: Stack,
    pool: Pool,
    scheme: str,
    *,
    home: str,
    scratch: str,
    user_role: str,
    scratch_mount_name: str = "",
    monitor_group: str = "",
    queue: str = "",
) -> str:
    """Return a pool's user data in base64, with its ``instance.toml``.

    Args:
        scheme: of the URIs of the stack's buckets, say ``s3``.
        home, scratch, user_role, scratch_mount_name, monitor_group: as of ``instance_file.instance_toml``.
        queue: what ``instance_file.queue_json`` says to nodes; empty on a stack without a queue.

    Raises:
        StacksError: as ``cloud_config``.
    """
    checkpoints, data, records = (stack.bucket_name(kind) for kind in ("checkpoints", "data", "records"))
    text = instance_file.instance_toml(
        stack,
        pool,
        f"{scheme}://{checkpoints}/{pool.name}",
        f"{scheme}://{data}",
        home=home,
        scratch=scratch,
        scratch_mount_name=scratch_mount_name,
        monitor_group=monitor_group,
        records_uri=f"{scheme}://{records}/reaper",
        user_role=user_role,
    )
    return base64.b64encode(cloud_config(stack, pool, text, records, queue).encode()).decode()


def controller_encoded(stack: Stack, scheme: str, *, home: str, queue: str) -> str:
    """Return the user data of the queue's controller in base64.

    Args:
        scheme, home: as of ``encoded``.
        queue: the text of ``instance_file.queue_json`` for the controller.

    Raises:
        StacksError: as ``cloud_config``.
    """
    records = stack.bucket_name("records")
    text = instance_file.controller_toml(stack, home=home, records_uri=f"{scheme}://{records}/reaper")
    config = _config(stack, records, {instance_file.PATH: text, instance_file.QUEUE_PATH: queue})
    return base64.b64encode(config.encode()).decode()


def cloud_config(stack: Stack, pool: Pool, instance_toml: str, bucket: str, queue: str = "") -> str:
    """Return the whole user data of a pool.

    Args:
        instance_toml: the text of ``instance.toml``.
        bucket: the stack's records bucket, which holds the payload.
        queue: the text of ``queue.json``; empty for none.

    Raises StacksError if the cloud would refuse the size, or there is no payload.
    """
    joins = {instance_file.QUEUE_PATH: queue} if queue else {}
    text = _config(stack, bucket, {instance_file.PATH: instance_toml, **joins})
    size = len(text.encode())
    if size > LARGEST_BYTES:
        raise StacksError(
            f"pools: user data of pool {pool.name!r} has {size} bytes, {LARGEST_BYTES} are allowed: "
            f"name fewer than {len(pool.types)} types"
        )
    return text


def _config(stack: Stack, bucket: str, files: Mapping[str, str]) -> str:
    """Return a cloud-config with these files, and with the bootstrap program if the image needs it."""
    config: dict[str, Any] = {"write_files": [_file(path, content) for path, content in files.items()]}
    payload = built.for_stack(stack)
    if payload is not None:
        document = payload_document(stack, bucket, payload)
        config["write_files"] += [
            _file(PAYLOAD_FILE, json.dumps(document, indent=1) + "\n"),
            _file(PROGRAM, program(), "0755"),
            _file(f"/etc/systemd/system/{UNIT}", unit_text(stack)),
        ]
        # cloud-init writes files long after systemd has read its units
        config["runcmd"] = [
            ["systemctl", "daemon-reload"],
            ["systemctl", "enable", UNIT],
            ["systemctl", "start", "--no-block", UNIT],
        ]
    return "#cloud-config\n" + yaml.dump(config, Dumper=_Dumper, sort_keys=False, width=1000)


def _file(path: str, content: str, permissions: str = "0644") -> dict[str, str]:
    return {"path": path, "owner": "root:root", "permissions": permissions, "content": _Text(content)}

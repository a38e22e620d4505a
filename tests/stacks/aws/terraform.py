"""Registered AWS resources as a Terraform configuration, so that the provider's own code checks them.

Pulumi's AWS provider is a bridge over terraform-provider-aws: types, names and nesting follow by rule, and
the few that do not are listed. The provider's schema says whether a key is an attribute or a block.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pulumi

from gpu_fleet_stacks.rehearsal.archives import zip_bytes
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.rehearsal.registrations import Registration
from tests.ran import ran

MIRROR = Path("/opt/tf-plugins")
PROVIDER = "registry.terraform.io/hashicorp/aws"
VERSION = "5.100.0"
# Terraform resource -> Pulumi's key -> Terraform's
RENAMED = {
    "aws_cloudwatch_metric_alarm": {"name": "alarm_name"},
    "aws_lambda_function": {"name": "function_name", "code": "filename"},
    "aws_lambda_permission": {"function": "function_name"},
    "aws_sns_topic_subscription": {"topic": "topic_arn"},
    "aws_fsx_lustre_file_system": {"filesystemTypeVersion": "file_system_type_version"},
}
# Pulumi's type -> Terraform's, where the rule does not lead there
RETYPED = {
    "aws:s3/bucketObjectv2:BucketObjectv2": "aws_s3_object",
    "aws:s3/bucketReplicationConfig:BucketReplicationConfig": "aws_s3_bucket_replication_configuration",
}

Block = Mapping[str, Any]


def snake(key: str) -> str:
    """Convert ``vpcZoneIdentifiers`` to ``vpc_zone_identifiers``."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower()


def terraform_type(token: str) -> str:
    """Convert ``aws:ec2/subnet:Subnet`` to ``aws_subnet``; other services keep their name in front."""
    if token in RETYPED:
        return RETYPED[token]
    service, _, kind = token.split(":")[1].partition("/")
    return f"aws_{snake(kind)}" if service == "ec2" else f"aws_{service}_{snake(kind)}"


def configuration(rehearsed: Rehearsed, schema: Block, folder: Path) -> dict[str, Any]:
    """Return the configuration of a stack, with literal values for references between resources.

    Raises:
        KeyError: names an input that the provider does not know.
    """
    resources: dict[str, dict[str, Any]] = {}
    for resource in rehearsed.resources:
        kind = terraform_type(resource.type)
        body = _body(resource, kind, schema[kind]["block"], folder)
        resources.setdefault(kind, {})[re.sub(r"[^\w-]", "_", resource.name)] = body
    return {
        "terraform": {"required_providers": {"aws": {"source": "hashicorp/aws", "version": VERSION}}},
        "provider": {"aws": [_provider()]},
        "resource": resources,
    }


def _body(registration: Registration, kind: str, block: Block, folder: Path) -> dict[str, Any]:
    inputs = dict(registration.inputs)
    if "code" in inputs:
        archive = folder / f"{registration.name}.zip"
        archive.write_bytes(zip_bytes(inputs["code"]))
        inputs["code"] = str(archive)
    if isinstance(inputs.get("source"), pulumi.FileAsset):
        inputs["source"] = inputs["source"].path
    names = RENAMED.get(kind, {})
    body = _converted({names.get(key, key): value for key, value in inputs.items()}, block, kind)
    if block["attributes"].get("name", {}).get("required"):
        body.setdefault("name", registration.outputs["name"])  # where Pulumi makes a name up
    return body


def _converted(inputs: Mapping[str, Any], block: Block, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in inputs.items():
        name = next((name for name in _singulars(snake(key)) if _knows(block, name)), None)
        if name is None:
            raise KeyError(f"{where}: the provider knows no {key}")
        if name in block.get("attributes", {}):
            many = isinstance(block["attributes"][name].get("type"), list) and not isinstance(
                value, list | dict
            )
            found[name] = _escaped([value] if many else value)  # Pulumi makes one of a list that holds one
            continue
        inner = block["block_types"][name]["block"]
        parts = value if isinstance(value, list) else [value]
        found[name] = [_converted(part, inner, f"{where}.{name}") for part in parts]
    return found


def _knows(block: Block, name: str) -> bool:
    return name in block.get("attributes", {}) or name in block.get("block_types", {})


def _singulars(name: str) -> Iterator[str]:
    """Yield singular forms of a name: Terraform repeats a block, while Pulumi has one list in the plural."""
    yield name
    for plural, singular in (("ies", "y"), ("es", ""), ("s", "")):
        if name.endswith(plural):
            yield name.removesuffix(plural) + singular


def _escaped(value: Any) -> Any:
    """Escape ``${``, which begins an expression in Terraform, and is literal in an IAM policy."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    return {key: _escaped(part) for key, part in value.items()} if isinstance(value, dict) else value


def _provider() -> dict[str, Any]:
    return {
        "region": "us-east-1",
        "access_key": "made-up",
        "secret_key": "made-up",
        "skip_credentials_validation": True,
        "skip_metadata_api_check": True,
        "skip_requesting_account_id": True,
    }


def terraform(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Terraform in a folder with the provider of this computer, and nothing from the network."""
    mirror = folder / "terraform.rc"
    mirror.write_text(f'provider_installation {{\n  filesystem_mirror {{\n    path = "{MIRROR}"\n  }}\n}}\n')
    environment = {
        "TF_CLI_CONFIG_FILE": str(mirror),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        # each is a short life: its collector takes a quarter of it
        "GOGC": "off",
        "GOMAXPROCS": "1",
    }
    return ran(["terraform", *arguments], cwd=folder, env=environment)


def provider_schema(folder: Path) -> Block:
    """Return the provider's own resource schemas."""
    required = {"required_providers": {"aws": {"source": "hashicorp/aws", "version": VERSION}}}
    (folder / "main.tf.json").write_text(json.dumps({"terraform": required}))
    for arguments in (("init", "-no-color"), ("providers", "schema", "-json")):
        done = terraform(folder, *arguments)
        assert done.returncode == 0, done.stderr
    schemas: Block = json.loads(done.stdout)["provider_schemas"][PROVIDER]["resource_schemas"]
    return schemas

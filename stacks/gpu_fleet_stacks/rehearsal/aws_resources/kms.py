"""Keys and their aliases in moto."""

from typing import Any

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import (
    Created,
    Inputs,
    api_names,
    physical_name,
    picked,
    tag_list,
    with_tags_all,
)


def key(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    """Create an aws:kms/key:Key; moto stores that it rotates; only the registration has the period."""
    names = api_names("description keyUsage multiRegion policy", KeySpec="customerMasterKeySpec")
    tags = {"Tags": tag_list(inputs["tags"], "TagKey", "TagValue")} if inputs.get("tags") else {}
    kms = clients("kms")
    made = kms.create_key(**picked(inputs, names), **tags)["KeyMetadata"]
    if inputs.get("enableKeyRotation"):
        period: dict[str, Any] = picked(inputs, {"RotationPeriodInDays": "rotationPeriodInDays"})
        kms.enable_key_rotation(KeyId=made["KeyId"], **period)
    computed: Inputs = {
        "arn": made["Arn"],
        "keyId": made["KeyId"],
        "multiRegion": inputs.get("multiRegion", False),
    }
    if "policy" not in inputs:
        computed["policy"] = kms.get_key_policy(KeyId=made["KeyId"], PolicyName="default")["Policy"]
    return made["KeyId"], with_tags_all({"description": made["Description"]} | inputs, **computed)


def alias(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    alias_name = physical_name(name, inputs)
    if not alias_name.startswith("alias/"):
        alias_name = f"alias/{alias_name}"
    clients("kms").create_alias(AliasName=alias_name, TargetKeyId=inputs["targetKeyId"])
    target_id = inputs["targetKeyId"].rsplit("/", 1)[-1]
    return alias_name, {
        **inputs,
        "name": alias_name,
        "arn": clients.arn("kms", alias_name),
        "targetKeyId": target_id,
        "targetKeyArn": clients.arn("kms", f"key/{target_id}"),
    }


CREATORS = {"aws:kms/key:Key": key, "aws:kms/alias:Alias": alias}

"""Secrets in moto, without a value: no program writes one."""

from gpu_fleet_stacks.rehearsal.clients import RegionClients
from gpu_fleet_stacks.rehearsal.values import Created, Inputs, physical_name, picked, tag_list, with_tags_all


def secret(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = {"Description": "description", "KmsKeyId": "kmsKeyId"}
    secret_name = physical_name(name, inputs)
    tags = {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    arn = clients("secretsmanager").create_secret(Name=secret_name, **picked(inputs, names), **tags)["ARN"]
    return arn, with_tags_all(inputs, name=secret_name, arn=arn, policy="")


CREATORS = {"aws:secretsmanager/secret:Secret": secret}

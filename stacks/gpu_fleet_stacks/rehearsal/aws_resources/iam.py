"""Roles, policies and instance profiles in moto."""

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


def role(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = api_names(
        "path description maxSessionDuration permissionsBoundary", AssumeRolePolicyDocument="assumeRolePolicy"
    )
    role_name = physical_name(name, inputs)
    iam = clients("iam")
    made = iam.create_role(RoleName=role_name, **picked(inputs, names), **_tags(inputs))["Role"]
    for arn in inputs.get("managedPolicyArns", []):
        iam.attach_role_policy(RoleName=role_name, PolicyArn=arn)
    for inline in inputs.get("inlinePolicies", []):
        iam.put_role_policy(RoleName=role_name, PolicyName=inline["name"], PolicyDocument=inline["policy"])
    return role_name, with_tags_all(inputs, name=role_name, **_facts(made, "RoleId"))


def service_linked_role(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    """Create an aws:iam/serviceLinkedRole:ServiceLinkedRole; its name is the service's with the suffix."""
    names = {"AWSServiceName": "awsServiceName", "CustomSuffix": "customSuffix", "Description": "description"}
    iam = clients("iam")
    made = iam.create_service_linked_role(**picked(inputs, names))["Role"]
    if inputs.get("tags"):
        iam.tag_role(RoleName=made["RoleName"], Tags=tag_list(inputs["tags"]))
    facts = _facts(made, "RoleId")
    return made["Arn"], with_tags_all(inputs, name=made["RoleName"], path=made["Path"], **facts)


def role_policy(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    policy_name = physical_name(name, inputs)
    clients("iam").put_role_policy(
        RoleName=inputs["role"], PolicyName=policy_name, PolicyDocument=inputs["policy"]
    )
    return f"{inputs['role']}:{policy_name}", {**inputs, "name": policy_name}


def policy(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    names = {"PolicyDocument": "policy", "Path": "path", "Description": "description"}
    policy_name = physical_name(name, inputs)
    request = {"PolicyName": policy_name, **picked(inputs, names), **_tags(inputs)}
    made = clients("iam").create_policy(**request)["Policy"]
    computed = {"arn": made["Arn"], "policyId": made["PolicyId"], "attachmentCount": 0}
    return made["Arn"], with_tags_all(inputs, name=policy_name, **computed)


def role_policy_attachment(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    clients("iam").attach_role_policy(RoleName=inputs["role"], PolicyArn=inputs["policyArn"])
    return physical_name(name, {}), inputs


def instance_profile(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    iam = clients("iam")
    profile_name = physical_name(name, inputs)
    request = {"InstanceProfileName": profile_name, **picked(inputs, {"Path": "path"}), **_tags(inputs)}
    made = iam.create_instance_profile(**request)["InstanceProfile"]
    if "role" in inputs:
        iam.add_role_to_instance_profile(InstanceProfileName=profile_name, RoleName=inputs["role"])
    return profile_name, with_tags_all(inputs, name=profile_name, **_facts(made, "InstanceProfileId"))


def _tags(inputs: Inputs) -> dict[str, Any]:
    return {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}


def _facts(made: dict[str, Any], id_key: str) -> Inputs:
    """Return the facts that IAM gives for every resource."""
    return {"arn": made["Arn"], "uniqueId": made[id_key], "createDate": made["CreateDate"].isoformat()}


CREATORS = {
    "aws:iam/role:Role": role,
    "aws:iam/serviceLinkedRole:ServiceLinkedRole": service_linked_role,
    "aws:iam/rolePolicy:RolePolicy": role_policy,
    "aws:iam/policy:Policy": policy,
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": role_policy_attachment,
    "aws:iam/instanceProfile:InstanceProfile": instance_profile,
}

"""File systems in moto: EFS and FSx for Lustre."""

import hashlib

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

_EFS = api_names(
    "performanceMode encrypted kmsKeyId throughputMode provisionedThroughputInMibps availabilityZoneName"
)
_EFS_LIFECYCLE = {
    "TransitionToIA": "transitionToIa",
    "TransitionToArchive": "transitionToArchive",
    "TransitionToPrimaryStorageClass": "transitionToPrimaryStorageClass",
}
_LUSTRE = api_names(
    "deploymentType perUnitStorageThroughput dataCompressionType "
    "automaticBackupRetentionDays copyTagsToBackups weeklyMaintenanceStartTime importPath "
    "exportPath autoImportPolicy efaEnabled"
)
MOUNT_NAME_LENGTH = 8


def efs(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    client = clients("efs")
    token = physical_name(name, inputs, "creationToken")
    tags = {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    made = client.create_file_system(CreationToken=token, **picked(inputs, _EFS), **tags)
    identifier = made["FileSystemId"]
    if inputs.get("lifecyclePolicies"):
        policies = [picked(policy, _EFS_LIFECYCLE) for policy in inputs["lifecyclePolicies"]]
        client.put_lifecycle_configuration(FileSystemId=identifier, LifecyclePolicies=policies)
    return identifier, with_tags_all(
        inputs,
        arn=made["FileSystemArn"],
        creationToken=token,
        dnsName=_efs_dns_name(clients, identifier),
        encrypted=made["Encrypted"],
        name=inputs.get("tags", {}).get("Name", ""),
        numberOfMountTargets=0,
        ownerId=clients.account_id,
        performanceMode=made["PerformanceMode"],
    )


def mount_target(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    names = api_names("fileSystemId subnetId securityGroups ipAddress")
    made = clients("efs").create_mount_target(**picked(inputs, names))
    system = inputs["fileSystemId"]
    dns_name = _efs_dns_name(clients, system)
    return made["MountTargetId"], {
        **inputs,
        "availabilityZoneId": made["AvailabilityZoneId"],
        "availabilityZoneName": made["AvailabilityZoneName"],
        "dnsName": dns_name,
        "mountTargetDnsName": f"{made['AvailabilityZoneName']}.{dns_name}",
        "fileSystemArn": clients.arn("elasticfilesystem", f"file-system/{system}"),
        "ipAddress": made["IpAddress"],
        "networkInterfaceId": made["NetworkInterfaceId"],
        "ownerId": clients.account_id,
    }


def file_system_policy(clients: RegionClients, _: str, inputs: Inputs) -> Created:
    identifier = inputs["fileSystemId"]
    clients("efs").put_file_system_policy(FileSystemId=identifier, Policy=inputs["policy"])
    return identifier, inputs


def lustre(clients: RegionClients, name: str, inputs: Inputs) -> Created:
    """Create an aws:fsx/lustreFileSystem:LustreFileSystem; moto has no mount name, so a hash is used."""
    names = api_names("storageCapacity storageType securityGroupIds kmsKeyId fileSystemTypeVersion")
    tags = {"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}
    made = clients("fsx").create_file_system(
        FileSystemType="LUSTRE",
        SubnetIds=[inputs["subnetIds"]],
        LustreConfiguration=picked(inputs, _LUSTRE),
        **picked(inputs, names),
        **tags,
    )["FileSystem"]
    subnet = clients("ec2").describe_subnets(SubnetIds=[inputs["subnetIds"]])["Subnets"][0]
    return made["FileSystemId"], with_tags_all(
        inputs,
        arn=made["ResourceARN"],
        dnsName=made["DNSName"],
        mountName=hashlib.sha256(name.encode()).hexdigest()[:MOUNT_NAME_LENGTH],
        networkInterfaceIds=[],
        ownerId=clients.account_id,
        vpcId=subnet["VpcId"],
    )


def _efs_dns_name(clients: RegionClients, identifier: str) -> str:
    """Return the DNS name: docs.aws.amazon.com/efs/latest/ug/mounting-fs-mount-cmd-dns-name.html."""
    return f"{identifier}.efs.{clients.region}.amazonaws.com"


CREATORS = {
    "aws:efs/fileSystem:FileSystem": efs,
    "aws:efs/mountTarget:MountTarget": mount_target,
    "aws:efs/fileSystemPolicy:FileSystemPolicy": file_system_policy,
    "aws:fsx/lustreFileSystem:LustreFileSystem": lustre,
}

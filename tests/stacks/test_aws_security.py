"""What a reviewer at a bank asks of every shipped AWS stack, read from moto's state."""

import base64
import json
import re
import tomllib
from importlib import import_module

import pytest
import yaml

from stacks.payload import user_data

ANYWHERE = {"0.0.0.0/0", "::/0"}
SECRET = re.compile(r"(?i)(secret|password|token|private.key|AKIA[0-9A-Z]{16})")


def key_of(stack) -> str:
    return stack.rehearsed.outputs["key_arn"]


def launch_templates(stack) -> list[dict]:
    ec2 = stack.client("ec2")
    ids = stack.rehearsed.outputs["launch_template_ids"].values()
    found = [
        ec2.describe_launch_template_versions(LaunchTemplateId=instance_id, Versions=["$Latest"])
        for instance_id in ids
    ]
    return [answer["LaunchTemplateVersions"][0]["LaunchTemplateData"] for answer in found]


def groups_of_the_stack(stack) -> list[dict]:
    vpc = {"Name": "vpc-id", "Values": [stack.rehearsed.outputs["vpc_id"]]}
    return stack.client("ec2").describe_security_groups(Filters=[vpc])["SecurityGroups"]


def buckets(stack) -> list[str]:
    return [uri.removeprefix("s3://") for uri in stack.rehearsed.outputs["bucket_uris"].values()]


def statements(document: str) -> list[dict]:
    return json.loads(document)["Statement"]


def test_nothing_lets_the_internet_in(shipped):
    allowed = [
        (group["GroupName"], ranges)
        for group in groups_of_the_stack(shipped)
        for rule in group["IpPermissions"]
        for ranges in [*rule["IpRanges"], *rule["Ipv6Ranges"]]
        if ranges.get("CidrIp", ranges.get("CidrIpv6")) in ANYWHERE
    ]

    assert len(groups_of_the_stack(shipped)) > 2
    assert allowed == []


def test_ssh_is_closed_where_no_network_is_named(shipped):
    assert shipped.settings.access.ssh_from == {}

    ports = [
        rule for group in groups_of_the_stack(shipped) for rule in group["IpPermissions"] if _covers(rule, 22)
    ]

    assert [rule for rule in ports if rule["IpRanges"] or rule["Ipv6Ranges"]] == []


def _covers(rule: dict, port: int) -> bool:
    return rule["IpProtocol"] == "-1" or rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535)


def test_the_default_security_group_allows_nothing(shipped):
    (default,) = [group for group in groups_of_the_stack(shipped) if group["GroupName"] == "default"]

    assert default["IpPermissions"] == []
    assert default["IpPermissionsEgress"] == []


def test_instances_reach_out_by_few_ports_only(shipped):
    out = [
        (rule["IpProtocol"], rule.get("FromPort"), rule.get("ToPort"))
        for group in groups_of_the_stack(shipped)
        for rule in group["IpPermissionsEgress"]
        if any(ranges["CidrIp"] in ANYWHERE for ranges in rule["IpRanges"])
    ]

    assert out
    assert set(out) <= {
        ("tcp", 443, 443),
        ("tcp", 80, 80),
        ("udp", 53, 53),
        ("tcp", 53, 53),
        ("udp", 123, 123),
    }


def test_every_volume_is_encrypted_with_the_stacks_key(shipped):
    volumes = [
        mapping["Ebs"] for data in launch_templates(shipped) for mapping in data["BlockDeviceMappings"]
    ]

    assert len(volumes) == len(shipped.settings.pools)
    assert {volume["Encrypted"] for volume in volumes} == {True}
    assert {volume["KmsKeyId"] for volume in volumes} == {key_of(shipped)}


def test_the_metadata_service_wants_a_token_and_is_not_for_containers(shipped):
    for data in launch_templates(shipped):
        assert data["MetadataOptions"]["HttpTokens"] == "required"
        assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1


def test_no_instance_gets_a_public_address(shipped):
    subnets = shipped.client("ec2").describe_subnets(
        SubnetIds=list(shipped.rehearsed.outputs["private_subnet_ids"].values())
    )["Subnets"]
    asked = [
        card.get("AssociatePublicIpAddress", False)
        for data in launch_templates(shipped)
        for card in data["NetworkInterfaces"]
    ]

    assert not any(subnet["MapPublicIpOnLaunch"] for subnet in subnets)
    assert not any(asked)


def test_user_data_writes_the_instance_file_and_holds_no_secret(shipped):
    for pool, data in zip(shipped.settings.pools, launch_templates(shipped), strict=True):
        text = base64.b64decode(data["UserData"]).decode()
        files = {file["path"]: file["content"] for file in yaml.safe_load(text)["write_files"]}
        declared = tomllib.loads(files["/etc/gpu-fleet/instance.toml"])

        # the program names what it asks the metadata service for; it is the same text for every stack
        program = files.pop(user_data.PROGRAM)
        assert program == user_data.program()
        assert all(SECRET.search(content) is None for content in files.values())
        assert (declared["stack"], declared["pool"]) == (shipped.settings.name, pool.name)
        assert declared["checkpoint_uri"].removeprefix("s3://").split("/")[0] in buckets(shipped)


def test_every_bucket_is_encrypted_versioned_and_closed_to_the_public(shipped):
    s3 = shipped.client("s3")
    assert len(buckets(shipped)) == 3

    for bucket in buckets(shipped):
        (rule,) = s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
        assert rule["ApplyServerSideEncryptionByDefault"] == {
            "SSEAlgorithm": "aws:kms",
            "KMSMasterKeyID": key_of(shipped),
        }
        assert rule["BucketKeyEnabled"] is True
        assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
        assert set(s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"].values()) == {
            True
        }


def test_every_bucket_refuses_plain_http_and_old_tls(shipped):
    for bucket in buckets(shipped):
        policy = statements(shipped.client("s3").get_bucket_policy(Bucket=bucket)["Policy"])
        denied = [part["Condition"] for part in policy if part["Effect"] == "Deny"]

        assert {"Bool": {"aws:SecureTransport": "false"}} in denied
        assert {"NumericLessThan": {"s3:TlsVersion": "1.2"}} in denied


def test_every_bucket_drops_old_versions_and_unfinished_uploads(shipped):
    for bucket in buckets(shipped):
        rules = shipped.client("s3").get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
        expiry = [
            rule["NoncurrentVersionExpiration"] for rule in rules if "NoncurrentVersionExpiration" in rule
        ]

        assert any("AbortIncompleteMultipartUpload" in rule for rule in rules)
        assert {days["NoncurrentDays"] for days in expiry} == {shipped.settings.storage.old_versions_days}


def test_the_key_turns_every_ninety_days(shipped):
    (key,) = shipped.of_type("aws:kms/key:Key")

    assert shipped.client("kms").get_key_rotation_status(KeyId=key_of(shipped))["KeyRotationEnabled"] is True
    assert key.inputs["rotationPeriodInDays"] == 90  # moto keeps no period


def test_the_key_trusts_only_named_services_under_conditions(shipped):
    policy = statements(
        shipped.client("kms").get_key_policy(KeyId=key_of(shipped), PolicyName="default")["Policy"]
    )
    services = [part for part in policy if "Service" in part["Principal"]]

    anybody = [part for part in policy if part["Principal"] in ("*", {"AWS": "*"})]
    # a role that the account's first build makes cannot be named before it is there
    assert [part["Sid"] for part in anybody] in ([], ["BuildsToTopic"])
    assert all(
        {"kms:CallerAccount", "aws:PrincipalArn"} < part["Condition"]["StringEquals"].keys()
        for part in anybody
    )
    assert services
    assert all("Condition" in part for part in services)


@pytest.mark.parametrize(
    ("token", "key"),
    [
        ("aws:cloudwatch/logGroup:LogGroup", "kmsKeyId"),
        ("aws:sns/topic:Topic", "kmsMasterKeyId"),
        ("aws:efs/fileSystem:FileSystem", "kmsKeyId"),
        ("aws:fsx/lustreFileSystem:LustreFileSystem", "kmsKeyId"),
        ("aws:sqs/queue:Queue", "kmsMasterKeyId"),
    ],
)
def test_whatever_holds_data_is_encrypted_with_the_stacks_key(shipped, token, key):
    assert {resource.inputs.get(key) for resource in shipped.of_type(token)} <= {key_of(shipped)}


def test_every_taggable_resource_carries_the_stacks_tags(shipped):
    untagged = [
        (resource.type, resource.name)
        for resource in shipped.rehearsed.resources
        if _is_taggable(resource.type)
        and _tags(resource.inputs).get("gpu-fleet:stack") != shipped.settings.name
    ]

    assert untagged == []


def _is_taggable(token: str) -> bool:
    package, module, name = token.split(":")
    resource = getattr(
        import_module(f"pulumi_{package}.{module.split('/')[0].replace('lambda', 'lambda_')}"), name
    )
    return hasattr(resource, "tags")


def _tags(inputs: dict) -> dict[str, str]:
    tags = inputs.get("tags", {})
    return tags if isinstance(tags, dict) else {tag["key"]: tag["value"] for tag in tags}


def test_instances_are_tagged_at_launch_with_the_reapers_licence(shipped):
    for pool, data in zip(shipped.settings.pools, launch_templates(shipped), strict=True):
        tagged = {part["ResourceType"]: part["Tags"] for part in data["TagSpecifications"]}

        for kind in ("instance", "volume", "network-interface"):
            assert {"Key": "gpu-fleet:managed", "Value": "true"} in tagged[kind]
            assert {"Key": "gpu-fleet:pool", "Value": pool.name} in tagged[kind]


def test_no_role_may_do_everything_or_anything_to_everything(shipped):
    wide = [
        (resource.name, part["Sid"])
        for resource in shipped.of_type("aws:iam/rolePolicy:RolePolicy")
        for part in statements(resource.inputs["policy"])
        if part["Effect"] == "Allow"
        and any(action in ("*", "s3:*", "ec2:*", "iam:*") for action in part["Action"])
    ]

    assert wide == []


def test_an_instance_may_change_no_tag_but_its_own(shipped):
    tagging = [
        part
        for resource in shipped.of_type("aws:iam/rolePolicy:RolePolicy")
        if resource.name.endswith("-instance")
        for part in statements(resource.inputs["policy"])
        if "ec2:CreateTags" in part["Action"]
    ]

    assert len(tagging) == len(shipped.settings.pools)
    for part in tagging:
        assert part["Condition"]["ForAllValues:StringEquals"]["aws:TagKeys"] == [
            "gpu-fleet:keep-until",
            "gpu-fleet:keep-reason",
            "gpu-fleet:keep-by",
            "gpu-fleet:withdrawn",
            "gpu-fleet:users",
        ]
        assert part["Condition"]["StringEquals"]["ec2:ResourceTag/gpu-fleet:stack"] == shipped.settings.name


def test_exports_hold_no_secret(shipped):
    assert SECRET.search(json.dumps(shipped.rehearsed.outputs)) is None


def test_every_resource_uses_the_stacks_own_provider(shipped):
    (provider,) = [
        registration
        for registration in shipped.rehearsed.registrations
        if registration.type == "pulumi:providers:aws"
    ]

    assert provider.inputs["region"] == shipped.settings.region
    assert [
        resource.name
        for resource in shipped.rehearsed.resources
        if not resource.provider.startswith(provider.urn)
    ] == []

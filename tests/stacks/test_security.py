"""Security requirements of a bank for every stack of either cloud, read from its declaration."""

import base64
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

import yaml

from gpu_fleet_stacks.alicloud import firewall
from gpu_fleet_stacks.payload import instance_file, user_data
from gpu_fleet_stacks.rehearsal import sdk
from gpu_fleet_stacks.settings import Cloud
from tests.stacks.clouds import Declared

ANYWHERE = {"0.0.0.0/0", "::/0", firewall.CLOUD_SERVICES}
SECRET = re.compile(r"(?i)(secret|password|token|private.key|access_key|AKIA[0-9A-Z]{16})")
AWS_RULES = "aws:vpc/securityGroup{}Rule:SecurityGroup{}Rule"
RULE = "alicloud:ecs/securityGroupRule:SecurityGroupRule"
AWS_TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
TEMPLATE = "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"
# Out of the network: HTTPS and HTTP, names, and the time.
FEW = {("tcp", "443/443"), ("tcp", "80/80"), ("udp", "53/53"), ("tcp", "53/53"), ("udp", "123/123")}


@dataclass(frozen=True)
class Rule:
    """A rule of a security group; its peer is a network, or a group of AWS."""

    egress: bool
    protocol: str
    ports: str
    peer: str

    def covers(self, port: int) -> bool:
        first, last = map(int, self.ports.split("/"))
        return self.protocol in ("-1", "all") or first <= port <= last


def rules(found: Declared) -> list[Rule]:
    def of_aws(way: str) -> Iterator[Rule]:
        for rule in found.inputs(AWS_RULES.format(way, way)):
            peer = rule.get("cidrIpv4") or rule.get("cidrIpv6") or rule.get("referencedSecurityGroupId", "")
            ports = f"{rule.get('fromPort', -1)}/{rule.get('toPort', -1)}"
            yield Rule(way == "Egress", rule["ipProtocol"], ports, peer)

    if found.settings.cloud is Cloud.AWS:
        return [*of_aws("Ingress"), *of_aws("Egress")]
    return [
        Rule(rule["type"] == "egress", rule["ipProtocol"], rule["portRange"], rule["cidrIp"])
        for rule in found.inputs(RULE)
    ]


@dataclass(frozen=True)
class Start:
    """Launch settings of a pool's instances.

    Attributes:
        disks: for each disk, whether it is encrypted, and its key.
        metadata: whether a token is required, and the hop limit of an answer; None where Auto Scaling takes
            neither, so that an instance does it by itself.
        tags: tags of each kind of resource that is tagged at launch.
    """

    pool: str
    disks: tuple[tuple[bool, str], ...]
    public: bool
    metadata: tuple[str, int] | None
    tags: dict[str, dict[str, str]]
    user_data: str


def starts(found: Declared) -> list[Start]:
    if found.settings.cloud is Cloud.AWS:
        return [_of_aws(template) for template in found.inputs(AWS_TEMPLATE)]
    return [_of_alicloud(made) for made in found.inputs(TEMPLATE) + found.inputs(CONFIGURATION)]


def _of_aws(template: dict[str, Any]) -> Start:
    disks = [mapping["ebs"] for mapping in template["blockDeviceMappings"]]
    cards, metadata = template["networkInterfaces"], template["metadataOptions"]
    return Start(
        template["tags"]["gpu-fleet:pool"],
        tuple((disk["encrypted"] == "true", disk["kmsKeyId"]) for disk in disks),
        any(card.get("associatePublicIpAddress", "false") != "false" for card in cards),
        (metadata["httpTokens"], metadata["httpPutResponseHopLimit"]),
        {each["resourceType"]: each["tags"] for each in template["tagSpecifications"]},
        template["userData"],
    )


def _of_alicloud(made: dict[str, Any]) -> Start:
    """Read a launch template, or a scaling configuration: its system disk is no mapping."""
    of_configuration = {
        "encrypted": made.get("systemDiskEncrypted"),
        "kmsKeyId": made.get("systemDiskKmsKeyId"),
    }
    disks = (made.get("systemDisk", of_configuration), *made.get("dataDisks", []))
    return Start(
        made["tags"]["gpu-fleet:pool"],
        tuple((disk["encrypted"], disk["kmsKeyId"]) for disk in disks),
        made["internetMaxBandwidthOut"] > 0,
        (made["httpTokens"], made["httpPutResponseHopLimit"]) if "systemDisk" in made else None,
        {"instance": made["tags"]},
        made["userData"],
    )


def key_of(found: Declared) -> set[str]:
    (key,) = found.of_type(found.words.key)
    return {key.outputs["arn"]} if found.settings.cloud is Cloud.AWS else {key.id}


def test_nothing_lets_the_internet_in(either):
    ingress = [rule for rule in rules(either) if not rule.egress]

    assert ingress or either.settings.cloud is Cloud.ALICLOUD
    assert [rule for rule in ingress if rule.peer in ANYWHERE] == []


def test_ssh_is_open_to_the_named_networks_alone(either):
    """On Alibaba Cloud all ports are open between instances of a job, by the networks of their vSwitches."""
    opened = {rule.peer for rule in rules(either) if not rule.egress and rule.covers(22)}
    networks = {ip_network(peer) for peer in opened if "/" in peer}
    if either.settings.cloud is Cloud.ALICLOUD:
        own = ip_network(str(either.settings.network.cidr))
        networks = {network for network in networks if not network.subnet_of(own)}

    assert networks == set(either.settings.access.ssh_from.values())


def test_instances_reach_out_by_few_ports_only(either):
    out = {(rule.protocol, rule.ports) for rule in rules(either) if rule.egress and rule.peer in ANYWHERE}

    assert ("tcp", "443/443") in out
    assert out <= FEW if either.settings.cloud is Cloud.AWS else out == FEW


def test_every_volume_is_encrypted_with_the_stacks_key(either):
    found = starts(either)

    assert {start.pool for start in found} == {pool.name for pool in either.settings.pools}
    assert all(start.disks for start in found)
    assert {disk for start in found for disk in start.disks} == {(True, key) for key in key_of(either)}


def test_the_metadata_service_wants_a_token_and_is_not_for_containers(either):
    pools = {pool.name for pool in either.settings.pools}

    asked = {start.pool: start.metadata for start in starts(either) if start.metadata is not None}
    assert asked == dict.fromkeys(asked, ("required", 1))
    assert either.settings.cloud is Cloud.ALICLOUD or asked.keys() == pools


def test_no_instance_gets_a_public_address(either):
    private = either.inputs("aws:ec2/subnet:Subnet", name="-private-")

    assert not any(start.public for start in starts(either))
    assert not any(subnet["mapPublicIpOnLaunch"] for subnet in private)


def test_user_data_writes_the_instance_file_and_holds_no_secret(either):
    for start in starts(either):
        text = base64.b64decode(start.user_data).decode()
        files = {file["path"]: file["content"] for file in yaml.safe_load(text)["write_files"]}
        declared = tomllib.loads(files[instance_file.PATH])

        # the program names what it asks the metadata service for; it is the same text for every stack
        assert files.pop(user_data.PROGRAM) == user_data.program()
        assert [path for path, content in files.items() if SECRET.search(content)] == []
        said = (declared["cloud"], declared["stack"], declared["pool"])
        assert said == (either.settings.cloud, either.settings.name, start.pool)
        scheme = "s3" if either.settings.cloud is Cloud.AWS else "oss"
        place = f"{scheme}://gpu-fleet-{either.settings.name}-checkpoints"
        assert declared["checkpoint_uri"].startswith(place)


def test_instances_are_tagged_at_launch_with_the_reapers_licence(either):
    kinds = {"instance"} | ({"volume", "network-interface"} if either.settings.cloud is Cloud.AWS else set())
    for start in starts(either):
        licence = {"managed": "true", "pool": start.pool, "stack": either.settings.name}
        assert kinds <= start.tags.keys()
        for tags in start.tags.values():
            assert tags.items() >= {f"gpu-fleet:{key}": value for key, value in licence.items()}.items()
            assert "gpu-fleet:owner" in tags


def test_every_taggable_resource_carries_the_stacks_tags(either):
    untagged = [
        f"{resource.type} {resource.name}"
        for resource in either.rehearsed.resources
        if hasattr(sdk.resource_class(resource.type), "tags")
        and _tags(resource.inputs).get("gpu-fleet:stack") != either.settings.name
    ]

    assert untagged == []


def _tags(inputs: dict[str, Any]) -> dict[str, str]:
    tags = inputs.get("tags", {})
    return tags if isinstance(tags, dict) else {tag["key"]: tag["value"] for tag in tags}


def test_the_key_turns_every_ninety_days(either):
    (key,) = either.inputs(either.words.key)

    if either.settings.cloud is Cloud.AWS:
        assert (key["enableKeyRotation"], key["rotationPeriodInDays"]) == (True, 90)
    else:  # as DescribeKey answers: 90d would be a difference at every update
        assert (key["automaticRotation"], key["rotationInterval"]) == ("Enabled", "7776000s")
        assert key["dkmsInstanceId"].startswith("kst-")


KEY_INPUTS = {
    "aws:cloudwatch/logGroup:LogGroup": "kmsKeyId",
    "aws:sns/topic:Topic": "kmsMasterKeyId",
    "aws:efs/fileSystem:FileSystem": "kmsKeyId",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "kmsKeyId",
    "aws:sqs/queue:Queue": "kmsMasterKeyId",
}


def test_whatever_holds_data_is_encrypted_with_the_stacks_key(either):
    """Buckets and disks have their own tests; CPFS takes no key."""
    used = {resource.inputs.get(key) for kind, key in KEY_INPUTS.items() for resource in either.of_type(kind)}
    stores = [store["encryptConf"] for store in either.inputs("alicloud:log/store:Store")]
    used |= {store["userCmkInfo"]["cmkKeyId"] for store in stores}
    homes = either.inputs("alicloud:nas/fileSystem:FileSystem", name="-home")
    used |= {home["kmsKeyId"] for home in homes}

    assert used == key_of(either)
    assert all(store["enable"] for store in stores)
    assert {home["encryptType"] for home in homes} <= {2}


def test_no_role_may_do_everything_or_anything_to_everything(either):
    allowed = [(role, action) for role, statement in either.statements() for action in statement["Action"]]

    assert [right for right in allowed if right[1] == "*" or right[1].endswith(":*")] == []


def test_exports_hold_no_secret(either):
    assert SECRET.search(json.dumps(either.rehearsed.outputs)) is None


def test_every_resource_uses_the_stacks_own_provider(either):
    (provider,) = either.of_type(f"pulumi:providers:{either.settings.cloud}")
    strange = [made.name for made in either.rehearsed.resources if not made.provider.startswith(provider.urn)]

    assert provider.inputs["region"] == either.settings.region
    assert strange == []


# AWS


def test_the_default_security_group_allows_nothing(declared):
    (default,) = declared.of_type("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup")

    assert not {"ingress", "egress"} & {key for key, value in default.inputs.items() if value}


def test_every_bucket_on_aws_is_encrypted_versioned_private_and_behind_modern_tls(declared):
    buckets = declared.of_type("aws:s3/bucket:Bucket")
    own = {made.id for made in buckets if not made.name.endswith("-access-logs")}
    days = declared.settings.storage.old_versions_days
    (key,) = declared.of_type("aws:kms/key:Key")

    def of(kind: str) -> dict[str, dict[str, Any]]:
        token = f"aws:s3/{kind[0].lower()}{kind[1:]}:{kind}"
        found = {made.inputs["bucket"]: made.inputs for made in declared.of_type(token)}
        assert own <= found.keys()
        return {bucket: inputs for bucket, inputs in found.items() if bucket in own}

    for inputs in of("BucketServerSideEncryptionConfiguration").values():
        (rule,) = inputs["rules"]
        assert rule["bucketKeyEnabled"] is True
        by_key = {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": key.outputs["arn"]}
        assert rule["applyServerSideEncryptionByDefault"] == by_key
    for inputs in of("BucketVersioning").values():
        assert inputs["versioningConfiguration"] == {"status": "Enabled"}
    for inputs in of("BucketPublicAccessBlock").values():
        closed = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
        assert all(inputs[each] is True for each in closed)
    for inputs in of("BucketPolicy").values():
        policy = json.loads(inputs["policy"])["Statement"]
        denied = [part["Condition"] for part in policy if part["Effect"] == "Deny"]
        assert {"Bool": {"aws:SecureTransport": "false"}} in denied
        assert {"NumericLessThan": {"s3:TlsVersion": "1.2"}} in denied
    for inputs in of("BucketLifecycleConfiguration").values():
        kept = [rule.get("noncurrentVersionExpiration", {}).get("noncurrentDays") for rule in inputs["rules"]]
        assert {each for each in kept if each} == {days}
        assert any("abortIncompleteMultipartUpload" in rule for rule in inputs["rules"])


def test_the_key_trusts_only_named_services_under_conditions(declared):
    (key,) = declared.inputs("aws:kms/key:Key")
    policy = json.loads(key["policy"])["Statement"]
    services = [part for part in policy if "Service" in part["Principal"]]
    anybody = [part for part in policy if part["Principal"] in ("*", {"AWS": "*"})]

    # a role that the account's first build makes cannot be named before it is there
    assert [part["Sid"] for part in anybody] in ([], ["BuildsToTopic"])
    for part in anybody:
        assert {"kms:CallerAccount", "aws:PrincipalArn"} < part["Condition"]["StringEquals"].keys()
    assert services
    assert all("Condition" in part for part in services)

"""Order of creation, and the reverse order of deletion."""

import pytest
from hypothesis import HealthCheck, given, settings

from gpu_fleet_stacks.settings import Cloud
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.stacks import alicloud_examples, clouds, examples, registrations
from tests.stacks.alicloud_shapes import stack_files_of_any_shape
from tests.stacks.clouds import Declared
from tests.stacks.deletion_order import encrypted_with, outlived, reached

# What says who may use a bucket or a file system, and how.
SETTINGS = {
    Cloud.AWS: (
        "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
        "aws:s3/bucketVersioning:BucketVersioning",
        "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
        "aws:s3/bucketPolicy:BucketPolicy",
        "aws:efs/fileSystemPolicy:FileSystemPolicy",
        "aws:efs/backupPolicy:BackupPolicy",
    ),
    Cloud.ALICLOUD: (
        "alicloud:oss/bucketAcl:BucketAcl",
        "alicloud:oss/bucketPublicAccessBlock:BucketPublicAccessBlock",
        "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig",
        "alicloud:oss/bucketPolicy:BucketPolicy",
    ),
}
RULES = (
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
)
# What instances go through, and no id in a launch template or a group names.
SURROUNDINGS = {
    Cloud.AWS: (
        *("aws:ec2/route:Route", "aws:ec2/routeTableAssociation:RouteTableAssociation", *RULES),
        *("aws:ec2/vpcEndpoint:VpcEndpoint", "aws:efs/mountTarget:MountTarget"),
    ),
    Cloud.ALICLOUD: (
        *("alicloud:vpc/routeEntry:RouteEntry", "alicloud:vpc/routeTableAttachment:RouteTableAttachment"),
        *("alicloud:vpc/snatEntry:SnatEntry", "alicloud:ecs/eipAssociation:EipAssociation"),
        *("alicloud:vpc/gatewayEndpoint:GatewayEndpoint", "alicloud:nas/accessRule:AccessRule"),
        *("alicloud:privatelink/vpcEndpointZone:VpcEndpointZone", "alicloud:nas/mountTarget:MountTarget"),
        "alicloud:ecs/securityGroupRule:SecurityGroupRule",
    ),
}
NETWORKS = (
    *("aws:ec2/vpc:Vpc", "aws:ec2/securityGroup:SecurityGroup"),
    *("alicloud:vpc/network:Network", "alicloud:vpc/switch:Switch"),
)
OBJECTS = ("aws:s3/bucketObjectv2:BucketObjectv2", "alicloud:oss/bucketObject:BucketObject")
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"
LUSTRE_PORT = 988
# DefaultLongTimeout of alicloud/common.go, for which the provider waits for a deleted group.
ALICLOUDS_PROVIDER_WAITS_S = 1000


def records_of(found: Declared) -> str:
    (records,) = [made for made in found.of_type(found.words.bucket) if made.name.endswith("-records")]
    return records.urn


def test_lustre_waits_for_the_rules_that_let_its_port_in():
    """Otherwise FSx refuses: "do not permit Lustre LNET network traffic on port 988"."""
    declared = registrations.declared(examples.stack(storage={"scratch_gib": 1200}))
    (lustre,) = declared.of_type("aws:fsx/lustreFileSystem:LustreFileSystem")
    rules = [rule for token in RULES for rule in declared.of_type(token)]
    of_lustre = {rule.urn for rule in rules if rule.inputs.get("fromPort") == LUSTRE_PORT}

    assert of_lustre
    assert of_lustre <= set(lustre.dependencies)


def test_instances_have_their_network_and_their_files_until_their_group_is_gone(either):
    needed = {resource.urn for resource in either.of_type(*SURROUNDINGS[either.settings.cloud])}

    assert needed
    assert all(needed <= set(group.dependencies) for group in either.of_type(either.words.group))


def test_each_kind_of_surrounding_is_declared_by_the_stack_that_uses_every_key():
    everything = clouds.declared("alicloud-everything")

    assert [token for token in SURROUNDINGS[Cloud.ALICLOUD] if not everything.of_type(token)] == []


def test_neither_a_drain_hook_nor_the_key_is_ever_deleted_by_pulumi(either):
    """Pulumi deletes dependents of a group first, and without its hook an instance saves nothing.

    Snapshots, images and detached disks of the key are in no state file, so a look at all of it comes first.
    """
    hooks = either.of_type(either.words.hook)

    assert hooks
    assert all(hook.retained for hook in hooks)
    assert [key.retained for key in either.of_type(either.words.key)] == [True]


def test_a_group_that_is_deleted_has_the_time_that_its_instances_take_to_drain(either):
    """AWS's provider waits 10 minutes by default: github.com/hashicorp/terraform-provider-aws/pull/949."""
    longest_s = max(hook["heartbeatTimeout"] for hook in either.inputs(either.words.hook))

    if either.settings.cloud is Cloud.AWS:
        groups = either.of_type(either.words.group)
        assert all(int(group.delete_timeout.removesuffix("s")) >= 2 * longest_s for group in groups)
    else:
        assert longest_s < ALICLOUDS_PROVIDER_WAITS_S


def test_no_configuration_takes_its_group_and_the_instances_away_with_it():
    """With ``force_delete`` the provider deletes the group with its last configuration."""
    configurations = clouds.declared("alicloud-everything").of_type(CONFIGURATION)

    assert configurations
    assert all(made.retained and not made.inputs.get("forceDelete") for made in configurations)


def test_whatever_the_key_encrypts_is_gone_before_the_key_is(either):
    key, before = outlived(either.rehearsed)
    encrypted = encrypted_with(key, either.rehearsed.registrations)
    buckets = either.of_type(either.words.bucket)
    # access logs lie under keys of S3 and OSS
    under_it = [bucket for bucket in buckets if not bucket.name.endswith("-access-logs")]
    stored = [*encrypted, *under_it, *either.of_type("aws:efs/fileSystem:FileSystem")]

    assert len(encrypted) > 5
    assert [made.urn for made in stored if made.urn not in before] == []


def test_the_network_of_an_instance_that_stays_keeps_the_key_of_its_disks(either):
    """A stopped instance is in no group; its network cannot be deleted, so its dependencies stay."""
    _, before = outlived(either.rehearsed)

    assert {resource.urn for resource in either.of_type(*NETWORKS)} <= before


def test_a_kept_key_keeps_the_role_that_its_policy_trusts(declared):
    (key,) = declared.of_type("aws:kms/key:Key")
    (role,) = declared.of_type("aws:iam/serviceLinkedRole:ServiceLinkedRole")

    assert role.urn in key.dependencies


def test_what_stays_keeps_its_settings(either):
    """They are deleted with their bucket or file system, so a failed deletion opens nothing."""
    owners = either.of_type(either.words.bucket)
    if either.settings.cloud is Cloud.AWS:
        owners += either.of_type(either.words.file_system)
    found = either.of_type(*SETTINGS[either.settings.cloud])

    assert {resource.deleted_with for resource in found} == {owner.urn for owner in owners}
    assert all(resource.deleted_with in resource.dependencies for resource in found)


def test_what_is_protected_keeps_its_settings_and_its_alias_through_a_partial_destroy(either):
    """``pulumi destroy --exclude-protected`` keeps only protected resources and their dependencies."""
    words = either.words
    tokens = (words.key, words.alias, words.bucket, words.file_system, *SETTINGS[either.settings.cloud])

    assert {made.protected for made in either.of_type(*tokens)} == {either.settings.protected}


def test_sweep_and_mover_are_gone_before_the_bucket_that_they_write_to_is_deleted(either):
    named = {made.name.rpartition("-")[2]: made.urn for made in either.of_type(either.words.function)}
    stands_on = reached(either.rehearsed.registrations)

    assert {"reaper", "capacity"} <= set(named) <= {"reaper", "capacity", "builds"}
    assert all(records_of(either) in stands_on[named[name]] for name in ("reaper", "capacity"))


def test_what_is_stored_for_instances_and_commands_is_gone_before_its_bucket(either):
    stored = either.of_type(*OBJECTS)

    assert stored
    assert all(records_of(either) in made.dependencies for made in stored)


def on_aws(content) -> Declared:
    stack = from_mapping("test", content)
    with registrations.nowhere():
        return Declared(stack, registrations.run(stack))


def on_alicloud(content) -> Declared:
    stack = alicloud_examples.priced("test", content)
    return Declared(stack, registrations.run(stack))


@pytest.mark.parametrize("count", [3, pytest.param(25, marks=pytest.mark.prove)])
@pytest.mark.parametrize(
    ("shapes", "declare"),
    [(examples.stack_files(), on_aws), (stack_files_of_any_shape(), on_alicloud)],
    ids=["aws", "alicloud"],
)
def test_any_valid_settings_build_and_let_nothing_outlive_its_key(count, shapes, declare):
    @given(content=shapes)
    @settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])
    def build(content):
        found = declare(content)

        key, before = outlived(found.rehearsed)
        made = encrypted_with(key, found.rehearsed.registrations)
        encrypted = [*made, *found.of_type(found.words.bucket)]
        assert [made.urn for made in encrypted if made.urn not in before] == []
        assert len(found.of_type(f"gpu-fleet:{found.settings.cloud}:Fleet")) == len(content["pools"])

    build()

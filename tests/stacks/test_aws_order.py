"""What waits for what on AWS: on the way up, and in the reverse order on the way down."""

import pytest
from hypothesis import HealthCheck, given, settings

from stacks.settings.reader import from_mapping
from tests.stacks import registrations
from tests.stacks.deletion_order import encrypted_with, outlived, reached
from tests.stacks.examples import BUILDING, stack, stack_files

GROUP = "aws:autoscaling/group:Group"
KEY = "aws:kms/key:Key"
BUCKET = "aws:s3/bucket:Bucket"
FILE_SYSTEM = "aws:efs/fileSystem:FileSystem"
# What says who may use a bucket or a file system, and how.
SETTINGS = (
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
    "aws:s3/bucketVersioning:BucketVersioning",
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
    "aws:s3/bucketPolicy:BucketPolicy",
    "aws:efs/fileSystemPolicy:FileSystemPolicy",
    "aws:efs/backupPolicy:BackupPolicy",
)
RULES = (
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
)
# What instances go through, and no id in a launch template or a group names.
SURROUNDINGS = (
    "aws:ec2/route:Route",
    "aws:ec2/routeTableAssociation:RouteTableAssociation",
    "aws:ec2/vpcEndpoint:VpcEndpoint",
    "aws:efs/mountTarget:MountTarget",
    *RULES,
)
LUSTRE_PORT = 988


def test_lustre_waits_for_the_rules_that_let_its_port_in():
    """FSx refuses it otherwise: "do not permit Lustre LNET network traffic on port 988"."""
    declared = registrations.declared(stack(storage={"scratch_gib": 1200}))
    (lustre,) = declared.of_type("aws:fsx/lustreFileSystem:LustreFileSystem")
    rules = {
        rule.urn
        for token in RULES
        for rule in declared.of_type(token)
        if rule.inputs.get("fromPort") == LUSTRE_PORT
    }

    assert rules
    assert rules <= set(lustre.dependencies)


def test_instances_have_their_network_and_their_files_until_their_group_is_gone(declared):
    needed = {resource.urn for token in SURROUNDINGS for resource in declared.of_type(token)}

    assert needed
    assert all(needed <= set(group.dependencies) for group in declared.of_type(GROUP))


def test_the_drain_hook_holds_instances_that_leave_because_their_group_is_deleted(declared):
    """Otherwise Pulumi deletes the hook first, as what depends on the group."""
    hooks = declared.of_type("aws:autoscaling/lifecycleHook:LifecycleHook")

    assert hooks
    assert all(hook.retained for hook in hooks)


def test_a_group_that_is_deleted_has_the_time_that_its_instances_take_to_drain(declared):
    """The provider's own limit is 10 minutes: github.com/hashicorp/terraform-provider-aws/pull/949."""
    longest_s = max(
        hook.inputs["heartbeatTimeout"]
        for hook in declared.of_type("aws:autoscaling/lifecycleHook:LifecycleHook")
    )

    allowed_s = [int(group.delete_timeout.removesuffix("s")) for group in declared.of_type(GROUP)]
    assert all(allowed >= 2 * longest_s for allowed in allowed_s)


def test_whatever_the_key_encrypts_is_gone_before_the_key_is(declared):
    key, before = outlived(declared.rehearsed)
    encrypted = encrypted_with(key, declared.rehearsed.registrations)
    # access logs lie under keys of S3
    under_it = [bucket for bucket in declared.of_type(BUCKET) if not bucket.name.endswith("-access-logs")]
    stored = [*encrypted, *under_it, *declared.of_type(FILE_SYSTEM)]

    assert len(encrypted) > 10
    assert [stored_object.urn for stored_object in stored if stored_object.urn not in before] == []


def test_the_network_of_an_instance_that_stays_keeps_the_key_of_its_disks(declared):
    """A stopped instance is in no group; its network cannot be deleted, and what that stands on stays."""
    _, before = outlived(declared.rehearsed)

    assert {resource.urn for resource in declared.of_type("aws:ec2/vpc:Vpc")} <= before
    assert {resource.urn for resource in declared.of_type("aws:ec2/securityGroup:SecurityGroup")} <= before


def test_only_a_look_at_everything_under_the_key_lets_it_go(declared):
    """Snapshots, images and detached volumes are in no state file, so Pulumi may not delete it at all."""
    assert [key.retained for key in declared.of_type(KEY)] == [True]


def test_a_kept_key_keeps_the_role_that_its_policy_trusts(declared):
    (key,) = declared.of_type(KEY)
    (role,) = declared.of_type("aws:iam/serviceLinkedRole:ServiceLinkedRole")

    assert role.urn in key.dependencies


def test_what_stays_keeps_its_settings(declared):
    """They go with their bucket or file system, so a deletion that fails opens nothing."""
    owners = {resource.urn for token in (BUCKET, FILE_SYSTEM) for resource in declared.of_type(token)}
    found = [resource for token in SETTINGS for resource in declared.of_type(token)]

    assert found
    assert {resource.deleted_with for resource in found} == owners
    assert all(resource.deleted_with in resource.dependencies for resource in found)


def test_what_is_protected_keeps_its_settings_and_its_alias_through_a_partial_destroy(declared):
    """``pulumi destroy --exclude-protected`` keeps what is protected and what that depends on, no more."""
    tokens = (KEY, BUCKET, FILE_SYSTEM, *SETTINGS, "aws:kms/alias:Alias")
    found = {resource.protected for token in tokens for resource in declared.of_type(token)}

    assert found == {declared.settings.protected}


def test_sweep_and_mover_are_gone_before_the_bucket_that_they_write_to_is_deleted(declared):
    (records,) = [resource for resource in declared.of_type(BUCKET) if resource.name.endswith("-records")]
    functions = declared.of_type("aws:lambda/function:Function")

    named = {function.name.rpartition("-")[2]: function for function in functions}
    assert {"reaper", "capacity"} <= set(named) <= {"reaper", "capacity", "builds"}
    assert all(
        records.urn in reached(declared.rehearsed.registrations)[named[name].urn]
        for name in ("reaper", "capacity")
    )


@pytest.mark.parametrize("examples", [3, pytest.param(25, marks=pytest.mark.prove)])
def test_no_setting_lets_anything_outlive_its_key(register, examples):
    @given(content=stack_files())
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    def destroy(content):
        rehearsed = register(from_mapping("test", content))
        key, before = outlived(rehearsed)

        encrypted = [*encrypted_with(key, rehearsed.registrations), *rehearsed.of_type(BUCKET)]

        assert [resource.urn for resource in encrypted if resource.urn not in before] == []

    destroy()


def test_an_image_build_leaves_nothing_that_outlives_its_key():
    rehearsed = registrations.declared(BUILDING)
    key, before = outlived(rehearsed)
    stored = rehearsed.of_type("aws:s3/bucketObjectv2:BucketObjectv2")
    (records,) = [resource for resource in rehearsed.of_type(BUCKET) if resource.name.endswith("-records")]

    assert [
        resource.urn
        for resource in encrypted_with(key, rehearsed.registrations)
        if resource.urn not in before
    ] == []
    assert len(stored) == 4  # what builders and instances fetch, what users' commands read, the accounts
    assert all(records.urn in stored_object.dependencies for stored_object in stored)

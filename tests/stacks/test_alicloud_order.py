"""What waits for what on Alibaba Cloud: on the way up, and in the reverse order on the way down."""

import pytest
from hypothesis import HealthCheck, given, settings

from tests.stacks import alicloud_programs as programs
from tests.stacks.alicloud_examples import priced
from tests.stacks.alicloud_programs import STACKS, inputs, register, shipped
from tests.stacks.deletion_order import encrypted_with, outlived, reached
from tests.stacks.test_alicloud_fleet import stack_files_of_any_shape

KEY = "alicloud:kms/key:Key"
BUCKET = "alicloud:oss/bucket:Bucket"
FILE_SYSTEM = "alicloud:nas/fileSystem:FileSystem"
# What says who may use a bucket, and how.
SETTINGS = (
    "alicloud:oss/bucketAcl:BucketAcl",
    "alicloud:oss/bucketPublicAccessBlock:BucketPublicAccessBlock",
    "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig",
    "alicloud:oss/bucketPolicy:BucketPolicy",
)
GROUP = "alicloud:ess/scalingGroup:ScalingGroup"
HOOK = "alicloud:ess/lifecycleHook:LifecycleHook"
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"
# What instances go through, and no id in a launch template or a group names.
SURROUNDINGS = (
    "alicloud:vpc/routeEntry:RouteEntry",
    "alicloud:vpc/routeTableAttachment:RouteTableAttachment",
    "alicloud:vpc/snatEntry:SnatEntry",
    "alicloud:ecs/eipAssociation:EipAssociation",
    "alicloud:vpc/gatewayEndpoint:GatewayEndpoint",
    "alicloud:privatelink/vpcEndpointZone:VpcEndpointZone",
    "alicloud:ecs/securityGroupRule:SecurityGroupRule",
    "alicloud:nas/accessRule:AccessRule",
    "alicloud:nas/mountTarget:MountTarget",
)
# DefaultLongTimeout of alicloud/common.go, for which the provider waits for a deleted group.
PROVIDER_WAITS_S = 1000


@pytest.fixture(scope="module", params=[*STACKS, "everything"])
def found(request):
    return programs.everything() if request.param == "everything" else shipped(request.param)


def test_instances_have_their_network_and_their_files_until_their_group_is_gone(found):
    needed = {resource.urn for token in SURROUNDINGS for resource in found.of_type(token)}

    assert needed
    assert all(needed <= set(group.dependencies) for group in found.of_type(GROUP))


def test_each_kind_of_surrounding_is_declared_by_the_stack_that_uses_every_key():
    assert [token for token in SURROUNDINGS if not programs.everything().of_type(token)] == []


def test_the_drain_hook_is_never_deleted_before_its_group(found):
    """DeleteLifecycleHook ends the waits under way, and Pulumi deletes first what depends on the group."""
    hooks = found.of_type(HOOK)

    assert hooks
    assert all(hook.retained for hook in hooks)


def test_a_drain_ends_before_the_provider_gives_up_on_a_deleted_group(found):
    assert all(hook["heartbeatTimeout"] < PROVIDER_WAITS_S for hook in inputs(found, HOOK))


def test_no_configuration_takes_its_group_and_the_instances_away_with_it():
    """The provider deletes the group with its last configuration where ``force_delete`` says so."""
    configurations = programs.everything().of_type(CONFIGURATION)

    assert configurations
    assert all(configuration.retained for configuration in configurations)
    assert [
        configuration.name for configuration in configurations if configuration.inputs.get("forceDelete")
    ] == []


def test_whatever_the_key_encrypts_is_gone_before_the_key_is(found):
    key, before = outlived(found)
    encrypted = encrypted_with(key, found.registrations)
    # access logs lie under keys of OSS
    under_it = [bucket for bucket in found.of_type(BUCKET) if not bucket.name.endswith("-access-logs")]
    stored = [*encrypted, *under_it]

    assert len(encrypted) > 5
    assert [stored_object.urn for stored_object in stored if stored_object.urn not in before] == []


def test_the_network_of_an_instance_that_stays_keeps_the_key_of_its_disks(found):
    """A stopped instance is in no group; its network cannot be deleted, and what that stands on stays."""
    _, before = outlived(found)

    assert {resource.urn for resource in found.of_type("alicloud:vpc/network:Network")} <= before
    assert {resource.urn for resource in found.of_type("alicloud:vpc/switch:Switch")} <= before


def test_only_a_look_at_everything_under_the_key_lets_it_go(found):
    """Snapshots, images and detached disks are in no state file, so Pulumi may not delete it at all."""
    assert [key.retained for key in found.of_type(KEY)] == [True]


def test_what_stays_keeps_its_settings(found):
    """They go with their bucket, so a deletion that fails opens nothing."""
    owners = {resource.urn for resource in found.of_type(BUCKET)}
    of_buckets = [resource for token in SETTINGS for resource in found.of_type(token)]

    assert {bucket.deleted_with for bucket in of_buckets} == owners
    assert all(bucket.deleted_with in bucket.dependencies for bucket in of_buckets)


def test_what_is_protected_keeps_its_settings_and_its_alias_through_a_partial_destroy(found):
    """``pulumi destroy --exclude-protected`` keeps what is protected and what that depends on, no more."""
    (key,) = found.of_type(KEY)
    tokens = (BUCKET, FILE_SYSTEM, *SETTINGS, "alicloud:kms/alias:Alias")

    assert {resource.protected for token in tokens for resource in found.of_type(token)} == {key.protected}


def test_sweep_and_mover_are_gone_before_the_bucket_that_they_write_to_is_deleted(found):
    (records,) = [resource for resource in found.of_type(BUCKET) if resource.name.endswith("-records")]
    functions = found.of_type("alicloud:fc/v3Function:V3Function")

    named = {function.name.rpartition("-")[2]: function for function in functions}
    assert {"reaper", "capacity"} <= set(named) <= {"reaper", "capacity", "builds"}
    assert all(
        records.urn in reached(found.registrations)[named[name].urn] for name in ("reaper", "capacity")
    )


@pytest.mark.parametrize("examples", [3, pytest.param(25, marks=pytest.mark.prove)])
def test_no_setting_lets_anything_outlive_its_key(examples):
    @given(content=stack_files_of_any_shape())
    @settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow])
    def destroy(content):
        rehearsed = register(priced("test", content))
        key, before = outlived(rehearsed)

        encrypted = [*encrypted_with(key, rehearsed.registrations), *rehearsed.of_type(BUCKET)]

        assert [resource.urn for resource in encrypted if resource.urn not in before] == []

    destroy()


def test_an_image_build_leaves_nothing_that_outlives_its_key():
    rehearsed = programs.everything()
    stored = rehearsed.of_type("alicloud:oss/bucketObject:BucketObject")
    _, before = outlived(rehearsed)
    (records,) = [resource for resource in rehearsed.of_type(BUCKET) if resource.name.endswith("-records")]

    assert stored
    assert all(stored_object.urn in before for stored_object in stored)
    assert all(records.urn in stored_object.dependencies for stored_object in stored)

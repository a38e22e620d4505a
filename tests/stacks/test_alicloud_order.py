"""What waits for what on Alibaba Cloud: on the way up, and in the reverse order on the way down."""

import pytest

from tests.stacks import alicloud_programs as programs
from tests.stacks.alicloud_programs import STACKS, inputs, shipped

GROUP = "alicloud:ess/scalingGroup:ScalingGroup"
HOOK = "alicloud:ess/lifecycleHook:LifecycleHook"
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"
# What machines go through, and no id in a launch template or a group names.
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


def test_machines_have_their_network_and_their_files_until_their_group_is_gone(found):
    needed = {one.urn for token in SURROUNDINGS for one in found.of_type(token)}

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


def test_no_configuration_takes_its_group_and_the_machines_away_with_it():
    """The provider deletes the group with its last configuration where ``force_delete`` says so."""
    configurations = programs.everything().of_type(CONFIGURATION)

    assert configurations
    assert all(one.retained for one in configurations)
    assert [one.name for one in configurations if one.inputs.get("forceDelete")] == []

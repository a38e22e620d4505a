"""What waits for what on AWS: on the way up, and in the reverse order on the way down."""

GROUP = "aws:autoscaling/group:Group"
RULES = (
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
)
# What machines go through, and no id in a launch template or a group names.
SURROUNDINGS = (
    "aws:ec2/route:Route",
    "aws:ec2/routeTableAssociation:RouteTableAssociation",
    "aws:ec2/vpcEndpoint:VpcEndpoint",
    "aws:efs/mountTarget:MountTarget",
    *RULES,
)
LUSTRE_PORT = 988


def test_lustre_waits_for_the_rules_that_let_its_port_in(prod):
    """FSx refuses it otherwise: "do not permit Lustre LNET network traffic on port 988"."""
    (lustre,) = prod.of_type("aws:fsx/lustreFileSystem:LustreFileSystem")
    rules = {
        rule.urn
        for token in RULES
        for rule in prod.of_type(token)
        if rule.inputs.get("fromPort") == LUSTRE_PORT
    }

    assert rules
    assert rules <= set(lustre.dependencies)


def test_machines_have_their_network_and_their_files_until_their_group_is_gone(shipped):
    needed = {one.urn for token in SURROUNDINGS for one in shipped.of_type(token)}

    assert needed
    assert all(needed <= set(group.dependencies) for group in shipped.of_type(GROUP))


def test_the_drain_hook_holds_machines_that_leave_because_their_group_is_deleted(shipped):
    """Otherwise Pulumi deletes the hook first, as what depends on the group."""
    hooks = shipped.of_type("aws:autoscaling/lifecycleHook:LifecycleHook")

    assert hooks
    assert all(hook.retained for hook in hooks)


def test_a_group_that_is_deleted_has_the_time_that_its_machines_take_to_drain(shipped):
    """The provider's own limit is 10 minutes: github.com/hashicorp/terraform-provider-aws/pull/949."""
    longest_s = max(
        hook.inputs["heartbeatTimeout"]
        for hook in shipped.of_type("aws:autoscaling/lifecycleHook:LifecycleHook")
    )

    allowed_s = [int(group.delete_timeout.removesuffix("s")) for group in shipped.of_type(GROUP)]
    assert all(allowed >= 2 * longest_s for allowed in allowed_s)

"""What a reviewer at a bank looks for in the Alibaba Cloud stacks."""

import base64
import io
import itertools
import json
import tomllib
import zipfile

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from image.reaper import policy as policies
from stacks.alicloud import firewall
from stacks.alicloud.network import private_networks
from stacks.payload import instance_file, user_data
from stacks.rehearsal import sdk
from stacks.settings import stack_files
from tests.stacks import alicloud_programs as programs
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.alicloud_programs import STACKS, inputs, register, role_statements, shipped, statements

RULE = "alicloud:ecs/securityGroupRule:SecurityGroupRule"
TEMPLATE = "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate"
CONFIGURATION = "alicloud:ess/scalingConfiguration:ScalingConfiguration"
ENDS = {"ecs:StopInstances", "ecs:DeleteInstances", "ecs:DeleteInstance", "ecs:StopInstance"}


@pytest.fixture(scope="module", params=[*STACKS, "everything"])
def found(request):
    return programs.everything() if request.param == "everything" else shipped(request.param)


@pytest.fixture(scope="module")
def everything():
    return programs.everything()


def settings_of(found):
    return stack_files.settings_of(found.stack) if found.stack in STACKS else programs.EVERYTHING


def key_ids(found):
    return {resource.id for resource in found.of_type("alicloud:kms/key:Key")}


def test_nothing_lets_the_internet_in(found):
    ingress = [rule for rule in inputs(found, RULE) if rule["type"] == "ingress"]

    assert [rule for rule in ingress if rule["cidrIp"] in ("0.0.0.0/0", "::/0")] == []


def test_no_rule_names_a_group_since_enterprise_groups_know_none(found):
    assert {
        group["securityGroupType"] for group in inputs(found, "alicloud:ecs/securityGroup:SecurityGroup")
    } == {"enterprise"}
    assert [rule for rule in inputs(found, RULE) if "sourceSecurityGroupId" in rule] == []


@pytest.mark.parametrize("name", STACKS)
def test_ssh_is_closed_where_no_network_is_named(name):
    assert [rule for rule in inputs(shipped(name), RULE) if rule["portRange"] == "22/22"] == []


def test_ssh_is_open_to_the_named_networks_alone(everything):
    opened = [rule["cidrIp"] for rule in inputs(everything, RULE) if rule["portRange"] == "22/22"]

    assert set(opened) == {"198.51.100.0/24"}


def rules_of(settings):
    return firewall.rules(settings, private_networks(settings))


def test_instances_of_one_job_reach_each_other_through_their_vswitches_both_ways():
    settings = stack(pools=[pool(zones=["cn-shenzhen-e"])])

    everything_open = [rule for rule in rules_of(settings) if rule.protocol == "all"]

    assert {rule.egress for rule in everything_open} == {True, False}
    assert {rule.peer for rule in everything_open} == {private_networks(settings)["cn-shenzhen-e"]}


def test_a_lone_instance_takes_no_ingress():
    settings = stack(pools=[pool(size={"min": 0, "desired": 1, "max": 1})])

    assert [rule for rule in rules_of(settings) if not rule.egress] == []


def test_every_volume_is_encrypted_with_the_stacks_key(found):
    for template in inputs(found, TEMPLATE):
        for disk in (template["systemDisk"], *template.get("dataDisks", [])):
            assert disk["encrypted"] is True
            assert disk["kmsKeyId"] in key_ids(found)
    for configuration in inputs(found, CONFIGURATION):
        assert configuration["systemDiskEncrypted"] is True
        assert configuration["systemDiskKmsKeyId"] in key_ids(found)
        for disk in configuration.get("dataDisks", []):
            assert disk["encrypted"] is True
            assert disk["kmsKeyId"] in key_ids(found)


def test_the_metadata_service_wants_a_token_and_is_not_for_containers(found):
    for template in inputs(found, TEMPLATE):
        assert template["httpTokens"] == "required"
        assert template["httpPutResponseHopLimit"] == 1


def test_an_instance_that_starts_without_a_token_may_harden_itself_and_only_its_own_pool(everything):
    (harden,) = [
        statement
        for statement in role_statements(everything, "cluster-instance")
        if statement["Action"] == ["ecs:ModifyInstanceMetadataOptions"]
    ]

    assert harden["Condition"]["StringEquals"] == {
        "acs:ResourceTag/gpu-fleet:stack": ["test"],
        "acs:ResourceTag/gpu-fleet:pool": ["cluster"],
        "acs:ResourceTag/gpu-fleet:managed": ["true"],
    }


def test_an_instance_with_tokens_from_the_start_may_not_change_its_metadata(everything):
    actions = {
        action for statement in role_statements(everything, "dev-instance") for action in statement["Action"]
    }

    assert "ecs:ModifyInstanceMetadataOptions" not in actions


def test_no_instance_gets_a_public_address(found):
    for resource in [*inputs(found, TEMPLATE), *inputs(found, CONFIGURATION)]:
        assert resource["internetMaxBandwidthOut"] == 0


def test_the_key_turns_every_ninety_days(found):
    (key,) = inputs(found, "alicloud:kms/key:Key")

    # as DescribeKey answers: 90d would be a difference at every update
    assert (key["automaticRotation"], key["rotationInterval"]) == ("Enabled", "7776000s")
    assert key["dkmsInstanceId"].startswith("kst-")


def takes_logs(bucket, buckets):
    """Whether it holds the access logs of the others, and nothing else."""
    return bucket["bucket"] in {other.get("logging", {}).get("targetBucket") for other in buckets}


def test_every_bucket_is_encrypted_versioned_and_closed_to_the_public(found):
    buckets = inputs(found, "alicloud:oss/bucket:Bucket")
    for bucket in buckets:
        assert bucket["versioning"] == {"status": "Enabled"}
        encryption = bucket["serverSideEncryptionRule"]
        if takes_logs(bucket, buckets):
            assert encryption == {"sseAlgorithm": "AES256"}
        else:
            assert encryption["sseAlgorithm"] == "KMS"
            assert encryption["kmsMasterKeyId"] in key_ids(found)
    assert {resource["acl"] for resource in inputs(found, "alicloud:oss/bucketAcl:BucketAcl")} == {"private"}
    blocks = inputs(found, "alicloud:oss/bucketPublicAccessBlock:BucketPublicAccessBlock")
    assert [block["blockPublicAccess"] for block in blocks] == [True] * len(buckets)


def test_every_bucket_drops_old_versions_and_unfinished_uploads(found):
    days = settings_of(found).storage.old_versions_days
    buckets = inputs(found, "alicloud:oss/bucket:Bucket")
    for bucket in (bucket for bucket in buckets if not takes_logs(bucket, buckets)):
        rules = {rule["id"]: rule for rule in bucket["lifecycleRules"]}
        assert rules["leftovers"]["prefix"] == ""
        assert rules["leftovers"]["noncurrentVersionExpirations"] == [{"days": days}]
        assert rules["leftovers"]["abortMultipartUploads"] == [{"days": 7}]
        assert all(rule["enabled"] for rule in rules.values())


ACTIONS = ("expirations", "noncurrentVersionExpirations", "abortMultipartUploads")


def test_no_bucket_has_two_lifecycle_rules_for_one_prefix(found):
    for bucket in inputs(found, "alicloud:oss/bucket:Bucket"):
        prefixes = [rule["prefix"] for rule in bucket["lifecycleRules"]]
        assert len(set(prefixes)) == len(prefixes)


def test_a_bucket_whose_lifecycle_rules_do_the_same_below_one_another_says_so(found):
    for bucket in inputs(found, "alicloud:oss/bucket:Bucket"):
        overlapping = {
            action
            for permutation, other in itertools.permutations(bucket["lifecycleRules"], 2)
            if other["prefix"].startswith(permutation["prefix"])
            for action in ACTIONS
            if action in permutation and action in other
        }
        assert bucket["lifecycleRuleAllowSameActionOverlap"] is bool(overlapping)
        assert "abortMultipartUploads" not in overlapping


def test_every_bucket_refuses_plain_http_and_old_tls(found):
    policies = inputs(found, "alicloud:oss/bucketPolicy:BucketPolicy")

    for policy in policies:
        denial, *_ = statements(policy["policy"])
        assert denial["Effect"] == "Deny"
        assert denial["Principal"] == ["*"]
        assert denial["Condition"] == {"Bool": {"acs:SecureTransport": ["false"]}}
        assert denial["Resource"][1] == denial["Resource"][0] + "/*"
    versions = [
        resource["tlsVersions"]
        for resource in inputs(found, "alicloud:oss/bucketHttpsConfig:BucketHttpsConfig")
    ]
    assert versions == [["TLSv1.2", "TLSv1.3"]] * len(policies)


def test_a_bucket_lets_only_the_builder_read_its_recipe_from_inside_the_network(everything):
    allowed = [
        statement
        for policy in inputs(everything, "alicloud:oss/bucketPolicy:BucketPolicy")
        for statement in statements(policy["policy"])
        if statement["Effect"] == "Allow"
    ]

    (vpc,) = everything.of_type("alicloud:vpc/network:Network")
    (recipe,) = inputs(everything, "alicloud:oss/bucketObject:BucketObject", name="-payload")
    (only,) = allowed
    assert only["Action"] == ["oss:GetObject"]
    assert only["Condition"] == {"StringEquals": {"acs:SourceVpc": [vpc.id]}}
    assert only["Resource"][0].endswith(f"-records-1234567890123456/{recipe['key']}")


def test_a_bucket_of_a_stack_without_a_build_grants_nothing():
    assert stack_files.settings_of("alicloud-dev").image.base_id is None
    for policy in inputs(shipped("alicloud-dev"), "alicloud:oss/bucketPolicy:BucketPolicy"):
        assert {statement["Effect"] for statement in statements(policy["policy"])} == {"Deny"}


def test_a_bucket_does_not_fight_over_its_policy(found):
    assert all(
        "policy" in resource.ignored_changes for resource in found.of_type("alicloud:oss/bucket:Bucket")
    )


def test_homes_are_encrypted_with_the_stacks_key_and_mounted_from_the_network_alone(found):
    homes = [
        resource
        for resource in inputs(found, "alicloud:nas/fileSystem:FileSystem")
        if resource["protocolType"] == "NFS"
    ]
    private = {
        str(part["cidrBlock"]) for part in inputs(found, "alicloud:vpc/switch:Switch", name="-private-")
    }

    assert [(home["encryptType"], home["kmsKeyId"] in key_ids(found)) for home in homes] == [(2, True)]
    rules = inputs(found, "alicloud:nas/accessRule:AccessRule")
    assert {rule["sourceCidrIp"] for rule in rules} == private


def test_whatever_holds_data_is_encrypted_with_the_stacks_key(found):
    """Buckets and disks have tests of their own; CPFS takes no key."""
    stores = inputs(found, "alicloud:log/store:Store")
    homes = inputs(found, "alicloud:nas/fileSystem:FileSystem", name="-home")
    keys = [store["encryptConf"]["userCmkInfo"]["cmkKeyId"] for store in stores]

    builds = {"builds"} if inputs(found, "alicloud:ecs/ecsImagePipeline:EcsImagePipeline") else set()
    assert {store["logstoreName"] for store in stores} == {"capacity", "flow", "instances", "reaper", *builds}
    assert {store["encryptConf"]["enable"] for store in stores} == {True}
    assert {*keys, *(home["kmsKeyId"] for home in homes)} == key_ids(found)


def test_every_connection_is_on_record(found):
    (log,) = inputs(found, "alicloud:vpc/flowLog:FlowLog")

    assert (log["trafficType"], log["status"]) == ("All", "Active")


def test_every_taggable_resource_carries_the_stacks_tags(found):
    untagged = [
        f"{resource.type} {resource.name}"
        for resource in found.resources
        if hasattr(sdk.resource_class(resource.type), "tags")
        and resource.inputs.get("tags", {}).get("gpu-fleet:stack") != settings_of(found).name
    ]

    assert untagged == []


def test_instances_are_tagged_at_launch_with_the_reapers_licence(found):
    starts = [*inputs(found, TEMPLATE), *inputs(found, CONFIGURATION)]

    assert {start["tags"]["gpu-fleet:managed"] for start in starts} == {"true"}
    assert all(
        {"gpu-fleet:pool", "gpu-fleet:owner", "gpu-fleet:stack"} <= start["tags"].keys() for start in starts
    )


def test_a_protected_stack_protects_what_holds_data(everything):
    stateful = {"alicloud:kms/key:Key", "alicloud:oss/bucket:Bucket", "alicloud:nas/fileSystem:FileSystem"}
    found = [resource for resource in everything.resources if resource.type in stateful]

    assert {resource.type for resource in found} == stateful
    assert [resource.name for resource in found if not resource.protected] == []
    (key,) = inputs(everything, "alicloud:kms/key:Key")
    assert key["deletionProtection"] == "Enabled"
    groups = inputs(everything, "alicloud:ess/scalingGroup:ScalingGroup")
    assert all(group["groupDeletionProtection"] for group in groups)


def test_no_role_may_do_everything_or_anything_to_everything(found):
    allowed = [
        action
        for policy in inputs(found, "alicloud:ram/policy:Policy")
        for statement in statements(policy["policyDocument"])
        if statement["Effect"] == "Allow"
        for action in statement["Action"]
    ]

    assert [action for action in allowed if action == "*" or action.endswith(":*")] == []


def test_the_sweep_may_end_managed_instances_of_its_stack_alone(found):
    ends = [
        statement
        for statement in role_statements(found, "-reaper")
        if statement["Effect"] == "Allow" and ENDS & set(statement["Action"])
    ]

    assert [end["Condition"]["StringEquals"] for end in ends] == [
        {
            "acs:ResourceTag/gpu-fleet:managed": ["true"],
            "acs:ResourceTag/gpu-fleet:stack": [settings_of(found).name],
        }
    ]


def test_the_sweep_may_read_heartbeats_under_the_names_that_cloudmonitor_checks(found):
    allowed = {action for statement in role_statements(found, "-reaper") for action in statement["Action"]}

    assert {"cms:QueryMetricLast", "cms:QueryMetricList"} <= allowed


def test_exports_hold_no_secret(found):
    words = json.dumps(found.outputs).lower()

    assert not any(word in words for word in ("secret", "password", "access_key", "token"))


def test_every_resource_uses_the_stacks_own_provider(found):
    (provider,) = [
        registration
        for registration in found.registrations
        if registration.type == "pulumi:providers:alicloud"
    ]

    assert provider.inputs["region"] == settings_of(found).region
    assert [
        resource.name for resource in found.resources if not resource.provider.startswith(provider.urn)
    ] == []


def test_instances_reach_out_by_few_ports_only(found):
    out = [
        (rule["ipProtocol"], rule["portRange"])
        for rule in inputs(found, RULE)
        if rule["type"] == "egress" and rule["cidrIp"] in (firewall.ANYWHERE, firewall.CLOUD_SERVICES)
    ]

    assert set(out) == {
        ("tcp", "443/443"),
        ("tcp", "80/80"),
        ("udp", "53/53"),
        ("tcp", "53/53"),
        ("udp", "123/123"),
    }


def test_the_sweep_is_denied_what_it_must_never_do_whatever_else_is_attached(everything):
    denials = [
        statement for statement in role_statements(everything, "-reaper") if statement["Effect"] == "Deny"
    ]

    conditions = [denial["Condition"] for denial in denials if ENDS & set(denial["Action"])]
    assert {"StringNotEquals": {"acs:ResourceTag/gpu-fleet:managed": ["true"]}} in conditions
    assert {"StringNotEquals": {"acs:ResourceTag/gpu-fleet:stack": ["test"]}} in conditions
    assert {"StringLike": {"acs:ResourceTag/gpu-fleet:protected": ["*"]}} in conditions


def test_the_sweep_removes_leftovers_only_where_the_stack_says_so():
    def actions(settings):
        statements_ = role_statements(register(settings), "-reaper")
        return {
            action
            for statement in statements_
            if statement["Effect"] == "Allow"
            for action in statement["Action"]
        }

    assert "ecs:DeleteDisk" not in actions(stack())
    assert "ecs:DeleteDisk" in actions(stack(reaper={"leftovers": {"remove": True}}))


def test_an_instance_lets_go_of_instances_of_its_own_pools_groups_alone(everything):
    (lets_go,) = [
        statement
        for statement in role_statements(everything, "dev-instance")
        if "ess:CompleteLifecycleAction" in statement["Action"]
    ]
    (group,) = inputs(everything, "alicloud:ess/scalingGroup:ScalingGroup", name="-dev")

    conditions = lets_go["Condition"]["StringEquals"]
    assert conditions == {
        "acs:ResourceTag/gpu-fleet:stack": ["test"],
        "acs:ResourceTag/gpu-fleet:pool": ["dev"],
        "acs:ResourceTag/gpu-fleet:managed": ["true"],
    }
    assert {key: [group["tags"][key.removeprefix("acs:ResourceTag/")]] for key in conditions} == conditions


def test_the_endpoint_lets_data_go_to_the_stacks_own_buckets_only(everything):
    (endpoint,) = inputs(everything, "alicloud:privatelink/vpcEndpoint:VpcEndpoint")
    (statement,) = json.loads(endpoint["policyDocument"])["Statement"]

    assert all("gpu-fleet-test-" in resource for resource in statement["Resource"])


def test_user_data_writes_the_instance_file_and_holds_no_secret(found):
    for resource in [*inputs(found, TEMPLATE), *inputs(found, CONFIGURATION)]:
        content = yaml.safe_load(base64.b64decode(resource["userData"]))
        files = {file["path"]: file["content"] for file in content["write_files"]}
        instance = tomllib.loads(files[instance_file.PATH])
        assert instance["cloud"] == "alicloud"
        assert instance["checkpoint_uri"].startswith("oss://gpu-fleet-")
        words = (files[instance_file.PATH] + files[user_data.PAYLOAD_FILE]).lower()
        assert not any(word in words for word in ("secret", "password", "access_key", "token"))


def test_a_functions_archive_carries_its_modules_and_its_policy(found):
    functions = {
        resource["functionName"]: resource for resource in inputs(found, "alicloud:fc/v3Function:V3Function")
    }
    (reaper,) = [function for name, function in functions.items() if name.endswith("-reaper")]

    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(reaper["code"]["zipFile"])))

    policy = json.loads(archive.read("policy.json"))
    assert policy["cloud"] == "alicloud"
    assert set(policy["pools"]) == {pool.name for pool in settings_of(found).pools}
    assert "image/reaper/__init__.py" in archive.namelist()


def test_users_find_the_policy_of_the_sweep_under_the_stacks_own_key(found):
    (stored,) = inputs(found, "alicloud:oss/bucketObject:BucketObject", name="-reaper-policy")
    (records,) = inputs(found, "alicloud:oss/bucket:Bucket", name="-records")

    assert (stored["key"], stored["acl"]) == ("reaper/policy.json", "private")
    assert stored["bucket"] == settings_of(found).bucket_name("records")
    assert stored["content"] == found.outputs["policy"]
    assert policies.parse(stored["content"]).cloud == "alicloud"
    assert stored["serverSideEncryption"] == "KMS"
    assert stored["kmsKeyId"] == records["serverSideEncryptionRule"]["kmsMasterKeyId"]


@given(st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from(["none", "one", "per_zone"]))
def test_whatever_the_shape_of_a_pool_the_internet_stays_out(instances, erdma, home, nat):
    kinds = ["ecs.gn8v.4xlarge"] if erdma else ["ecs.gn7i-c8g1.2xlarge"]
    settings = stack(
        network={
            "cidr": "10.0.0.0/16",
            "zones": ["cn-shenzhen-d"],
            "nat": nat,
            "interface_endpoints": nat == "none",
        },
        storage={"kms_instance_id": "kst-1", "home": home},
        pools=[pool(types=kinds, erdma=erdma, size={"min": 0, "desired": 0, "max": instances})],
    )

    rules = rules_of(settings)

    assert len({rule.label for rule in rules}) == len(rules)
    assert all(rule.peer.startswith("10.0.") for rule in rules if not rule.egress)
    reaches_out = any(rule.peer == firewall.ANYWHERE for rule in rules)
    assert reaches_out is (nat != "none")


def test_through_the_gateway_data_leaves_only_into_the_stacks_own_buckets(found):
    """OSS wants a policy on its gateway endpoint (alicloud_vpc_gateway_endpoint, policy_document)."""
    (endpoint,) = inputs(found, "alicloud:vpc/gatewayEndpoint:GatewayEndpoint")

    allowed = statements(endpoint["policyDocument"])
    assert {statement["Effect"] for statement in allowed} == {"Allow"}
    anywhere = [statement["Action"] for statement in allowed if "*" in statement["Resource"]]
    assert anywhere == [["oss:GetObject"]]
    own = f"acs:oss:*:{settings_of(found).account_id}:gpu-fleet-{settings_of(found).name}-*"
    (everything,) = [statement["Resource"] for statement in allowed if "oss:*" in statement["Action"]]
    assert everything == [own, f"{own}/*"]

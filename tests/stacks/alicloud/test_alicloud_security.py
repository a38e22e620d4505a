"""Security requirements of a bank that concern only the Alibaba Cloud stacks."""

import base64
import io
import itertools
import json
import zipfile

from hypothesis import given
from hypothesis import strategies as st

from gpu_fleet_image.core import policy as policies
from gpu_fleet_stacks.alicloud import firewall
from gpu_fleet_stacks.alicloud.network import private_networks
from tests.stacks.alicloud_examples import pool, stack
from tests.stacks.alicloud_programs import statements

BUCKET, BUCKET_POLICY = "alicloud:oss/bucket:Bucket", "alicloud:oss/bucketPolicy:BucketPolicy"


def key_id(found) -> str:
    (key,) = found.of_type(found.words.key)
    return key.id


def test_no_rule_names_a_group_since_enterprise_groups_know_none(alicloud):
    groups = alicloud.inputs("alicloud:ecs/securityGroup:SecurityGroup")
    rules = alicloud.inputs("alicloud:ecs/securityGroupRule:SecurityGroupRule")

    assert {group["securityGroupType"] for group in groups} == {"enterprise"}
    assert [rule for rule in rules if "sourceSecurityGroupId" in rule] == []


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


@given(st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from(["none", "one", "per_zone"]))
def test_whatever_the_shape_of_a_pool_the_internet_stays_out(instances, erdma, home, nat):
    kinds = ["ecs.gn8v.4xlarge"] if erdma else ["ecs.gn7i-c8g1.2xlarge"]
    network = {"cidr": "10.0.0.0/16", "zones": ["cn-shenzhen-d"], "nat": nat}
    settings = stack(
        network=network | {"interface_endpoints": nat == "none"},
        storage={"kms_instance_id": "kst-1", "home": home},
        pools=[pool(types=kinds, erdma=erdma, size={"min": 0, "desired": 0, "max": instances})],
    )

    rules = rules_of(settings)

    assert len({rule.label for rule in rules}) == len(rules)
    assert all(rule.peer.startswith("10.0.") for rule in rules if not rule.egress)
    reaches_out = any(rule.peer == firewall.ANYWHERE for rule in rules)
    assert reaches_out is (nat != "none")


# buckets


def takes_logs(bucket, buckets):
    """Return whether a bucket holds only the access logs of others."""
    return bucket["bucket"] in {other.get("logging", {}).get("targetBucket") for other in buckets}


def test_every_bucket_is_encrypted_versioned_and_closed_to_the_public(alicloud):
    buckets = alicloud.inputs(BUCKET)
    by_key = {"sseAlgorithm": "KMS", "kmsMasterKeyId": key_id(alicloud)}
    for bucket in buckets:
        encryption = bucket["serverSideEncryptionRule"]
        expected = {"sseAlgorithm": "AES256"} if takes_logs(bucket, buckets) else by_key
        assert bucket["versioning"] == {"status": "Enabled"}
        assert expected.items() <= encryption.items()
    assert {made["acl"] for made in alicloud.inputs("alicloud:oss/bucketAcl:BucketAcl")} == {"private"}
    blocks = alicloud.inputs("alicloud:oss/bucketPublicAccessBlock:BucketPublicAccessBlock")
    assert [block["blockPublicAccess"] for block in blocks] == [True] * len(buckets)


def test_lifecycle_rules_drop_old_versions_once_a_prefix_and_say_where_they_overlap(alicloud):
    days, buckets = alicloud.settings.storage.old_versions_days, alicloud.inputs(BUCKET)
    for bucket in buckets:
        rules = bucket["lifecycleRules"]
        assert len({rule["prefix"] for rule in rules}) == len(rules)
        overlapping = {
            action
            for rule, other in itertools.permutations(rules, 2)
            if other["prefix"].startswith(rule["prefix"])
            for action in ("expirations", "noncurrentVersionExpirations", "abortMultipartUploads")
            if action in rule and action in other
        }
        assert bucket["lifecycleRuleAllowSameActionOverlap"] is bool(overlapping)
        assert "abortMultipartUploads" not in overlapping
        if not takes_logs(bucket, buckets):
            (leftovers,) = [rule for rule in rules if rule["id"] == "leftovers"]
            assert leftovers["prefix"] == ""
            assert leftovers["noncurrentVersionExpirations"] == [{"days": days}]
            assert leftovers["abortMultipartUploads"] == [{"days": 7}]
            assert all(rule["enabled"] for rule in rules)


def test_every_bucket_refuses_plain_http_and_old_tls(alicloud):
    of_buckets = alicloud.inputs(BUCKET_POLICY)

    for policy in of_buckets:
        denial, *_ = statements(policy["policy"])
        assert (denial["Effect"], denial["Principal"]) == ("Deny", ["*"])
        assert denial["Condition"] == {"Bool": {"acs:SecureTransport": ["false"]}}
        assert denial["Resource"][1] == denial["Resource"][0] + "/*"
    configured = alicloud.inputs("alicloud:oss/bucketHttpsConfig:BucketHttpsConfig")
    assert [made["tlsVersions"] for made in configured] == [["TLSv1.2", "TLSv1.3"]] * len(of_buckets)
    assert all("policy" in bucket.ignored_changes for bucket in alicloud.of_type(BUCKET)), "it fights over it"


def test_a_bucket_lets_only_the_builder_read_its_recipe_from_inside_the_network(alicloud):
    stated = [part for made in alicloud.inputs(BUCKET_POLICY) for part in statements(made["policy"])]
    allowed = [part for part in stated if part["Effect"] == "Allow"]
    if alicloud.settings.image.base_id is None:
        assert allowed == []
        return

    (vpc,) = alicloud.of_type("alicloud:vpc/network:Network")
    (recipe,) = alicloud.inputs("alicloud:oss/bucketObject:BucketObject", name="-payload")
    (only,) = allowed
    assert only["Action"] == ["oss:GetObject"]
    assert only["Condition"] == {"StringEquals": {"acs:SourceVpc": [vpc.id]}}
    assert only["Resource"][0].endswith(f"-records-{alicloud.settings.account_id}/{recipe['key']}")


def test_through_gateway_and_endpoint_data_leaves_only_into_the_stacks_own_buckets(alicloud):
    """OSS needs a policy on its gateway endpoint (alicloud_vpc_gateway_endpoint, policy_document)."""
    (gateway,) = alicloud.inputs("alicloud:vpc/gatewayEndpoint:GatewayEndpoint")
    name, account = alicloud.settings.name, alicloud.settings.account_id

    allowed = statements(gateway["policyDocument"])
    assert {statement["Effect"] for statement in allowed} == {"Allow"}
    anywhere = [statement["Action"] for statement in allowed if "*" in statement["Resource"]]
    assert anywhere == [["oss:GetObject"]]
    own = f"acs:oss:*:{account}:gpu-fleet-{name}-*"
    (whole,) = [statement["Resource"] for statement in allowed if "oss:*" in statement["Action"]]
    assert whole == [own, f"{own}/*"]
    for endpoint in alicloud.inputs("alicloud:privatelink/vpcEndpoint:VpcEndpoint"):
        (statement,) = json.loads(endpoint["policyDocument"])["Statement"]
        assert all(f"gpu-fleet-{name}-" in resource for resource in statement["Resource"])


def test_homes_are_mounted_from_the_network_alone(alicloud):
    private = {part["cidrBlock"] for part in alicloud.inputs("alicloud:vpc/switch:Switch", name="-private-")}

    rules = alicloud.inputs("alicloud:nas/accessRule:AccessRule")
    assert {rule["sourceCidrIp"] for rule in rules} == private


def test_every_connection_is_on_record_and_every_log_in_a_store(alicloud):
    (log,) = alicloud.inputs("alicloud:vpc/flowLog:FlowLog")
    stores = {store["logstoreName"] for store in alicloud.inputs("alicloud:log/store:Store")}
    pipelines = alicloud.inputs("alicloud:ecs/ecsImagePipeline:EcsImagePipeline")

    assert (log["trafficType"], log["status"]) == ("All", "Active")
    assert stores == {"capacity", "flow", "instances", "reaper"} | ({"builds"} if pipelines else set())


# the sweep


def test_a_functions_archive_carries_its_modules_and_its_policy(alicloud):
    (reaper,) = alicloud.inputs(alicloud.words.function, name="-reaper")

    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(reaper["code"]["zipFile"])))

    policy = json.loads(archive.read("policy.json"))
    assert policy["cloud"] == "alicloud"
    assert set(policy["pools"]) == {pool.name for pool in alicloud.settings.pools}
    assert "gpu_fleet_image/core/__init__.py" in archive.namelist()


def test_users_find_the_policy_of_the_sweep_under_the_stacks_own_key(alicloud):
    (stored,) = alicloud.inputs("alicloud:oss/bucketObject:BucketObject", name="-reaper-policy")

    assert (stored["key"], stored["acl"]) == ("reaper/policy.json", "private")
    assert stored["bucket"] == alicloud.settings.bucket_name("records")
    assert stored["content"] == alicloud.rehearsed.outputs["policy"]
    assert policies.parse(stored["content"]).cloud == "alicloud"
    assert (stored["serverSideEncryption"], stored["kmsKeyId"]) == ("KMS", key_id(alicloud))

"""Rights of the deployer of a stack, judged by the evaluators of policies."""

import json
from functools import cache

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_stacks.core.errors import StacksError
from gpu_fleet_stacks.deployer.command import notes
from gpu_fleet_stacks.deployer.grants import (
    LONGEST_DOCUMENT,
    MOST_DOCUMENTS,
    Grant,
    documents,
    length,
    statements,
)
from gpu_fleet_stacks.deployer.policy import Declared, Wanted, policies
from gpu_fleet_stacks.settings import Stack, stack_files
from tests.stacks import alicloud_programs, ram, registrations
from tests.stacks.conftest import AWS_STACKS
from tests.stacks.edits import EXISTING
from tests.stacks.examples import BUILDING, stack
from tests.stacks.iam import Request, Verdict, decide

ACCOUNT, REGION = "123456789012", "us-east-1"
OWN, FOREIGN = {"aws:ResourceTag/gpu-fleet:stack": "aws-dev"}, {"aws:ResourceTag/gpu-fleet:stack": "aws-prod"}
NEW, NEW_FOREIGN = (
    {"aws:RequestTag/gpu-fleet:stack": "aws-dev"},
    {"aws:RequestTag/gpu-fleet:stack": "aws-prod"},
)
HERE, ELSEWHERE = {"aws:RequestedRegion": REGION}, {"aws:RequestedRegion": "eu-west-1"}
IN_EC2 = f"arn:aws:ec2:{REGION}:{ACCOUNT}"
INSTANCE = f"{IN_EC2}:instance/i-1"
ROLES = f"arn:aws:iam::{ACCOUNT}:role"
SWEEP, INSTANCES = (f"{ROLES}/gpu-fleet-aws-dev-{name}-1a2b3c4" for name in ("reaper", "dev-instance"))
LINKED = f"{ROLES}/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
BUCKET = f"arn:aws:s3:::gpu-fleet-aws-dev-records-{ACCOUNT}"
GROUPS = f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:*:autoScalingGroupName"
GROUP = f"{GROUPS}/gpu-fleet-aws-dev-dev"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1234abcd"
FUNCTION = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:gpu-fleet-aws-dev-reaper"
TO_EC2, TO_LAMBDA = ({"iam:PassedToService": f"{service}.amazonaws.com"} for service in ("ec2", "lambda"))

# actions, the resource, and the request's context
ALLOWED = (
    ("iam:CreateRole iam:PutRolePolicy iam:DeleteRole", SWEEP, {}),
    ("iam:PassRole", INSTANCES, TO_EC2),
    ("iam:PassRole", SWEEP, TO_LAMBDA),
    (
        "iam:CreateServiceLinkedRole",
        f"{LINKED}_gpu-fleet-aws-dev",
        {"iam:AWSServiceName": "autoscaling.amazonaws.com"},
    ),
    ("s3:CreateBucket s3:DeleteBucket s3:PutBucketPolicy s3:ListBucketVersions", BUCKET, HERE),
    ("s3:PutObject", f"{BUCKET}/image/payload/{'0' * 64}.tar.gz", {}),
    ("kms:CreateKey", "*", NEW | HERE),
    ("kms:TagResource", KEY, NEW),
    ("kms:EnableKeyRotation kms:ScheduleKeyDeletion", KEY, OWN),
    ("autoscaling:CreateAutoScalingGroup autoscaling:DeleteAutoScalingGroup", GROUP, {}),
    ("autoscaling:SetInstanceProtection", GROUP, {}),
    ("ec2:CreateVpc", f"{IN_EC2}:vpc/*", NEW),
    ("ec2:CreateTags", f"{IN_EC2}:vpc/*", NEW | {"ec2:CreateAction": "CreateVpc"}),
    ("ec2:CreateSubnet", f"{IN_EC2}:subnet/*", NEW),
    ("ec2:CreateSubnet", f"{IN_EC2}:vpc/vpc-1", OWN),
    ("ec2:CreateLaunchTemplate", f"{IN_EC2}:launch-template/*", NEW),
    ("ec2:DeleteLaunchTemplate", f"{IN_EC2}:launch-template/lt-1", OWN),
    ("ec2:RunInstances", f"{IN_EC2}:instance/*", NEW),
    ("ec2:TerminateInstances", INSTANCE, OWN),
    ("lambda:CreateFunction lambda:DeleteFunction", FUNCTION, {}),
    ("fsx:DescribeBackups ec2:DescribeVpcs", "*", HERE),
)
REFUSED = (
    # another stack's or account's
    ("s3:DeleteBucket", f"arn:aws:s3:::gpu-fleet-aws-prod-data-{ACCOUNT}", HERE),
    ("s3:GetBucketAcl", "arn:aws:s3:::gpu-fleet-aws-dev-data-999999999999", HERE),
    ("iam:PutRolePolicy", f"{ROLES}/gpu-fleet-aws-prod-reaper-1a2b3c4", {}),
    ("kms:ScheduleKeyDeletion", KEY, FOREIGN),
    ("autoscaling:DeleteAutoScalingGroup", f"{GROUPS}/gpu-fleet-aws-prod-dev", {}),
    ("ec2:TerminateInstances", INSTANCE, {}),
    ("ec2:TerminateInstances", INSTANCE, FOREIGN),
    ("ec2:CreateVpc", f"{IN_EC2}:vpc/*", NEW_FOREIGN),
    ("ec2:CreateVpc", f"{IN_EC2}:vpc/*", {}),
    ("ec2:CreateSubnet", f"{IN_EC2}:vpc/vpc-2", FOREIGN | NEW),
    # by a tag that makes it the stack's
    ("ec2:CreateTags", INSTANCE, FOREIGN | NEW),
    ("ec2:CreateTags", INSTANCE, NEW),
    ("ec2:CreateTags", f"{IN_EC2}:security-group/sg-1", FOREIGN | NEW),
    ("kms:TagResource", KEY, FOREIGN | NEW),
    ("fsx:TagResource", f"arn:aws:fsx:{REGION}:{ACCOUNT}:file-system/fs-1", FOREIGN | NEW),
    # another region's
    ("ec2:CreateVpc", f"arn:aws:ec2:eu-west-1:{ACCOUNT}:vpc/*", NEW | ELSEWHERE),
    ("kms:CreateKey", "*", NEW | ELSEWHERE),
    ("ec2:DescribeVpcs", "*", ELSEWHERE),
    ("s3:CreateBucket", BUCKET, ELSEWHERE),
    # roles, to a service that they do not trust
    ("iam:PassRole", f"{ROLES}/build-server", TO_LAMBDA),
    ("iam:PassRole", f"{ROLES}/gpu-fleet-aws-prod-dev-instance-1a2b3c4", TO_EC2),
    ("iam:PassRole", f"{ROLES}/admin", TO_EC2),
    ("iam:PassRole", SWEEP, TO_EC2),
    ("iam:PassRole", f"{ROLES}/gpu-fleet-aws-dev-dev-instance-and-more", TO_EC2),
    ("iam:PassRole", INSTANCES, {}),
    # more rights than the stack has
    ("iam:CreateUser", f"arn:aws:iam::{ACCOUNT}:user/eve", {}),
    ("iam:AttachRolePolicy", SWEEP, {}),
    (
        "iam:CreateServiceLinkedRole",
        f"{ROLES}/aws-service-role/organizations.amazonaws.com/x",
        {"iam:AWSServiceName": "organizations.amazonaws.com"},
    ),
    ("kms:CreateGrant", KEY, OWN),
    ("lambda:InvokeFunction", FUNCTION, {}),
    # what users, the sweep and Pulumi write
    ("s3:GetObject", f"arn:aws:s3:::gpu-fleet-aws-dev-data-{ACCOUNT}/secret", {}),
    ("s3:PutObject", f"{BUCKET}/reaper/ledger/x", {}),
    ("s3:GetObject", "arn:aws:s3:::my-state/.pulumi/stacks/x.json", {}),
)


def texts(settings: Stack, resources=(), **wanted) -> list[str]:
    """Return the policies of a deployer of these resources."""
    made = [Declared(resource.type, resource.name, resource.inputs) for resource in resources]
    return [json.dumps(document) for document in policies(settings, made, Wanted(**wanted))]


@cache
def of_aws(name: str) -> list[str]:
    return texts(stack_files.settings_of(name), registrations.declared(name).resources)


@cache
def of_alicloud(name: str) -> list[str]:
    return texts(stack_files.settings_of(name), alicloud_programs.shipped(name).resources)


def allows(policy: list[str], action: str, resource: str, context=None) -> bool:
    return decide(Request(action, resource, context=context or {}), policy) is Verdict.ALLOWED


def each(table):
    return [(action, *where) for actions, *where in table for action in actions.split()]


def test_a_deployer_may_change_the_stack_and_nothing_else():
    policy = of_aws("aws-dev")

    assert [asked for asked in each(ALLOWED) if not allows(policy, *asked)] == []
    assert [asked for asked in each(REFUSED) if allows(policy, *asked)] == []


def test_every_type_of_a_shipped_stack_is_known_and_fits():
    own = alicloud_programs.VARIANTS | {"everything": alicloud_programs.EVERYTHING}
    made = {name: of_aws(name) for name in AWS_STACKS} | {
        name: texts(own.get(name) or stack_files.settings_of(name), found.resources)
        for name, found in alicloud_programs.programs().items()
    }

    longest = {name: max(length(json.loads(text)) for text in documents) for name, documents in made.items()}
    assert [name for name, documents in made.items() if len(documents) > MOST_DOCUMENTS] == []
    assert [name for name, characters in longest.items() if characters > LONGEST_DOCUMENT] == []


def test_types_that_no_shipped_aws_stack_has_are_known(register):
    everything = stack(
        queue="slurm",
        access={"people": {"ada": {"uid": 5001}}},
        storage={"home": True, "scratch_gib": 1200, "cached_buckets": ["data"]},
        logs={"bucket_access": True, "data_events": True},
    )
    for settings in (BUILDING, everything):
        assert texts(settings, register(settings).resources)


def named(name: str, token: str, key: str) -> list[str]:
    found = [resource.inputs[key] for resource in registrations.declared(name).of_type(token)]
    assert found
    return found


IN_REGION = f"{REGION}:{ACCOUNT}"
# a type, the input with its name, an action on it, and what precedes the name in its ARN
NAMED = (
    ("aws:s3/bucket:Bucket", "bucket", "s3:PutBucketVersioning", "s3:::"),
    ("aws:lambda/function:Function", "name", "lambda:UpdateFunctionCode", f"lambda:{IN_REGION}:function:"),
    ("aws:cloudwatch/logGroup:LogGroup", "name", "logs:PutRetentionPolicy", f"logs:{IN_REGION}:log-group:"),
    (
        "aws:cloudwatch/metricAlarm:MetricAlarm",
        "name",
        "cloudwatch:PutMetricAlarm",
        f"cloudwatch:{IN_REGION}:alarm:",
    ),
    (
        "aws:scheduler/schedule:Schedule",
        "name",
        "scheduler:UpdateSchedule",
        f"scheduler:{IN_REGION}:schedule/default/",
    ),
    ("aws:cloudwatch/eventRule:EventRule", "name", "events:PutRule", f"events:{IN_REGION}:rule/"),
    ("aws:sqs/queue:Queue", "name", "sqs:DeleteQueue", f"sqs:{IN_REGION}:"),
    ("aws:budgets/budget:Budget", "name", "budgets:ModifyBudget", f"budgets::{ACCOUNT}:budget/"),
    (
        "aws:cloudwatch/dashboard:Dashboard",
        "dashboardName",
        "cloudwatch:PutDashboard",
        f"cloudwatch::{ACCOUNT}:dashboard/",
    ),
    ("aws:kms/alias:Alias", "name", "kms:CreateAlias", f"kms:{IN_REGION}:"),
)


def test_whatever_is_named_is_the_deployers_and_no_other_stacks():
    for token, key, action, place in NAMED:
        for name in named("aws-prod", token, key):
            assert allows(of_aws("aws-prod"), action, f"arn:aws:{place}{name}", HERE), name
            assert not allows(of_aws("aws-dev"), action, f"arn:aws:{place}{name}", HERE), name
    for key in named("aws-prod", "aws:s3/bucketObjectv2:BucketObjectv2", "key"):
        where = f"arn:aws:s3:::gpu-fleet-aws-prod-records-{ACCOUNT}/{key}"
        assert allows(of_aws("aws-prod"), "s3:PutObject", where), key


def test_every_role_may_be_passed_to_the_service_that_it_trusts_alone():
    services = {"ec2.amazonaws.com", "lambda.amazonaws.com", "scheduler.amazonaws.com"}
    for role in registrations.declared("aws-prod").of_type("aws:iam/role:Role"):
        trusted = {service for service in services if service in role.inputs["assumeRolePolicy"]}
        name = role.inputs.get("name", f"{role.name}-1a2b3c4")
        passed = {
            service
            for service in services
            if allows(of_aws("aws-prod"), "iam:PassRole", f"{ROLES}/{name}", {"iam:PassedToService": service})
        }
        assert passed == trusted, role.name


def test_state_and_the_contents_of_buckets_come_with_flags_alone():
    settings, resources = stack_files.settings_of("aws-dev"), registrations.declared("aws-dev").resources
    state_key = "arn:aws:kms:us-east-1:1:key/s"
    more = texts(settings, resources, state_bucket="my-state", state_key=state_key, delete_data=True)

    assert allows(more, "s3:PutObject", "arn:aws:s3:::my-state/.pulumi/stacks/x.json")
    assert allows(more, "kms:Decrypt", state_key)
    assert allows(more, "s3:DeleteObjectVersion", f"arn:aws:s3:::gpu-fleet-aws-dev-data-{ACCOUNT}/x")
    assert not allows(more, "s3:PutObject", "arn:aws:s3:::other/.pulumi/stacks/x.json")
    assert not allows(of_aws("aws-dev"), "s3:DeleteObjectVersion", f"{BUCKET}/x")


def test_an_existing_network_is_joined_and_existing_buckets_are_read():
    settings = stack(
        network={"zones": list(EXISTING["subnets"]), "existing": EXISTING},
        storage={"existing": {"buckets": {"lab-datasets": {}}}},
        image={"parameter": "/aws/service/deeplearning/ami"},
    )
    made = texts(settings)
    vpc, subnet = f"{IN_EC2}:vpc/{EXISTING['vpc_id']}", EXISTING["subnets"]["us-east-1a"]

    assert allows(made, "ec2:CreateSecurityGroup", vpc)
    assert allows(made, "ec2:RunInstances", f"{IN_EC2}:subnet/{subnet}")
    assert allows(made, "s3:GetBucketLocation", "arn:aws:s3:::lab-datasets")
    amazons = f"arn:aws:ssm:{REGION}::parameter/aws/service/deeplearning/ami"
    assert allows(made, "ssm:GetParameter", amazons, HERE)
    assert not allows(made, "ec2:CreateSecurityGroup", f"{IN_EC2}:vpc/vpc-1")
    assert not allows(made, "ec2:DeleteVpc", vpc)
    assert not allows(made, "s3:PutBucketPolicy", "arn:aws:s3:::lab-datasets")
    assert not allows(made, "s3:GetObject", "arn:aws:s3:::lab-datasets/x")


def test_a_role_gets_its_rights_within_the_organisations_boundary_alone():
    boundary = f"arn:aws:iam::{ACCOUNT}:policy/boundary"
    role = Declared("aws:iam/role:Role", "gpu-fleet-test-dev", {"assumeRolePolicy": '{"Statement": []}'})
    made = texts(stack(aws={"permissions_boundary": boundary}), [role])

    for action in ("iam:CreateRole", "iam:PutRolePolicy", "iam:PutRolePermissionsBoundary"):
        asked = (made, action, f"{ROLES}/gpu-fleet-test-dev-1a2b3c4")
        assert allows(*asked, {"iam:PermissionsBoundary": boundary})
        assert not allows(*asked, {"iam:PermissionsBoundary": f"{boundary}-of-somebody"})
        assert not allows(*asked)


def test_a_stack_whose_name_begins_alike_is_named(monkeypatch):
    monkeypatch.setattr(stack_files, "names", lambda: ["lab", "lab-dev", "labor"])

    assert notes(stack("lab"), "my-state") == [
        "they also apply to stack lab-dev, whose names begin with the same prefix"
    ]


ALI_ACCOUNT = "1234567890123456"
ALI_BUCKET = f"acs:oss:cn-shenzhen:{ALI_ACCOUNT}:gpu-fleet-alicloud-{{}}-data-{ALI_ACCOUNT}"
ALI_ROLES = f"acs:ram:*:{ALI_ACCOUNT}:role"
ALI_OWN, ALI_FOREIGN = (
    {"acs:ResourceTag/gpu-fleet:stack": name} for name in ("alicloud-dev", "alicloud-prod")
)
ALI_INSTANCES = f"{ALI_ROLES}/gpu-fleet-alicloud-dev-dev-instance"
TO_ECS = {"acs:Service": "ecs.aliyuncs.com"}


def ali(service: str, path: str, region: str = "cn-shenzhen") -> str:
    return f"acs:{service}:{region}:{ALI_ACCOUNT}:{path}"


RAM_ALLOWED = (
    ("oss:PutBucket oss:DeleteBucket oss:ListObjectVersions", ALI_BUCKET.format("dev"), {}),
    ("cms:PutCustomMetric", "*", {}),
    ("ram:CreateRole", ALI_INSTANCES, {}),
    ("ram:PassRole", ALI_INSTANCES, TO_ECS),
    ("vpc:CreateVpc", ali("vpc", "vpc/*"), {}),
    ("vpc:DeleteVpc", ali("vpc", "vpc/vpc-1"), ALI_OWN),
    ("ess:CreateScalingGroup", ali("ess", "scalinggroup/*"), {}),
    ("ess:DeleteScalingGroup", ali("ess", "scalinggroup/a"), ALI_OWN),
    ("ecs:CreateLaunchTemplate", ali("ecs", "launchtemplate/*"), {}),
    ("fc:CreateFunction", ali("fc", "functions/gpu-fleet-alicloud-dev-reaper"), {}),
    ("kms:CreateKey", ali("kms", "key"), {}),
    ("ecs:DeleteInstances", ali("ecs", "instance/i-1"), ALI_OWN),
)
RAM_REFUSED = (
    ("oss:DeleteBucket", ALI_BUCKET.format("prod"), {}),
    ("oss:GetObject", f"{ALI_BUCKET.format('dev')}/secret", {}),
    ("ram:DeleteRole", f"{ALI_ROLES}/gpu-fleet-alicloud-prod-reaper", {}),
    ("ram:PassRole", f"{ALI_ROLES}/admin", TO_ECS),
    ("ram:PassRole", ALI_INSTANCES, {"acs:Service": "fc.aliyuncs.com"}),
    ("ram:AttachPolicyToRole", "acs:ram:*:system:policy/AdministratorAccess", {}),
    ("ram:CreateUser", f"acs:ram:*:{ALI_ACCOUNT}:user/eve", {}),
    ("ecs:DeleteInstances", ali("ecs", "instance/i-1"), {}),
    ("ecs:DeleteInstances", ali("ecs", "instance/i-1"), ALI_FOREIGN),
    ("vpc:DeleteVpc", ali("vpc", "vpc/vpc-1"), ALI_FOREIGN),
    ("ess:DeleteScalingGroup", ali("ess", "scalinggroup/a"), ALI_FOREIGN),
    ("vpc:CreateVpc", ali("vpc", "vpc/*", "cn-beijing"), {}),
    ("fc:DeleteFunction", ali("fc", "functions/gpu-fleet-alicloud-dev-reaper", "cn-beijing"), {}),
)


def ram_allows(name: str, action: str, resource: str, context=None) -> bool:
    asked = Request(action, resource, context=context or {})
    return ram.decide(asked, of_alicloud(name)) is Verdict.ALLOWED


def test_a_deployer_on_alibaba_cloud_may_change_the_stack_and_nothing_else():
    assert [asked for asked in each(RAM_ALLOWED) if not ram_allows("alicloud-dev", *asked)] == []
    assert [asked for asked in each(RAM_REFUSED) if ram_allows("alicloud-dev", *asked)] == []


def test_every_bucket_and_object_of_an_alibaba_cloud_stack_may_be_written():
    rehearsed = alicloud_programs.shipped("alicloud-prod")
    buckets = [made.inputs["bucket"] for made in rehearsed.of_type("alicloud:oss/bucket:Bucket")]
    objects = [made.inputs for made in rehearsed.of_type("alicloud:oss/bucketObject:BucketObject")]
    paths = [("oss:PutBucketPolicy", bucket) for bucket in buckets]
    paths += [("oss:PutObject", f"{made['bucket']}/{made['key']}") for made in objects]

    assert buckets
    assert objects
    refused = [path for action, path in paths if not ram_allows("alicloud-prod", action, ali("oss", path))]
    assert refused == []


def test_a_type_without_an_entry_is_named():
    with pytest.raises(StacksError) as caught:
        texts(stack_files.settings_of("aws-dev"), [Declared("aws:new/thing:Thing", "x", {})])

    entry = "no entry in stacks/gpu_fleet_stacks/deployer/aws.yaml for aws:new/thing:Thing"
    assert str(caught.value) == f"{entry}: what it takes is not known"


def test_actions_share_a_statement_where_resources_and_conditions_are_the_same():
    same = [Grant("a:B", ("x",)), Grant("a:A a:B", ("x",))]

    made = statements([*same, Grant("a:A", ("x",), {"Bool": {"k": "true"}})])

    assert made == [
        {"Effect": "Allow", "Action": ["a:A", "a:B"], "Resource": "x"},
        {"Effect": "Allow", "Action": ["a:A"], "Resource": "x", "Condition": {"Bool": {"k": "true"}}},
    ]


def test_documents_are_cut_at_the_clouds_limit_lose_nothing_and_are_no_more_than_a_role_can_hold():
    said = statements(Grant("a:B", (f"{index}{'x' * 2_500}",)) for index in range(5))

    made = documents("1", said)

    assert [len(document["Statement"]) for document in made] == [2, 2, 1]
    assert [statement for document in made for statement in document["Statement"]] == said
    with pytest.raises(StacksError, match="11 policies, the longest of"):
        documents("1", statements(Grant("a:B", (f"{index}{'x' * 5_000}",)) for index in range(11)))


def test_the_command_prints_json_and_says_what_it_leaves_out():
    done = CliRunner().invoke(main, ["policy", "aws-dev"])

    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert list(printed) == [f"gpu-fleet-aws-dev-deployer-{number + 1}" for number in range(len(printed))]
    assert "Pulumi's state is left out" in done.stderr
    assert allows([json.dumps(document) for document in printed.values()], "s3:CreateBucket", BUCKET, HERE)


def test_the_command_writes_a_file_for_each_policy(tmp_path):
    done = CliRunner().invoke(main, ["policy", "alicloud-dev", "--out", str(tmp_path / "policies")])

    assert done.exit_code == 0, done.output
    written = sorted((tmp_path / "policies").iterdir())
    assert done.stdout.splitlines() == [str(path) for path in written]
    assert all(len(path.read_text().strip()) <= LONGEST_DOCUMENT for path in written)
    assert all(json.loads(path.read_text())["Version"] == "1" for path in written)


def test_a_key_of_aws_is_refused_on_alibaba_cloud():
    done = CliRunner().invoke(main, ["policy", "alicloud-dev", "--state-key", "arn:aws:kms:x"])

    assert done.exit_code == 1
    assert "--state-key: allowed on AWS" in done.stderr

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
from gpu_fleet_stacks.rehearsal.program import Rehearsed
from gpu_fleet_stacks.settings import Stack, stack_files
from tests.stacks import alicloud_programs, ram, registrations
from tests.stacks.conftest import AWS_STACKS
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
ROLES = f"arn:aws:iam::{ACCOUNT}:role"
BUCKET = f"arn:aws:s3:::gpu-fleet-aws-dev-records-{ACCOUNT}"
GROUPS = f"arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:*:autoScalingGroupName"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/1234abcd"
LINKED = f"{ROLES}/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"

TO_EC2 = {"iam:PassedToService": "ec2.amazonaws.com"}
TO_LAMBDA = {"iam:PassedToService": "lambda.amazonaws.com"}
ALLOWED = {
    "a role": ("iam:CreateRole", f"{ROLES}/gpu-fleet-aws-dev-reaper-1a2b3c4", {}),
    "its policy": ("iam:PutRolePolicy", f"{ROLES}/gpu-fleet-aws-dev-reaper-1a2b3c4", {}),
    "no role any more": ("iam:DeleteRole", f"{ROLES}/gpu-fleet-aws-dev-reaper-1a2b3c4", {}),
    "the role of instances, to EC2": (
        "iam:PassRole",
        f"{ROLES}/gpu-fleet-aws-dev-dev-instance-1a2b3c4",
        TO_EC2,
    ),
    "the role of the sweep, to Lambda": (
        "iam:PassRole",
        f"{ROLES}/gpu-fleet-aws-dev-reaper-1a2b3c4",
        TO_LAMBDA,
    ),
    "Auto Scaling's role": (
        "iam:CreateServiceLinkedRole",
        f"{LINKED}_gpu-fleet-aws-dev",
        {"iam:AWSServiceName": "autoscaling.amazonaws.com"},
    ),
    "a bucket": ("s3:CreateBucket", BUCKET, HERE),
    "no bucket any more": ("s3:DeleteBucket", BUCKET, HERE),
    "a bucket's policy": ("s3:PutBucketPolicy", BUCKET, HERE),
    "a payload": ("s3:PutObject", f"{BUCKET}/image/payload/{'0' * 64}.tar.gz", {}),
    "a key": ("kms:CreateKey", "*", NEW | HERE),
    "a key's first tags": ("kms:TagResource", KEY, NEW),
    "a key's rotation": ("kms:EnableKeyRotation", KEY, OWN),
    "no key any more": ("kms:ScheduleKeyDeletion", KEY, OWN),
    "a group": ("autoscaling:CreateAutoScalingGroup", f"{GROUPS}/gpu-fleet-aws-dev-dev", {}),
    "no group any more": ("autoscaling:DeleteAutoScalingGroup", f"{GROUPS}/gpu-fleet-aws-dev-dev", {}),
    "a VPC": ("ec2:CreateVpc", f"{IN_EC2}:vpc/*", NEW),
    "tags with it": ("ec2:CreateTags", f"{IN_EC2}:vpc/*", NEW | {"ec2:CreateAction": "CreateVpc"}),
    "a subnet": ("ec2:CreateSubnet", f"{IN_EC2}:subnet/*", NEW),
    "a subnet in the stack's VPC": ("ec2:CreateSubnet", f"{IN_EC2}:vpc/vpc-1", OWN),
    "a template": ("ec2:CreateLaunchTemplate", f"{IN_EC2}:launch-template/*", NEW),
    "no template any more": ("ec2:DeleteLaunchTemplate", f"{IN_EC2}:launch-template/lt-1", OWN),
    "an instance by its group": ("ec2:RunInstances", f"{IN_EC2}:instance/*", NEW),
    "a stopped instance": ("ec2:TerminateInstances", f"{IN_EC2}:instance/i-1", OWN),
    "a function": (
        "lambda:CreateFunction",
        f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:gpu-fleet-aws-dev-reaper",
        {},
    ),
    "no function any more": (
        "lambda:DeleteFunction",
        f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:gpu-fleet-aws-dev-reaper",
        {},
    ),
    "a count of what a bucket holds": ("s3:ListBucketVersions", BUCKET, HERE),
    "a look at backups under the key": ("fsx:DescribeBackups", "*", HERE),
    "a drain": ("autoscaling:SetInstanceProtection", f"{GROUPS}/gpu-fleet-aws-dev-dev", {}),
    "a refresh": ("ec2:DescribeVpcs", "*", HERE),
}
REFUSED = {
    "another stack's bucket": ("s3:DeleteBucket", f"arn:aws:s3:::gpu-fleet-aws-prod-data-{ACCOUNT}", HERE),
    "another account's bucket": ("s3:GetBucketAcl", "arn:aws:s3:::gpu-fleet-aws-dev-data-999999999999", HERE),
    "a user's objects": ("s3:GetObject", f"arn:aws:s3:::gpu-fleet-aws-dev-data-{ACCOUNT}/secret", {}),
    "the sweep's ledger": ("s3:PutObject", f"{BUCKET}/reaper/ledger/x", {}),
    "another stack's role": ("iam:PutRolePolicy", f"{ROLES}/gpu-fleet-aws-prod-reaper-1a2b3c4", {}),
    "a foreign role to Lambda": ("iam:PassRole", f"{ROLES}/build-server", TO_LAMBDA),
    "another stack's role to EC2": (
        "iam:PassRole",
        f"{ROLES}/gpu-fleet-aws-prod-dev-instance-1a2b3c4",
        TO_EC2,
    ),
    "an admin's role to EC2": ("iam:PassRole", f"{ROLES}/admin", TO_EC2),
    "the sweep's role to EC2": ("iam:PassRole", f"{ROLES}/gpu-fleet-aws-dev-reaper-1a2b3c4", TO_EC2),
    "a role of a like name to EC2": (
        "iam:PassRole",
        f"{ROLES}/gpu-fleet-aws-dev-dev-instance-and-more",
        TO_EC2,
    ),
    "a role to nobody in particular": ("iam:PassRole", f"{ROLES}/gpu-fleet-aws-dev-dev-instance-1a2b3c4", {}),
    "a user": ("iam:CreateUser", f"arn:aws:iam::{ACCOUNT}:user/eve", {}),
    "a policy of AWS's on its role": (
        "iam:AttachRolePolicy",
        f"{ROLES}/gpu-fleet-aws-dev-reaper-1a2b3c4",
        {},
    ),
    "another service's role": (
        "iam:CreateServiceLinkedRole",
        f"{ROLES}/aws-service-role/organizations.amazonaws.com/x",
        {"iam:AWSServiceName": "organizations.amazonaws.com"},
    ),
    "an instance without a tag": ("ec2:TerminateInstances", f"{IN_EC2}:instance/i-1", {}),
    "another stack's instance": ("ec2:TerminateInstances", f"{IN_EC2}:instance/i-1", FOREIGN),
    "its tags, to terminate it": ("ec2:CreateTags", f"{IN_EC2}:instance/i-1", FOREIGN | NEW),
    "an untagged instance's tags": ("ec2:CreateTags", f"{IN_EC2}:instance/i-1", NEW),
    "another stack's group of rules": ("ec2:CreateTags", f"{IN_EC2}:security-group/sg-1", FOREIGN | NEW),
    "a VPC for another stack": ("ec2:CreateVpc", f"{IN_EC2}:vpc/*", NEW_FOREIGN),
    "a VPC without a tag": ("ec2:CreateVpc", f"{IN_EC2}:vpc/*", {}),
    "a subnet in another VPC": ("ec2:CreateSubnet", f"{IN_EC2}:vpc/vpc-2", FOREIGN | NEW),
    "another region's VPC": ("ec2:CreateVpc", f"arn:aws:ec2:eu-west-1:{ACCOUNT}:vpc/*", NEW | ELSEWHERE),
    "another region's key": ("kms:CreateKey", "*", NEW | ELSEWHERE),
    "another region's network": ("ec2:DescribeVpcs", "*", ELSEWHERE),
    "another region's bucket": ("s3:CreateBucket", BUCKET, ELSEWHERE),
    "another stack's key": ("kms:ScheduleKeyDeletion", KEY, FOREIGN),
    "another stack's key by its tags": ("kms:TagResource", KEY, FOREIGN | NEW),
    "another stack's Lustre by its tags": (
        "fsx:TagResource",
        f"arn:aws:fsx:{REGION}:{ACCOUNT}:file-system/fs-1",
        FOREIGN | NEW,
    ),
    "a grant for anybody": ("kms:CreateGrant", KEY, OWN),
    "another stack's group": ("autoscaling:DeleteAutoScalingGroup", f"{GROUPS}/gpu-fleet-aws-prod-dev", {}),
    "a run of the sweep": (
        "lambda:InvokeFunction",
        f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:gpu-fleet-aws-dev-reaper",
        {},
    ),
    "Pulumi's state": ("s3:GetObject", "arn:aws:s3:::my-state/.pulumi/stacks/x.json", {}),
}


def declared(rehearsed: Rehearsed) -> list[Declared]:
    return [Declared(made.type, made.name, made.inputs) for made in rehearsed.resources]


def texts(settings: Stack, rehearsed: Rehearsed, **wanted) -> list[str]:
    return [json.dumps(made) for made in policies(settings, declared(rehearsed), Wanted(**wanted))]


@cache
def of_aws(name: str) -> list[str]:
    return texts(stack_files.settings_of(name), registrations.declared(name))


@cache
def of_alicloud(name: str) -> list[str]:
    return texts(stack_files.settings_of(name), alicloud_programs.shipped(name))


def allows(policy: list[str], action: str, resource: str, context=None) -> bool:
    return decide(Request(action, resource, context=context or {}), policy) is Verdict.ALLOWED


def test_a_deployer_may():
    assert [name for name, asked in ALLOWED.items() if not allows(of_aws("aws-dev"), *asked)] == []


def test_a_deployer_may_not():
    assert [name for name, asked in REFUSED.items() if allows(of_aws("aws-dev"), *asked)] == []


@pytest.mark.parametrize("name", AWS_STACKS)
def test_every_type_of_a_shipped_aws_stack_is_known_and_fits(name):
    made = of_aws(name)

    assert 1 <= len(made) <= MOST_DOCUMENTS
    assert all(length(json.loads(text)) <= LONGEST_DOCUMENT for text in made)


def test_every_type_of_an_alibaba_cloud_stack_is_known_and_fits():
    own = alicloud_programs.VARIANTS | {"everything": alicloud_programs.EVERYTHING}
    made = {
        name: texts(own.get(name) or stack_files.settings_of(name), found)
        for name, found in alicloud_programs.programs().items()
    }

    assert [name for name, documents in made.items() if not 1 <= len(documents) <= MOST_DOCUMENTS] == []
    assert [
        name
        for name, documents in made.items()
        if any(length(json.loads(text)) > LONGEST_DOCUMENT for text in documents)
    ] == []


@pytest.mark.parametrize(
    "settings",
    [
        BUILDING,
        stack(
            queue="slurm",
            access={"people": {"ada": {"uid": 5001}}},
            storage={"home": True, "scratch_gib": 1200, "cached_buckets": ["data"]},
            logs={"bucket_access": True, "data_events": True},
        ),
    ],
    ids=["builds", "queue and everything"],
)
def test_types_that_no_shipped_aws_stack_has_are_known(register, settings):
    assert texts(settings, register(settings))


def named(name: str, token: str, key: str) -> list[str]:
    found = [resource.inputs[key] for resource in registrations.declared(name).of_type(token)]
    assert found
    return found


@pytest.mark.parametrize(
    ("token", "key", "action", "arn"),
    [
        ("aws:s3/bucket:Bucket", "bucket", "s3:PutBucketVersioning", "arn:aws:s3:::{}"),
        (
            "aws:lambda/function:Function",
            "name",
            "lambda:UpdateFunctionCode",
            f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{{}}",
        ),
        (
            "aws:cloudwatch/logGroup:LogGroup",
            "name",
            "logs:PutRetentionPolicy",
            f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{{}}",
        ),
        (
            "aws:cloudwatch/metricAlarm:MetricAlarm",
            "name",
            "cloudwatch:PutMetricAlarm",
            f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:{{}}",
        ),
        (
            "aws:scheduler/schedule:Schedule",
            "name",
            "scheduler:UpdateSchedule",
            f"arn:aws:scheduler:{REGION}:{ACCOUNT}:schedule/default/{{}}",
        ),
        (
            "aws:cloudwatch/eventRule:EventRule",
            "name",
            "events:PutRule",
            f"arn:aws:events:{REGION}:{ACCOUNT}:rule/{{}}",
        ),
        ("aws:sqs/queue:Queue", "name", "sqs:DeleteQueue", f"arn:aws:sqs:{REGION}:{ACCOUNT}:{{}}"),
        (
            "aws:budgets/budget:Budget",
            "name",
            "budgets:ModifyBudget",
            f"arn:aws:budgets::{ACCOUNT}:budget/{{}}",
        ),
        (
            "aws:cloudwatch/dashboard:Dashboard",
            "dashboardName",
            "cloudwatch:PutDashboard",
            f"arn:aws:cloudwatch::{ACCOUNT}:dashboard/{{}}",
        ),
        ("aws:kms/alias:Alias", "name", "kms:CreateAlias", f"arn:aws:kms:{REGION}:{ACCOUNT}:{{}}"),
    ],
)
def test_whatever_is_named_is_the_deployers_and_no_other_stacks(token, key, action, arn):
    for name in named("aws-prod", token, key):
        assert allows(of_aws("aws-prod"), action, arn.format(name), HERE), name
        assert not allows(of_aws("aws-dev"), action, arn.format(name), HERE), name


def test_every_object_that_a_stack_uploads_may_be_written():
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
    settings, rehearsed = stack_files.settings_of("aws-dev"), registrations.declared("aws-dev")
    more = texts(
        settings,
        rehearsed,
        state_bucket="my-state",
        state_key="arn:aws:kms:us-east-1:1:key/s",
        delete_data=True,
    )
    state = "arn:aws:s3:::my-state/.pulumi/stacks/x.json"

    assert allows(more, "s3:PutObject", state)
    assert allows(more, "kms:Decrypt", "arn:aws:kms:us-east-1:1:key/s")
    assert allows(more, "s3:DeleteObjectVersion", f"arn:aws:s3:::gpu-fleet-aws-dev-data-{ACCOUNT}/x")
    assert not allows(more, "s3:PutObject", "arn:aws:s3:::other/.pulumi/stacks/x.json")
    assert not allows(of_aws("aws-dev"), "s3:DeleteObjectVersion", f"{BUCKET}/x")


def test_an_existing_network_is_joined_and_existing_buckets_are_read():
    settings = stack(
        network={
            "zones": ["us-east-1a"],
            "existing": {
                "vpc_id": "vpc-0123456789abcdef0",
                "subnets": {"us-east-1a": "subnet-0a123456789abcdef"},
            },
        },
        storage={"existing": {"buckets": {"lab-datasets": {}}}},
        image={"parameter": "/aws/service/deeplearning/ami"},
    )
    made = [json.dumps(document) for document in policies(settings, [], Wanted())]

    assert allows(made, "ec2:CreateSecurityGroup", f"{IN_EC2}:vpc/vpc-0123456789abcdef0")
    assert allows(made, "ec2:RunInstances", f"{IN_EC2}:subnet/subnet-0a123456789abcdef")
    assert allows(made, "s3:GetBucketLocation", "arn:aws:s3:::lab-datasets")
    amazons = f"arn:aws:ssm:{REGION}::parameter/aws/service/deeplearning/ami"
    assert allows(made, "ssm:GetParameter", amazons, HERE)
    assert not allows(made, "ec2:CreateSecurityGroup", f"{IN_EC2}:vpc/vpc-1")
    assert not allows(made, "ec2:DeleteVpc", f"{IN_EC2}:vpc/vpc-0123456789abcdef0")
    assert not allows(made, "s3:PutBucketPolicy", "arn:aws:s3:::lab-datasets")
    assert not allows(made, "s3:GetObject", "arn:aws:s3:::lab-datasets/x")


@pytest.mark.parametrize("action", ["iam:CreateRole", "iam:PutRolePolicy", "iam:PutRolePermissionsBoundary"])
def test_a_role_gets_its_rights_within_the_organisations_boundary_alone(action):
    boundary = f"arn:aws:iam::{ACCOUNT}:policy/boundary"
    role = Declared("aws:iam/role:Role", "gpu-fleet-test-dev", {"assumeRolePolicy": '{"Statement": []}'})
    made = [
        json.dumps(document)
        for document in policies(stack(aws={"permissions_boundary": boundary}), [role], Wanted())
    ]

    asked = (made, action, f"{ROLES}/gpu-fleet-test-dev-1a2b3c4")
    assert allows(*asked, {"iam:PermissionsBoundary": boundary})
    assert not allows(*asked, {"iam:PermissionsBoundary": f"{boundary}-of-somebody"})
    assert not allows(*asked)


def test_a_stack_whose_name_begins_alike_is_named(monkeypatch):
    monkeypatch.setattr(stack_files, "names", lambda: ["lab", "lab-dev", "labor"])

    assert notes(stack("lab"), "my-state") == [
        "they also apply to stack lab-dev, whose names begin with the same prefix"
    ]


IN_ALICLOUD = "acs:{}:cn-shenzhen:1234567890123456:{}"
ALI_BUCKET = "acs:oss:cn-shenzhen:1234567890123456:gpu-fleet-alicloud-{}-data-1234567890123456"
ALI_ROLE = "acs:ram:*:1234567890123456:role/{}"
ALI_OWN = {"acs:ResourceTag/gpu-fleet:stack": "alicloud-dev"}
ALI_FOREIGN = {"acs:ResourceTag/gpu-fleet:stack": "alicloud-prod"}
ALI_INSTANCE = ALI_ROLE.format("gpu-fleet-alicloud-dev-dev-instance")
RAM_ALLOWED = {
    "a bucket": ("oss:PutBucket", ALI_BUCKET.format("dev"), {}),
    "no bucket any more": ("oss:DeleteBucket", ALI_BUCKET.format("dev"), {}),
    "a count of what a bucket holds": ("oss:ListObjectVersions", ALI_BUCKET.format("dev"), {}),
    "a first value of a metric": ("cms:PutCustomMetric", "*", {}),
    "a role": ("ram:CreateRole", ALI_INSTANCE, {}),
    "instances' role, to ECS": ("ram:PassRole", ALI_INSTANCE, {"acs:Service": "ecs.aliyuncs.com"}),
    "a VPC": ("vpc:CreateVpc", IN_ALICLOUD.format("vpc", "vpc/*"), {}),
    "no VPC any more": ("vpc:DeleteVpc", IN_ALICLOUD.format("vpc", "vpc/vpc-1"), ALI_OWN),
    "a group": ("ess:CreateScalingGroup", IN_ALICLOUD.format("ess", "scalinggroup/*"), {}),
    "no group any more": ("ess:DeleteScalingGroup", IN_ALICLOUD.format("ess", "scalinggroup/a"), ALI_OWN),
    "a template": ("ecs:CreateLaunchTemplate", IN_ALICLOUD.format("ecs", "launchtemplate/*"), {}),
    "a function": (
        "fc:CreateFunction",
        IN_ALICLOUD.format("fc", "functions/gpu-fleet-alicloud-dev-reaper"),
        {},
    ),
    "a key": ("kms:CreateKey", IN_ALICLOUD.format("kms", "key"), {}),
    "a stopped instance": ("ecs:DeleteInstances", IN_ALICLOUD.format("ecs", "instance/i-1"), ALI_OWN),
}
RAM_REFUSED = {
    "another stack's bucket": ("oss:DeleteBucket", ALI_BUCKET.format("prod"), {}),
    "a user's objects": ("oss:GetObject", f"{ALI_BUCKET.format('dev')}/secret", {}),
    "another stack's role": ("ram:DeleteRole", ALI_ROLE.format("gpu-fleet-alicloud-prod-reaper"), {}),
    "a foreign role to ECS": ("ram:PassRole", ALI_ROLE.format("admin"), {"acs:Service": "ecs.aliyuncs.com"}),
    "instances' role to Function Compute": ("ram:PassRole", ALI_INSTANCE, {"acs:Service": "fc.aliyuncs.com"}),
    "a system policy on its role": (
        "ram:AttachPolicyToRole",
        "acs:ram:*:system:policy/AdministratorAccess",
        {},
    ),
    "a user": ("ram:CreateUser", "acs:ram:*:1234567890123456:user/eve", {}),
    "an instance without a tag": ("ecs:DeleteInstances", IN_ALICLOUD.format("ecs", "instance/i-1"), {}),
    "another stack's instance": (
        "ecs:DeleteInstances",
        IN_ALICLOUD.format("ecs", "instance/i-1"),
        ALI_FOREIGN,
    ),
    "another stack's VPC": ("vpc:DeleteVpc", IN_ALICLOUD.format("vpc", "vpc/vpc-1"), ALI_FOREIGN),
    "another stack's group": (
        "ess:DeleteScalingGroup",
        IN_ALICLOUD.format("ess", "scalinggroup/a"),
        ALI_FOREIGN,
    ),
    "another region's VPC": ("vpc:CreateVpc", "acs:vpc:cn-beijing:1234567890123456:vpc/*", {}),
    "another region's function": (
        "fc:DeleteFunction",
        "acs:fc:cn-beijing:1234567890123456:functions/gpu-fleet-alicloud-dev-reaper",
        {},
    ),
}


def ram_allows(action: str, resource: str, context) -> bool:
    return (
        ram.decide(Request(action, resource, context=context), of_alicloud("alicloud-dev")) is Verdict.ALLOWED
    )


def test_a_deployer_on_alibaba_cloud_may():
    assert [name for name, asked in RAM_ALLOWED.items() if not ram_allows(*asked)] == []


def test_a_deployer_on_alibaba_cloud_may_not():
    assert [name for name, asked in RAM_REFUSED.items() if ram_allows(*asked)] == []


def test_every_bucket_and_object_of_an_alibaba_cloud_stack_may_be_written():
    rehearsed = alicloud_programs.shipped("alicloud-prod")
    buckets = [made.inputs["bucket"] for made in rehearsed.of_type("alicloud:oss/bucket:Bucket")]
    objects = [made.inputs for made in rehearsed.of_type("alicloud:oss/bucketObject:BucketObject")]

    assert buckets
    assert objects
    for action, path in [
        *(("oss:PutBucketPolicy", bucket) for bucket in buckets),
        *(("oss:PutObject", f"{made['bucket']}/{made['key']}") for made in objects),
    ]:
        asked = Request(action, f"acs:oss:cn-shenzhen:1234567890123456:{path}")
        assert ram.decide(asked, of_alicloud("alicloud-prod")) is Verdict.ALLOWED, path


def test_a_type_without_an_entry_is_named():
    with pytest.raises(StacksError) as caught:
        policies(stack_files.settings_of("aws-dev"), [Declared("aws:new/thing:Thing", "x", {})], Wanted())

    assert str(caught.value) == (
        "no entry in stacks/gpu_fleet_stacks/deployer/aws.yaml for aws:new/thing:Thing: "
        "what it takes is not known"
    )


def test_actions_share_a_statement_where_resources_and_conditions_are_the_same():
    made = statements(
        [Grant("a:B", ("x",)), Grant("a:A a:B", ("x",)), Grant("a:A", ("x",), {"Bool": {"k": "true"}})]
    )

    assert made == [
        {"Effect": "Allow", "Action": ["a:A", "a:B"], "Resource": "x"},
        {"Effect": "Allow", "Action": ["a:A"], "Resource": "x", "Condition": {"Bool": {"k": "true"}}},
    ]


def test_documents_are_cut_at_the_clouds_limit_and_lose_nothing():
    said = statements(Grant("a:B", (f"{index}{'x' * 2_500}",)) for index in range(5))
    made = documents("1", said)

    assert [len(document["Statement"]) for document in made] == [2, 2, 1]
    assert [statement for document in made for statement in document["Statement"]] == said


def test_what_no_role_can_hold_is_refused():
    with pytest.raises(StacksError, match="11 policies, the longest of"):
        documents("1", statements(Grant("a:B", (f"{index}{'x' * 5_000}",)) for index in range(11)))


def test_the_command_prints_json_and_says_what_it_leaves_out():
    done = CliRunner().invoke(main, ["policy", "aws-dev"])

    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert list(printed) == [f"gpu-fleet-aws-dev-deployer-{number + 1}" for number in range(len(printed))]
    assert "Pulumi's state is left out" in done.stderr
    assert allows([json.dumps(document) for document in printed.values()], *ALLOWED["a bucket"])


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

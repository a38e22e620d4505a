"""Where logs of instances go: declared once, under the stack's key, written by instances and read by none."""

import base64
import tomllib
from functools import partial

import pytest
import yaml

from stacks.payload.instance_file import PATH
from tests.stacks import alicloud_examples, examples, judges, test_queue
from tests.stacks import alicloud_programs as programs
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.judges import MAY, MAY_NOT, Right

GROUP, STORE = "aws:cloudwatch/logGroup:LogGroup", "alicloud:log/store:Store"
INDEX = "alicloud:log/storeIndex:StoreIndex"
READS_AND_DELETES = ["GetLogEvents", "FilterLogEvents", "StartQuery", "DeleteLogStream", "DeleteLogGroup"]


@pytest.fixture
def aws():
    return judges.judge_of(judges.AWS_PAIR.name)


@pytest.fixture
def alicloud():
    return judges.judge_of(judges.ALICLOUD_PAIR.name)


def aws_group(aws) -> str:
    return aws.arn("logs", f"log-group:{aws.settings.instance_log}")


def alicloud_store(alicloud, store="") -> str:
    project, own = alicloud.settings.instance_log.split("/")
    return alicloud.arn("log", f"project/{project}/logstore/{store or own}")


def test_the_group_is_under_the_stacks_key_and_its_retention(aws):
    (group,) = [each for each in aws.found.of_type(GROUP) if each.inputs["name"] == aws.settings.instance_log]

    assert group.inputs["kmsKeyId"] == aws.key
    assert group.inputs["retentionInDays"] == aws.settings.logs.retention_days


def test_the_lines_of_the_store_can_be_searched(alicloud):
    (index,) = alicloud.found.of_type(INDEX)

    assert f"{index.inputs['project']}/{index.inputs['logstore']}" == alicloud.settings.instance_log
    assert set(" =/'") < set(index.inputs["fullText"]["token"])


def test_cloudwatch_logs_may_use_the_key_for_the_group(aws):
    group = aws_group(aws)
    request = Request(
        "kms:GenerateDataKey",
        aws.key,
        f"logs.{aws.settings.region}.amazonaws.com",
        {"kms:EncryptionContext:aws:logs:arn": group},
    )

    policies = aws.of_resource(aws.key)
    assert decide(request, [], policies, [], resource_must_allow=True) is Verdict.ALLOWED


def test_an_instance_writes_the_streams_of_its_own_pool_and_no_other_log(aws):
    group, writes = aws_group(aws), ["logs:CreateLogStream", "logs:PutLogEvents"]
    others = [f"/gpu-fleet/{aws.settings.name}/flow", f"/aws/lambda/gpu-fleet-{aws.settings.name}-reaper"]

    def rights():
        for name in aws.pools:
            own = partial(Right, f"{name}-instance")
            yield own("makes streams", MAY, writes[:1], f"{group}:log-stream:")
            for place in aws.pools:
                verdicts = MAY if place == name else MAY_NOT
                yield own("writes its pool's alone", verdicts, writes[1:], f"{group}:log-stream:{place}/i-1")
            for other in (*others, "/gpu-fleet/x/instances"):
                arn = aws.arn("logs", f"log-group:{other}:log-stream:dev/i-1")
                yield own("writes no other log", MAY_NOT, writes, arn)

    assert [*aws.wrong(rights())] == []


def test_an_instance_reads_and_deletes_no_log(aws):
    actions = [f"logs:{action}" for action in READS_AND_DELETES]
    places = (aws_group(aws), f"{aws_group(aws)}:log-stream:dev/i-1")

    rights = [Right("dev-instance", "reads and deletes no log", MAY_NOT, actions, place) for place in places]

    assert [*aws.wrong(rights)] == []


def test_the_store_is_encrypted_and_keeps_lines_as_long_as_the_setting_says(alicloud):
    project, store = alicloud.settings.instance_log.split("/")
    (found,) = [each for each in alicloud.found.of_type(STORE) if each.inputs["logstoreName"] == store]

    assert found.inputs["projectName"] == project
    assert found.inputs["encryptConf"]["enable"]
    assert found.inputs["retentionPeriod"] == alicloud.settings.logs.retention_days
    assert alicloud.found.outputs["instance_log"] == alicloud.settings.instance_log


def test_an_instance_writes_the_store_of_its_stack_alone(alicloud):
    own, write = alicloud_store(alicloud), "log:PostLogStoreLogs"
    flow = own.replace("-instances-", "-flow-").replace("/logstore/instances", "/logstore/flow")

    assert flow != own
    assert alicloud.may("dev-instance", write, own)
    assert not alicloud.may("dev-instance", write, flow)
    assert not alicloud.may("dev-instance", write, alicloud_store(alicloud, "another"))


def test_an_instance_reads_and_deletes_no_store(alicloud):
    for action in ("GetLogStoreLogs", "PullLogs", "DeleteLogStore", "UpdateLogStore", "DeleteProject"):
        assert not alicloud.may("dev-instance", f"log:{action}", alicloud_store(alicloud))


def files(found, kind):
    """The instance files that user data of a kind of resource writes."""
    made = []
    for resource in found.of_type(kind):
        config = yaml.safe_load(base64.b64decode(resource.inputs["userData"]))
        (text,) = [file["content"] for file in config["write_files"] if file["path"] == PATH]
        made.append(tomllib.loads(text))
    return made


TEMPLATES = {
    "aws": "aws:ec2/launchTemplate:LaunchTemplate",
    "alicloud": "alicloud:ecs/ecsLaunchTemplate:EcsLaunchTemplate",
}


def test_every_instance_learns_where_its_log_is_the_queues_controller_too(register):
    settings = examples.stack(**test_queue.QUEUED)

    made = files(register(settings), TEMPLATES["aws"])

    assert {file["pool"] for file in made} == {"", *(pool.name for pool in settings.pools)}
    assert {file["instance_log"] for file in made} == {settings.instance_log}


def test_the_queues_controller_writes_below_a_folder_of_its_own(register):
    settings = examples.stack(**test_queue.QUEUED)
    found = register(settings)
    (policy,) = [
        each.inputs["policy"]
        for each in found.of_type("aws:iam/rolePolicy:RolePolicy")
        if each.name == f"gpu-fleet-{settings.name}-queue"
    ]
    streams = (
        f"arn:aws:logs:{settings.region}:{settings.account_id}:log-group:{settings.instance_log}:log-stream:"
    )

    def may(stream: str) -> bool:
        request = Request("logs:PutLogEvents", streams + stream, "arn:aws:iam::123456789012:role/x", {})
        return decide(request, [policy], [], [], resource_must_allow=False) is Verdict.ALLOWED

    assert may("queue/i-1")
    assert not may("dev/i-1")


def test_without_the_setting_nothing_is_declared_allowed_or_sent_on_aws(register):
    found = register(examples.stack(logs={"instances": False}))

    assert not [each for each in found.of_type(GROUP) if each.inputs["name"].endswith("/instances")]
    assert not [file for file in files(found, TEMPLATES["aws"]) if "instance_log" in file]
    policies = [each.inputs["policy"] for each in found.of_type("aws:iam/rolePolicy:RolePolicy")]
    assert not [policy for policy in policies if "/instances:" in policy]


def test_without_the_setting_nothing_is_declared_allowed_or_sent_on_alibaba_cloud():
    found = programs.register(alicloud_examples.stack(logs={"instances": False}))

    assert not [each for each in found.of_type(STORE) if each.inputs["logstoreName"] == "instances"]
    assert not [file for file in files(found, TEMPLATES["alicloud"]) if "instance_log" in file]
    policies = [each.inputs["policyDocument"] for each in found.of_type("alicloud:ram/policy:Policy")]
    assert not [policy for policy in policies if "/logstore/instances" in policy]

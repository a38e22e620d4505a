"""Logs: instances write theirs under the stack's key and cannot read them; retention of all logs."""

import tomllib
from functools import partial

import pytest

from gpu_fleet_stacks.core.errors import SettingsError
from gpu_fleet_stacks.payload.instance_file import PATH
from tests.stacks import alicloud_examples, examples, judges, test_queue
from tests.stacks.clouds import WORDS
from tests.stacks.iam import Request, Verdict, decide
from tests.stacks.judges import MAY, MAY_NOT, Right
from tests.stacks.registered import TEMPLATES, files_of
from tests.stacks.registrations import declared, stood

GROUP, STORE = "aws:cloudwatch/logGroup:LogGroup", "alicloud:log/store:Store"
INDEX = "alicloud:log/storeIndex:StoreIndex"
READS_AND_DELETES = [
    *("logs:GetLogEvents", "logs:FilterLogEvents", "logs:StartQuery"),
    *("logs:DeleteLogStream", "logs:DeleteLogGroup"),
]


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


def test_an_instance_writes_the_streams_of_its_own_pool_alone_and_reads_and_deletes_no_log(aws):
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
            for place in (group, f"{group}:log-stream:{name}/i-1"):
                yield own("reads and deletes no log", MAY_NOT, READS_AND_DELETES, place)

    assert [*aws.wrong(rights())] == []


def test_the_store_is_encrypted_and_keeps_lines_as_long_as_the_setting_says(alicloud):
    project, store = alicloud.settings.instance_log.split("/")
    (found,) = [each for each in alicloud.found.of_type(STORE) if each.inputs["logstoreName"] == store]

    assert found.inputs["projectName"] == project
    assert found.inputs["encryptConf"]["enable"]
    assert found.inputs["retentionPeriod"] == alicloud.settings.logs.retention_days
    assert alicloud.found.outputs["instance_log"] == alicloud.settings.instance_log


def test_an_instance_writes_the_store_of_its_stack_alone_and_reads_and_deletes_none(alicloud):
    own, write = alicloud_store(alicloud), ["log:PostLogStoreLogs"]
    flow = own.replace("-instances-", "-flow-").replace("/logstore/instances", "/logstore/flow")
    reads, ends = ["log:GetLogStoreLogs", "log:PullLogs"], ["log:DeleteLogStore", "log:DeleteProject"]
    instance = partial(Right, "dev-instance")

    rights = [
        instance("writes its stack's", MAY, write, own),
        *(
            instance("no other", MAY_NOT, write, store)
            for store in (flow, alicloud_store(alicloud, "another"))
        ),
        instance("reads and deletes none", MAY_NOT, [*reads, *ends, "log:UpdateLogStore"], own),
    ]
    assert flow != own
    assert [*alicloud.wrong(rights)] == []


def test_every_instance_learns_where_its_log_is_the_queues_controller_too():
    settings = test_queue.AWS.stack()

    made = started(stood(settings))

    assert {file["pool"] for file in made} == {"", *(pool.name for pool in settings.pools)}
    assert {file["instance_log"] for file in made} == {settings.instance_log}


def started(found):
    """Return the instance files of all instances, including the queue's controller."""
    made = [each for kind in TEMPLATES for each in found.of_type(kind)]
    return [tomllib.loads(files_of(each)[PATH]) for each in made]


def test_the_queues_controller_writes_below_a_folder_of_its_own():
    settings = test_queue.AWS.stack()
    found = stood(settings)
    group = f"log-group:{settings.instance_log}"
    streams = f"arn:aws:logs:{settings.region}:{settings.account_id}:{group}:log-stream:"

    def may(stream: str) -> bool:
        return test_queue.AWS.may(found, test_queue.CONTROLLER, "logs:PutLogEvents", streams + stream)

    assert may("queue/i-1")
    assert not may("dev/i-1")


@pytest.mark.parametrize(
    ("make", "kind", "name", "part"),
    [
        (examples.stack, GROUP, "name", "/instances:"),
        (alicloud_examples.stack, STORE, "logstoreName", "/logstore/instances"),
    ],
    ids=["aws", "alicloud"],
)
def test_without_the_setting_nothing_is_declared_allowed_or_sent(make, kind, name, part):
    settings = make(logs={"instances": False})
    found, words = declared(settings), WORDS[settings.cloud]

    assert not [each for each in found.of_type(kind) if each.inputs[name].endswith("instances")]
    assert not [file for file in started(found) if "instance_log" in file]
    policies = found.of_type(words.role_policy)
    assert not [each.name for each in policies if part in each.inputs[words.document]]


# how long


def periods(settings):
    """Return the retention of each log."""
    keys = {GROUP: "retentionInDays", STORE: "retentionPeriod"}
    return [made.inputs[key] for kind, key in keys.items() for made in declared(settings).of_type(kind)]


@pytest.mark.parametrize("make", [examples.stack, alicloud_examples.stack])
def test_one_setting_is_for_every_log_and_without_it_all_are_kept_as_long(make):
    kept, by_default = periods(make(logs={"retention_days": 400})), periods(make())

    assert set(kept) == {400}
    assert set(by_default) == {90}
    assert len(kept) >= 3  # connections, sweep, mover


def test_the_flow_log_alone_may_differ():
    network = {"cidr": "10.0.0.0/16", "zones": ["us-east-1a"], "flow_log_retention_days": 7}

    assert set(periods(examples.stack(network=network, logs={"retention_days": 30}))) == {7, 30}


@pytest.mark.parametrize("days", [100, 0, 3650])
def test_a_period_that_cloudwatch_does_not_know_is_refused_with_those_it_does(days):
    with pytest.raises(SettingsError) as caught:
        examples.stack(logs={"retention_days": days})

    (line,) = [line for line in str(caught.value).splitlines() if "logs.retention_days" in line]
    assert f"logs.retention_days = {days}: must be " in line
    assert [day for day in ("1", "90", "365", "400", "2922") if day not in line.partition(": ")[2]] == []

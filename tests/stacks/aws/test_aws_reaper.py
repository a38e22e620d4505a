"""The declared sweep of a stack: its rights, its code, its alarms."""

import json
import os
import shutil
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import boto3
from hypothesis import HealthCheck, given, settings

from gpu_fleet_image.core import keys
from gpu_fleet_image.core import policy as policies
from gpu_fleet_image.core.document import written
from gpu_fleet_stacks.payload import sweep_archive, sweep_policy
from gpu_fleet_stacks.rehearsal.archives import archive_files, zip_bytes
from gpu_fleet_stacks.settings import stack_files
from gpu_fleet_stacks.settings.reader import from_mapping
from tests.ran import ran
from tests.stacks import examples
from tests.stacks.clouds import Declared, code_of
from tests.stacks.standing import usable

ALARM = "aws:cloudwatch/metricAlarm:MetricAlarm"
HANDLER_SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, sys.argv[2])

class Context:
    aws_request_id = "request-1"
    def get_remaining_time_in_millis(self):
        return 120_000

from gpu_fleet_image.controllers.sweep.handler import handle
summary = handle({}, Context())
print(json.dumps({"summary": summary, "modules": sorted(sys.modules)}))
"""


def own(found: Declared, token: str, end: str = "-reaper") -> dict:
    """Return the inputs of the only resource of a type whose name ends so."""
    (made,) = [resource for resource in found.of_type(token) if resource.name.endswith(end)]
    return made.inputs


def test_one_sweep_at_a_time_without_retries_as_often_as_the_settings_say(declared):
    function = own(declared, "aws:lambda/function:Function")
    invocation = own(declared, "aws:lambda/functionEventInvokeConfig:FunctionEventInvokeConfig")
    schedule = own(declared, "aws:scheduler/schedule:Schedule")
    log = own(declared, "aws:cloudwatch/logGroup:LogGroup")

    assert function["reservedConcurrentExecutions"] == 1
    assert (function["architectures"], function["runtime"]) == (["arm64"], "python3.12")
    assert invocation["maximumRetryAttempts"] == 0
    assert schedule["scheduleExpression"] == f"rate({declared.settings.reaper.every_minutes} minutes)"
    assert schedule.get("state", "ENABLED") == "ENABLED"
    kept = (log["name"], log["retentionInDays"], log["kmsKeyId"])
    name = f"/aws/lambda/gpu-fleet-{declared.settings.name}-reaper"
    assert kept == (name, declared.settings.logs.retention_days, declared.rehearsed.outputs["key_arn"])


def test_users_find_the_policy_of_the_sweep_under_the_stacks_own_key(declared):
    stored = own(declared, "aws:s3/bucketObjectv2:BucketObjectv2", "-reaper-policy")
    text = stored["content"]

    (records,) = [made for made in declared.of_type(declared.words.bucket) if made.id == stored["bucket"]]
    assert records.inputs["bucket"] == declared.settings.bucket_name("records")
    assert stored["key"] == keys.stored(keys.POLICY)
    assert text == archive_files(code_of(declared.settings, "reaper"))["policy.json"].decode()
    assert text == declared.rehearsed.outputs["policy"]
    assert policies.parse(text).stack == declared.settings.name
    kept = (stored["serverSideEncryption"], stored["kmsKeyId"])
    assert kept == ("aws:kms", declared.rehearsed.outputs["key_arn"])


def test_a_user_hears_of_a_sweep_that_fails_holds_back_or_is_silent_for_half_an_hour(declared):
    topic = [declared.rehearsed.outputs["topic_arn"]]
    metrics = {"errors": "Errors", "failures": "SweepFailures", "breaker": "SweepBreakerTrips"}
    for label, metric in metrics.items():
        alarm = own(declared, ALARM, f"-reaper-{label}")
        assert (alarm["metricName"], alarm["threshold"], alarm["alarmActions"]) == (metric, 1, topic)
    silent = own(declared, ALARM, "-reaper-silent")

    assert (silent["period"], silent["treatMissingData"]) == (1800, "breaching")
    assert silent["comparisonOperator"] == "LessThanThreshold"


def test_the_policy_names_an_alarm_that_the_stack_declares(declared):
    named = {
        pool["scale_in_alarm"] for pool in written(sweep_policy.policy(declared.settings))["pools"].values()
    } - {None}

    assert named <= {alarm["name"] for alarm in declared.inputs(ALARM)}
    assert named, "every shipped stack has a pool that scales"


@given(content=examples.stack_files())
@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
def test_the_policy_of_any_valid_settings_is_a_valid_policy(content):
    document = written(sweep_policy.policy(from_mapping("any", content)))

    parsed = policies.parse(json.dumps(document))
    assert set(parsed.pools) == {pool["name"] for pool in content["pools"]}


def test_the_policy_carries_what_users_wrote_and_the_catalogs_price():
    span = {"start": "19:00", "end": "07:00"}
    idle = {"after_hours": 8, "grace_minutes": 15, "quiet_hours": [span], "quiet_weekends": True}
    stack = examples.stack(pools=[examples.pool(idle=idle)], reaper={"time_zone": "Europe/Berlin"})

    document = written(sweep_policy.policy(stack))

    pool = document["pools"]["dev"]
    assert document["time_zone"] == "Europe/Berlin"
    assert (pool["idle_after_hours"], pool["grace_minutes"]) == (8, 15)
    assert pool["quiet_hours"] == [span]
    assert pool["require_acknowledgement"] is True
    assert pool["hourly_price"] == {"g5.xlarge": "1.006"}
    assert pool["scale_in_alarm"] == "gpu-fleet-test-dev-cpu-low"


def test_only_an_hour_on_demand_has_a_known_price_and_that_of_another_region_is_not_claimed():
    pools = [examples.pool(), examples.pool(name="cheap", market="spot")]
    network = {"cidr": "10.0.0.0/16", "zones": ["eu-central-1a"]}

    def prices(stack):
        pools = written(sweep_policy.policy(stack))["pools"]
        return {name: pool["hourly_price"]["g5.xlarge"] for name, pool in pools.items()}

    assert prices(examples.stack(pools=pools)) == {"dev": "1.006", "cheap": None}
    assert prices(examples.stack(region="eu-central-1", network=network)) == {"dev": None}


def test_the_policy_names_another_release_of_the_agent_where_its_sources_differ(tmp_path, monkeypatch):
    release = sweep_archive.agents_release("aws")
    shutil.copytree(sweep_archive.ROOT / "gpu_fleet_image", tmp_path / "gpu_fleet_image")
    monkeypatch.setattr(sweep_archive, "ROOT", tmp_path)
    agent = ("idle_detection.py", "sensors/gpu.py", "aws.py")
    is_new = dict.fromkeys((f"instance/agent/{name}" for name in agent), True)
    is_new |= dict.fromkeys((f"controllers/sweep/{name}" for name in ("verdict.py", "README.md")), False)

    found = {}
    for changed in is_new:
        path = tmp_path / "gpu_fleet_image" / changed
        before = path.read_text()
        path.write_text(f"{before}# more\n")
        found[changed] = sweep_archive.agents_release.__wrapped__("aws") != release
        path.write_text(before)

    assert found == is_new


def test_the_archive_is_the_same_for_the_same_settings_and_holds_nothing_of_the_agent():
    first, second = (code_of(examples.stack(), "reaper") for _ in "12")
    names = {name.removeprefix("gpu_fleet_image/") for name in archive_files(first)}

    assert zip_bytes(first) == zip_bytes(second)
    assert {"policy.json", "controllers/sweep/handler.py", "controllers/sweep/verdict.py"} <= names
    assert not names & {"instance/agent/loop.py", "console/cli.py", "instance/agent/sensors/gpu.py"}


def test_the_very_archive_sweeps_in_a_fresh_interpreter_with_boto3_alone(tmp_path):
    """Unzip Pulumi's upload, without click, rich, psutil and this checkout."""
    content = BytesIO(zip_bytes(code_of(stack_files.settings_of("aws-dev"), "reaper")))
    with zipfile.ZipFile(content) as archive:
        archive.extractall(tmp_path / "code")
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six.py"):
        (libraries / name).symlink_to(Path(boto3.__file__).parents[1] / name)
    command = [sys.executable, "-I", "-S", "-c", HANDLER_SCRIPT, str(tmp_path / "code"), str(libraries)]

    with usable("aws-dev") as rehearsed:
        environment = {
            **{key: value for key, value in os.environ.items() if key.startswith("AWS_")},
            "GPU_FLEET_LEDGER_URI": f"{rehearsed.outputs['bucket_uris']['records']}/reaper",
            "GPU_FLEET_TOPIC_ARN": rehearsed.outputs["topic_arn"],
        }
        done = ran(command, env=environment)

    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["summary"]["failed"] == []
    assert not {"click", "rich", "psutil", "pynvml", "pulumi"} & set(last["modules"])


def test_the_modules_of_the_bundle_are_found_by_their_imports():
    assert "gpu_fleet_image/controllers/sweep/verdict.py" in sweep_archive.modules()
    assert sweep_archive.modules("gpu_fleet_image.core.reaper_errors") == (
        "gpu_fleet_image/__init__.py",
        "gpu_fleet_image/core/__init__.py",
        "gpu_fleet_image/core/errors.py",
        "gpu_fleet_image/core/reaper_errors.py",
    )

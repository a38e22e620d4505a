"""A real agent process on a fast clock, with moto's CloudWatch."""

import json
import os
import secrets
import sys
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gpu_fleet_image.console.cli import main
from gpu_fleet_image.instance.agent.command import boot_time
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from tests.image.instance_toml import INSTANCE_TOML
from tests.image.one_instance import client, one_instance
from tests.image.programs import LONGEST_WAIT_S, running, until
from tests.ran import executable, ran

AGENT = [sys.executable, "-m", "gpu_fleet_image.console", "agent"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    with one_instance(tmp_path_factory.mktemp("instance")) as made:
        yield made


def run_agent(environment, run_dir, *arguments):
    return ran([*AGENT, *arguments], env=environment | {"GPU_FLEET_RUN_DIR": str(run_dir)}, timeout=120)


def watch(environment, run_dir, pid, hours, real_s):
    """Watch a process for simulated hours in real seconds; return each reported SecondsSinceActivity."""
    start = datetime.now(UTC) - timedelta(hours=hours)
    ended = run_agent(
        environment,
        run_dir,
        *("--instance-id", f"i-{pid}", "--watch-pid", str(pid), "--duration", str(hours * 3600)),
        *("--clock-start", start.isoformat(), "--clock-speed", str(hours * 3600 / real_s)),
    )
    assert ended.returncode == 0, ended.stderr
    answer = client(environment, "cloudwatch").get_metric_statistics(
        Namespace="GpuFleet/aws-dev",
        MetricName="SecondsSinceActivity",
        Dimensions=[{"Name": "InstanceId", "Value": f"i-{pid}"}],
        StartTime=start - timedelta(minutes=2),
        EndTime=start + timedelta(hours=hours, minutes=2),
        Period=60,
        Statistics=["Minimum"],
    )
    points = sorted(answer["Datapoints"], key=lambda point: point["Timestamp"])
    assert len(points) == hours * 60, "a heartbeat each minute"
    return [point["Minimum"] for point in points]


def test_a_process_that_does_nothing_is_idle_all_the_time(environment, tmp_path):
    with running("sleep", "600") as process:
        values = watch(environment, tmp_path, process.pid, 12, 0.5)

    assert values[-1] == pytest.approx(12 * 3600, abs=60)
    assert values == sorted(values)


def test_a_process_that_computes_is_never_idle_for_long(environment, tmp_path):
    with running(sys.executable, "-c", "while True: pass") as process:
        values = watch(environment, tmp_path, process.pid, 3, 2)

    assert values[-1] < 3 * 3600 / 2
    assert json.loads((tmp_path / "activity.json").read_text())["watch"] == f"process tree of {process.pid}"


@pytest.fixture
def instance(environment, tmp_path):
    """Serve the metadata of an instance with a file to keep; return what it says, its environment and bucket.

    ``called-wall`` exists once the agent has written to the terminals of this computer.
    """
    bucket, s3 = f"made-up-{secrets.token_hex(4)}", client(environment, "s3")
    s3.create_bucket(Bucket=bucket)
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/notes.txt").write_text("hello")
    executable(tmp_path / "bin/wall", f"#!/bin/sh\ntouch {tmp_path / 'called-wall'}\n")
    (tmp_path / "instance.toml").write_text(INSTANCE_TOML.replace("made-up", bucket))
    with metadata_service() as service:
        service.answers["/latest/meta-data/instance-id"] = "i-told"
        own = {
            "GPU_FLEET_INSTANCE_FILE": str(tmp_path / "instance.toml"),
            "GPU_FLEET_RUN_DIR": str(tmp_path / "run"),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.endpoint,
        }
        yield SimpleNamespace(says=service.answers, environment=environment | own, bucket=bucket, s3=s3)


def watch_until(found, environment, tmp_path, *arguments):
    """Run an agent, an hour in each second, until `found` is true of its log."""
    log = tmp_path / "agent.log"
    words = [*AGENT, "--keep-folder", tmp_path / "keep", *arguments, "--clock-speed", "3600"]
    with log.open("w") as file, running(*words, env=environment, stderr=file) as agent:
        until(lambda: agent.poll() is not None or found(log.read_text()), "what the agent should do")
        agent.terminate()
        assert agent.wait(LONGEST_WAIT_S) == 0, log.read_text()
    assert "event=stopped-by-signal" in log.read_text()


def kept(instance):
    listed = instance.s3.list_objects_v2(Bucket=instance.bucket).get("Contents", [])
    return [entry["Key"] for entry in listed]


def test_an_instance_that_its_group_terminates_is_stopped_and_saved(instance, tmp_path):
    instance.says["/latest/meta-data/autoscaling/target-lifecycle-state"] = "Terminated"
    file = tmp_path / "instance.toml"
    file.write_text(file.read_text().replace('"gpu-fleet-drain"', '""'))  # moto completes no hook

    with running("sleep", "600") as process:
        watched = ("--watch-pid", str(process.pid))
        watch_until(lambda log: "event=drained" in log, instance.environment, tmp_path, *watched)

    assert (tmp_path / "run/stop").read_text() == "the scaling group terminates this instance\n"
    assert "dev/keep/i-told/notes.txt" in kept(instance)


def test_a_marked_instance_saves_and_then_says_for_the_mark_that_nothing_runs(instance, tmp_path):
    """The agent of a simulated instance writes to no terminal of this computer."""
    start = datetime.now(UTC).replace(microsecond=0)
    instance.says["/latest/meta-data/tags/instance/gpu-fleet:reap-after"] = start.isoformat()

    def answers(_log=""):
        return [key for key in kept(instance) if "handshake" in key]

    with running("sleep", "600") as process:
        watched = ("--watch-pid", str(process.pid), "--clock-start", start.isoformat())
        watch_until(answers, instance.environment, tmp_path, *watched)

    assert "dev/keep/i-told/notes.txt" in kept(instance)
    (answer,) = answers()
    assert answer.endswith(f":i-told/{start:%Y%m%dT%H%M%SZ}/idle.json")
    assert not (tmp_path / "called-wall").exists()
    assert "This instance is idle" in (tmp_path / "run/terminals").read_text()


def test_the_instance_booted_as_long_ago_as_it_runs():
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    runs_s = (datetime.now(UTC) - boot_time()).total_seconds()
    after_s = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before_s - 1 <= runs_s <= after_s + 1  # the kernel says whole seconds


def test_a_program_that_the_stack_names_is_work(instance, tmp_path):
    """It uses the product's way: the instance's own agent reads the policy in the records bucket."""
    limits = {"cpu_cores": 64, "disk_kib_per_s": 2**20, "network_kib_per_s": 64}
    sensors = {"watch": ["blender"], "command": [], "command_timeout_s": 5, **limits}
    body = json.dumps({"pools": {"dev": {"sensors": sensors}}}).encode()
    instance.s3.put_object(Bucket=instance.bucket, Key="reaper/policy.json", Body=body)
    (tmp_path / "blender").symlink_to("/usr/bin/sleep")
    activity = tmp_path / "run/activity.json"

    with running(tmp_path / "blender", "600") as process:
        reason = f"process: blender ({process.pid}, root)"
        reasons = lambda _log: activity.exists() and reason in json.loads(activity.read_text())["reasons"]  # noqa: E731
        watch_until(reasons, instance.environment, tmp_path)

        assert reasons("")


def test_a_clock_start_without_a_zone_is_refused_with_what_is_allowed():
    refused = CliRunner().invoke(main, ["agent", "--clock-start", "2026-11-21T08:00:00"])

    assert refused.exit_code == 2
    assert "'2026-11-21T08:00:00'; allowed: ISO 8601 with a zone" in " ".join(refused.output.split())


def test_a_missing_instance_file_is_one_message(environment, tmp_path):
    ended = run_agent(environment | {"GPU_FLEET_INSTANCE_FILE": "/nowhere.toml"}, tmp_path)

    assert ended.returncode == 1
    assert ended.stderr == "error: instance file /nowhere.toml: No such file or directory\n"

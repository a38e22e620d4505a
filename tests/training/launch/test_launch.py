"""Launch: the peers, the command, the environment and the exit status."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
from click.testing import CliRunner
from moto import mock_aws

from gpu_fleet import cli
from gpu_fleet.core import outcome
from gpu_fleet.core.errors import LaunchError
from gpu_fleet.core.metadata import ThisInstance
from gpu_fleet_jobs.launch import launch
from gpu_fleet_jobs.launch.identity import Expected, read_identity
from gpu_fleet_jobs.launch.members import in_order, members_in_service
from gpu_fleet_jobs.launch.network import control_environment, environment
from gpu_fleet_jobs.launch.rendezvous import Rendezvous
from tests.image.metadata_server import Server, metadata_server
from tests.training.ports import reserved_port
from tests.training.programs import DIGITS, started

INSTANCE_FILE = """
schema_version = 1
cloud = "aws"
region = "us-east-1"
stack = "aws-dev"
pool = "train"
[expected."p4d.24xlarge"]
gpus = 8
efa_interfaces = 4
"""
CONFIG = """
[run]
directory = "{directory}"
steps = 10
[model]
name = "resnet_small"
[data]
path = "/nowhere"
"""


@pytest.fixture
def config_file(tmp_path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(CONFIG.format(directory=tmp_path / "runs" / "first"))
    return file


@pytest.fixture
def instance_file(tmp_path, monkeypatch) -> Path:
    file = tmp_path / "instance.toml"
    file.write_text(INSTANCE_FILE)
    monkeypatch.setenv("GPU_FLEET_INSTANCE_FILE", str(file))
    return file


@pytest.fixture
def metadata(monkeypatch):
    """Serve the metadata of one instance; yield the service, whose answers may be changed."""
    with metadata_server("aws") as served:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", served.base)
        served.says("instance-type", "p4d.24xlarge")
        yield served


@pytest.fixture
def pool(monkeypatch, metadata, instance_file):
    """Create three instances of one Auto Scaling group in moto; the metadata service is of the last."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        ec2 = boto3.client("ec2", region_name="us-east-1")
        template = ec2.create_launch_template(
            LaunchTemplateName="train",
            LaunchTemplateData={"ImageId": "ami-12345678", "InstanceType": "p4d.24xlarge"},
        )["LaunchTemplate"]["LaunchTemplateId"]
        tags = [{"Key": "gpu-fleet:stack", "Value": "aws-dev"}, {"Key": "gpu-fleet:pool", "Value": "train"}]
        subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        boto3.client("autoscaling", region_name="us-east-1").create_auto_scaling_group(
            AutoScalingGroupName="aws-dev-train",
            MinSize=3,
            MaxSize=3,
            DesiredCapacity=3,
            LaunchTemplate={"LaunchTemplateId": template},
            VPCZoneIdentifier=subnet,
            Tags=[{**tag, "PropagateAtLaunch": True} for tag in tags],
        )
        speak(metadata, members()[-1])
        yield metadata


def members() -> list[dict]:
    """Return the instances of the pool, lowest address first."""
    reservations = boto3.client("ec2", region_name="us-east-1").describe_instances()["Reservations"]
    found = [instance for reservation in reservations for instance in reservation["Instances"]]
    order = in_order([instance["PrivateIpAddress"] for instance in found])
    return sorted(found, key=lambda instance: order.index(instance["PrivateIpAddress"]))


def speak(metadata: Server, instance: dict) -> None:
    """Let the metadata service be that of `instance`."""
    metadata.says("instance-id", instance["InstanceId"])
    metadata.says("local-ipv4", instance["PrivateIpAddress"])


def dry_run(config_file: Path, *arguments: str):
    return CliRunner().invoke(cli.main, ["launch", str(config_file), "--dry-run", *arguments])


def test_every_instance_of_the_pool_meets_at_the_lowest_address_which_alone_hosts_the_rendezvous(
    pool, config_file
):
    """The command has the network variables of the type, and the overrides unchanged."""
    words = (config_file, "--nproc-per-node", "8", "--run.seed", "7")
    guest = dry_run(*words)
    speak(pool, members()[0])
    host = dry_run(*words)

    lowest = members()[0]["PrivateIpAddress"]
    assert guest.exit_code == 0, guest.output
    assert f"--nnodes=3 --rdzv-backend=c10d --rdzv-endpoint={lowest}:29400" in guest.output
    assert "--rdzv-id=aws-dev.train.first" in guest.output
    assert "--nproc-per-node=8" in guest.output
    assert ("is_host=false" in guest.output, "is_host=true" in host.output) == (True, True)
    assert "FI_PROVIDER=efa" in guest.output
    assert "FI_EFA_USE_DEVICE_RDMA=1" in guest.output
    assert guest.output.strip().endswith(f"-m gpu_fleet start {config_file} --run.seed 7")


def test_an_instance_of_no_fleet_trains_alone(config_file):
    result = dry_run(config_file, "--nproc-per-node", "2")

    assert "--standalone" in result.output
    assert "--rdzv-endpoint" not in result.output


def test_instances_of_another_pool_are_not_asked_and_one_without_a_group_trains_alone(pool, config_file):
    ec2 = boto3.client("ec2", region_name="us-east-1")
    tag = {"Key": "gpu-fleet:pool", "Value": "dev"}
    ec2.create_tags(Resources=[members()[0]["InstanceId"]], Tags=[tag])
    without_it = dry_run(config_file, "--nproc-per-node", "8")
    lone = ec2.run_instances(ImageId="ami-12345678", InstanceType="p4d.24xlarge", MinCount=1, MaxCount=1)
    speak(pool, lone["Instances"][0])

    assert "--nnodes=2" in without_it.output
    assert "--standalone" in dry_run(config_file, "--nproc-per-node", "8").output


def put_on_standby(instance_id):
    boto3.client("autoscaling", region_name="us-east-1").enter_standby(
        AutoScalingGroupName="aws-dev-train", InstanceIds=[instance_id], ShouldDecrementDesiredCapacity=True
    )


def test_an_instance_that_leaves_is_left_out_and_starts_nothing_itself(pool, config_file):
    put_on_standby(members()[0]["InstanceId"])
    without_it = dry_run(config_file, "--nproc-per-node", "8").output
    put_on_standby(members()[-1]["InstanceId"])
    itself = dry_run(config_file, "--nproc-per-node", "8")

    lowest = members()[1]["PrivateIpAddress"]
    assert f"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint={lowest}" in without_it
    assert itself.exit_code == 75
    assert "is Standby in its group, not InService" in itself.output


def test_a_missing_member_is_counted_instead_of_left_out():
    assert in_order(["10.0.0.10", "10.0.0.9"]) == ["10.0.0.9", "10.0.0.10"]  # by number
    instance = ThisInstance(instance_id="i-1", instance_type="p4d.24xlarge", address="10.0.0.1")
    states = {"i-1": "InService", "i-2": "InService", "i-3": "Pending:Wait"}
    members = [{"InstanceId": key, "LifecycleState": state} for key, state in states.items()]

    with pytest.raises(LaunchError, match="2 of 3 instances are InService; wait for i-3"):
        members_in_service(members, instance)


def test_an_instance_that_is_being_terminated_starts_nothing(config_file, monkeypatch, tmp_path):
    monkeypatch.setenv("GPU_FLEET_RUN_DIR", str(tmp_path))
    (tmp_path / "closed").write_text("This instance is idle and is being terminated\n")

    result = CliRunner().invoke(cli.main, ["launch", str(config_file), "--alone", "--dry-run"])

    assert result.exit_code == 75
    assert result.output == "error: This instance is idle and is being terminated\n"


def test_chosen_peers_replace_the_pool_and_this_instance_is_one_of_them(pool, config_file):
    first, last = (members()[place]["PrivateIpAddress"] for place in (0, -1))

    chosen = dry_run(config_file, "--nproc-per-node", "8", "--peers", f"{last},{first}")
    others = dry_run(config_file, "--nproc-per-node", "8", "--peers", "10.9.9.9")

    assert f"--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint={first}:29400" in chosen.output
    assert others.exit_code == 75
    assert f"this instance, {last}, is not among them" in others.output


def test_a_silent_metadata_service_and_fewer_gpus_than_the_pool_expects_are_named(
    pool, config_file, monkeypatch
):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 7)
    fewer = dry_run(config_file)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    silent = dry_run(config_file)

    assert (fewer.exit_code, silent.exit_code) == (75, 75)
    assert "7 GPUs on this instance, the pool expects 8;" in fewer.output
    asked = "http://127.0.0.1:1/latest/meta-data/instance-id"
    assert f"{asked}: the metadata service does not answer" in silent.output


def test_a_wrong_key_of_the_instance_file_is_named(instance_file):
    instance_file.write_text(INSTANCE_FILE.replace('"aws"', '"azure"'))

    with pytest.raises(LaunchError, match="cloud = 'azure'"):
        read_identity()


def test_the_network_variables_are_those_of_type_and_interfaces_and_what_a_user_has_set_stays():
    one_gpu = environment("p5.4xlarge", Expected(efa_interfaces=1), {})
    eight_gpus = environment("p5.48xlarge", Expected(efa_interfaces=32), {})
    erdma = environment("ecs.ebmgn8v.48xlarge", Expected(erdma_interfaces=2), {})

    assert "FI_PROVIDER" not in environment("p4d.24xlarge", Expected(gpus=8), {})
    assert "FI_PROVIDER" in environment("p4d.24xlarge", Expected(gpus=8, efa_interfaces=4), {})
    assert "FI_EFA_USE_DEVICE_RDMA" not in one_gpu  # the longest match of the table counts
    assert eight_gpus["FI_EFA_USE_DEVICE_RDMA"] == "1"
    assert (erdma["NCCL_IB_HCA"], erdma["NCCL_SOCKET_IFNAME"]) == ("erdma", "eth0")
    assert "NCCL_SOCKET_IFNAME" not in environment("p5.48xlarge", Expected(), {"NCCL_SOCKET_IFNAME": "ens5"})


def test_gloo_listens_where_the_other_instances_look_for_it(pool, config_file):
    pool.says("local-ipv4", "127.0.0.1")  # an address that this instance has

    result = dry_run(config_file, "--nproc-per-node", "8", "--peers", "127.0.0.1,127.0.0.2")

    assert "GLOO_SOCKET_IFNAME=lo " in result.output
    assert control_environment("127.0.0.1", {"GLOO_SOCKET_IFNAME": "ens5"}) == {}
    assert control_environment("192.0.2.1", {}) == {}  # kept for documentation: nobody has it


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
        ("import os, sys; sys.exit(7 if os.environ['FI_PROVIDER'] == 'efa' else 1)", 7),
    ],
)
def test_torchrun_has_the_variables_and_its_status_is_passed_on(code, status, tmp_path):
    assert launch.run([sys.executable, "-c", code], {"FI_PROVIDER": "efa"}, tmp_path) == status
    assert "FI_PROVIDER" not in os.environ


@pytest.mark.parametrize(("begins", "status"), [(True, 5), (False, 85)], ids=["in its steps", "before"])
def test_sigterm_reaches_the_child(*, begins, status, tmp_path):
    """A run that was still loading has nothing to save, and is run again."""
    child = (
        "import os, pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"pathlib.Path({str(tmp_path / outcome.BEGUN)!r}).touch() if {begins} else None\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "signal.pause()\n"
    )

    assert launch.run([sys.executable, "-c", child], {}, tmp_path) == status


def test_a_second_sigterm_does_not_reach_the_child():
    """torchrun would end at it, and leave its ranks in the middle of their last save."""
    sent = []
    forwarded = launch.Forwarded()
    forwarded.to(SimpleNamespace(send_signal=sent.append))

    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        signal.raise_signal(number)

    assert sent == [signal.SIGTERM, signal.SIGINT]


def test_a_sigterm_that_comes_as_the_child_begins_reaches_it(tmp_path, monkeypatch):
    class Slow(subprocess.Popen):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Slow)
    ended_by = []
    signal.signal(signal.SIGTERM, lambda number, _: ended_by.append(number))  # what would end launch

    assert launch.run(["sleep", "9"], {}, tmp_path) == 85
    assert ended_by == []


LEAVES_AND_WAITS = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as torchrun in a call of its store
pathlib.Path(sys.argv[1], sys.argv[2]).write_text(sys.argv[3])
time.sleep(100)
"""


@pytest.mark.parametrize(
    ("file", "text", "status"),
    [("failure.json", "{}", 65), ("result.json", '{"outcome": "stopped"}', 85)],
    ids=["no other try can help", "the notice has stopped the peer"],
)
def test_torchrun_is_not_waited_for_where_all_is_over(file, text, status, tmp_path, monkeypatch):
    for wait in ("LEAVE_S", "FAILED_TIMEOUT_S"):
        monkeypatch.setattr(launch, wait, 0.1)
    command = [sys.executable, "-c", LEAVES_AND_WAITS, str(tmp_path), file, text]

    assert launch.run(command, {}, tmp_path) == status


IS_HELD = """
import pathlib, sys, time
from gpu_fleet.core import outcome
outcome.write_refusal("in use by process 1 on elsewhere")
pathlib.Path(sys.argv[1], "waits").touch()
time.sleep(300)
"""


@pytest.mark.parametrize("notified", [False, True])
def test_torchrun_does_not_try_again_at_once_where_another_process_has_the_run(
    notified, tmp_path, monkeypatch
):
    """The start has waited for it already; no file is written into the directory of the other process."""
    awaited = launch._awaited

    def notify(process, **named):
        if notified:
            signal.raise_signal(signal.SIGTERM)
        return awaited(process, **named)

    monkeypatch.setattr(launch, "_awaited", notify)

    status = launch.run([sys.executable, "-c", IS_HELD, str(tmp_path)], {}, tmp_path)

    assert status == (85 if notified else 75)
    assert {entry.name for entry in tmp_path.iterdir()} <= {"waits"}


STOPS_WAITING = """
import sys
from gpu_fleet.core import outcome
from gpu_fleet.core.errors import StoppedError
outcome.leave_word(outcome.Path(sys.argv[1]), StoppedError("stopped before the first step"), 0)
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.parametrize("torchrun", [0, 1])
def test_a_notice_to_the_ranks_alone_while_they_wait_is_a_stop(torchrun, tmp_path):
    """`launch` itself does not see a spot notice or the stop file."""
    command = [sys.executable, "-c", STOPS_WAITING, str(tmp_path), str(torchrun)]

    assert launch.run(command, {}, tmp_path) == 85


IS_REFUSED = """
import os, pathlib, sys
from gpu_fleet.core import outcome
directory = pathlib.Path(sys.argv[1])
(directory / "result.json").write_text('{"outcome": "finished"}')
if "elsewhere" in sys.argv:
    del os.environ[outcome.LAUNCHED]
outcome.write_failure(directory, "data.path: is not a folder", 0)
"""
ALONE, TOGETHER = ["--standalone"], ["--rdzv-endpoint=10.0.0.1:29400", "--rdzv-id=stack.pool.run"]
on_any_number = pytest.mark.parametrize("meeting", [ALONE, TOGETHER], ids=["alone", "several instances"])


@on_any_number
@pytest.mark.parametrize(("where", "status"), [("here", 65), ("elsewhere", 0)])
def test_a_mistaken_command_in_the_same_directory_does_not_end_the_run(where, status, meeting, tmp_path):
    """A command that finds no data, started there by mistake, fails alone."""
    command = [sys.executable, "-c", IS_REFUSED, str(tmp_path), where, *meeting]

    assert launch.run(command, {}, tmp_path) == status


def test_the_instances_of_a_job_know_each_others_word():
    """In a shared directory any of them may write last."""
    here, there = (["torchrun", f"--local-addr={own}", *TOGETHER] for own in ("10.0.0.1", "10.0.0.2"))

    assert launch._token(here) == launch._token(there)
    assert launch._token(here) != launch._token([*ALONE, "--rdzv-endpoint=10.0.0.9:29400"])
    assert launch._token(ALONE) != launch._token(ALONE)


ENDS = """
import os, pathlib, sys
from gpu_fleet.core import outcome
directory, word, status = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if word == "failed":
    outcome.write_failure(directory, "data.path: is not a folder", 0)
elif word:
    outcome.write(directory, outcome.Outcome(word, "", "", 1, 0.1, "", None, ""))
os.utime(directory, (0, 0))
for file in directory.iterdir():
    os.utime(file, (0, 0))  # the clock was set back by decades, or it is that of a server
sys.exit(status)
"""


@on_any_number
@pytest.mark.parametrize(
    ("word", "torchrun", "status"),
    [
        *(("stopped", 0, 85), ("stopped", 1, 85), ("failed", 1, 65)),
        *(("finished", 0, 0), ("finished", 1, 1), ("", 0, 75), ("", 1, 1)),
    ],
)
def test_what_the_ranks_leave_counts_whatever_the_clocks_say(*, word, torchrun, status, meeting, tmp_path):
    """An end without a result, such as by os._exit(0) in a user's code, does not count as finished."""
    command = [sys.executable, "-c", ENDS, str(tmp_path), word, str(torchrun), *meeting]

    assert launch.run(command, {}, tmp_path) == status


@on_any_number
@pytest.mark.parametrize("earlier", ["stopped", "failed"])
def test_the_word_of_an_earlier_launch_does_not_count_though_its_time_is_to_come(
    earlier, meeting, tmp_path, monkeypatch
):
    monkeypatch.setenv(outcome.LAUNCHED, launch._token(meeting))
    subprocess.run([sys.executable, "-c", ENDS, str(tmp_path), earlier, "0"], check=True)
    for file in tmp_path.iterdir():
        os.utime(file, (2**32, 2**32))

    assert launch.run([sys.executable, "-c", "raise SystemExit(1)", *meeting], {}, tmp_path) == 1
    assert launch.run([sys.executable, "-c", "raise SystemExit(0)", *meeting], {}, tmp_path) == 75


def test_two_instances_meet_and_start_their_trainers(forked, tmp_path):
    """Start real torchruns on two loopback addresses; the ranks print their help and end."""
    addresses = ("127.0.0.1", "127.0.0.2")
    with reserved_port(addresses[0]) as port:  # other tests meet at the port of every day
        plans = [
            launch.LaunchPlan(
                Rendezvous(2, addresses[0], own, is_host=own == addresses[0], port=port),
                1,
                "stack.pool.run",
                max_restarts=0,
                save_s=90,
                arguments=("--help",),
                variables={},
            )
            for own in addresses
        ]

        instances = [
            subprocess.Popen(plan.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            for plan in plans
        ]
        said = [instance.communicate(timeout=120)[0] for instance in instances]

    assert [instance.returncode for instance in instances] == [0, 0], said
    assert all("Train as CONFIG_FILE says" in text for text in said)


def test_sigterm_to_a_launch_saves_the_run_and_ends_well(digits, tmp_path):
    run = tmp_path / "run"
    places = ("--data.path", digits, "--run.directory", run)
    long = ("--run.epochs", 500, "--checkpoint.every_steps", 5)
    words = ("launch", DIGITS, "--alone", "--nproc-per-node", 1, *places, *long)

    with started("gpu_fleet", *words) as program:
        program.wait_for("event=checkpoint step=")
        program.process.send_signal(signal.SIGTERM)
        status = program.finish()

    result = json.loads((run / "result.json").read_text())
    assert status == 85, program.said
    assert (run / outcome.BEGUN).exists()
    assert (result["outcome"], result["reason"]) == ("stopped", "sigterm")
    assert (run / "checkpoints" / f"step-{result['step']}" / "manifest.json").exists()


def test_the_flight_recorder_of_torch_is_on_and_writes_into_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "50")  # what a person has set stays
    names = ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_TEMP_FILE"]
    written = tmp_path / "written"
    values = f"repr([os.environ[name] for name in {names}])"
    code = f"import os, pathlib; pathlib.Path({str(written)!r}).write_text({values})"

    launch.run([sys.executable, "-c", code], {}, tmp_path)

    assert written.read_text() == repr(["50", "1", f"{tmp_path}/collectives-rank-"])

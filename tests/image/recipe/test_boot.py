"""The baked disk booted under QEMU with the user data of a shipped stack, as a machine without its GPUs."""

import json
import tomllib
import urllib.parse
from dataclasses import replace

import boto3
import pytest

from gpu_fleet_image.core import keys, metrics
from gpu_fleet_image.recipe import lock
from gpu_fleet_stacks.rehearsal.metadata import metadata_service
from gpu_fleet_stacks.rehearsal.moto_server import environment, moto_server
from gpu_fleet_stacks.settings import ImageMode, people, stack_files
from tests.image.recipe.declared import instance_file_of, user_data
from tests.image.virtual_machine import VirtualMachine

pytestmark = [pytest.mark.image, pytest.mark.timeout(1500)]

STACK = "aws-prod"
POOL = "train"
TYPE = "p4d.24xlarge"  # eight GPUs, four EFA interfaces
REGION = "us-east-1"
# Emulated on busy cores; the bench has the figure, here stands what a hang looks like.
BOOT_TIMEOUT_S = 400
SLOW_S = 600  # importing torch, emulated
JOB = """
[run]
directory = "/scratch/runs/demo"
steps = 100000
log_every_steps = 1
[model]
name = "resnet_small"
options = { widths = [8], blocks = 1 }
[data]
path = "/scratch/digits"
[checkpoint]
every_steps = 2
[metrics]
progress = false
"""


@pytest.fixture(scope="module")
def declared():
    """The text that cloud-init reads on a machine of the pool, whose image is the one that was baked."""
    settings = stack_files.settings_of(STACK)
    image = replace(settings.image, mode=ImageMode.BAKED, bundled=True)
    templates = user_data(replace(settings, image=image))
    return next(text for name, text in templates.items() if f"-{POOL}-" in name)


@pytest.fixture(scope="module")
def cloud(declared):
    """moto with a group of one instance, its buckets and a roster; a metadata service that says who asks."""
    written = tomllib.loads(instance_file_of(declared))
    checkpoints, records = (
        written[key].removeprefix("s3://").split("/")[0] for key in ("checkpoint_uri", "records_uri")
    )
    roster = people.roster_text(stack_files.settings_of(STACK)).encode()
    images = environment({"MOTO_EC2_LOAD_DEFAULT_AMIS": "true"})
    with images, moto_server(REGION) as endpoint, metadata_service() as metadata:
        s3 = boto3.client("s3", region_name=REGION, endpoint_url=endpoint)
        for bucket in {checkpoints, records}:
            s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=records, Key=keys.stored(keys.ACCOUNTS), Body=roster)
        autoscaling = boto3.client("autoscaling", region_name=REGION, endpoint_url=endpoint)
        image = boto3.client("ec2", region_name=REGION, endpoint_url=endpoint).describe_images()["Images"][0]
        autoscaling.create_launch_configuration(
            LaunchConfigurationName="template", ImageId=image["ImageId"], InstanceType=TYPE
        )
        autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=POOL,
            LaunchConfigurationName="template",
            MinSize=1,
            MaxSize=1,
            AvailabilityZones=["us-east-1a"],
        )
        member = autoscaling.describe_auto_scaling_instances()["AutoScalingInstances"][0]
        assert member["HealthStatus"].lower() == "healthy"
        metadata.answers |= {
            "/latest/meta-data/instance-id": member["InstanceId"],
            "/latest/meta-data/instance-type": TYPE,
        }
        yield endpoint, metadata.endpoint, member["InstanceId"]


@pytest.fixture(scope="module")
def guest(disk, cloud, declared, tmp_path_factory):
    """The machine after its gate has spoken."""
    endpoint, metadata, _ = cloud
    services = {
        "AWS_ENDPOINT_URL": urllib.parse.urlsplit(endpoint).port,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": urllib.parse.urlsplit(metadata).port,
    }
    credentials = {"AWS_ACCESS_KEY_ID": "moto", "AWS_SECRET_ACCESS_KEY": "moto"}
    folder = tmp_path_factory.mktemp("vm")
    with VirtualMachine(disk, folder, declared, services, credentials) as guest:
        guest.connect(BOOT_TIMEOUT_S)
        guest.wait_for("gpu-ready", "event=gate ready=False|not-ready", BOOT_TIMEOUT_S)
        yield guest


def at_s(guest, unit, event):
    """Seconds after the kernel's start of something that a unit's record holds."""
    return int(guest.run(f"systemctl show {unit} --value --property={event}TimestampMonotonic")) / 1e6


def test_cloud_init_ends_without_an_error_and_has_written_the_instance_file_of_the_stack(guest, declared):
    assert "status: done" in guest.run(f"timeout {BOOT_TIMEOUT_S} cloud-init status --wait", BOOT_TIMEOUT_S)
    assert guest.run("cat /etc/gpu-fleet/instance.toml").rstrip() == instance_file_of(declared).rstrip()


def test_the_drivers_module_is_there_for_the_running_kernel(guest):
    locked = {(artefact.name, artefact.base): artefact.version for artefact in lock.load()}

    version = guest.run("modinfo --field version nvidia-current-open").strip()
    guest.attempt("modprobe nvidia")

    assert locked["nvidia-driver", "debian-12"].startswith(version)
    assert "NVRM: No NVIDIA GPU found" in guest.run("dmesg")


def test_two_disks_are_one_striped_file_system(guest):
    assert guest.run("findmnt --noheadings --output FSTYPE /scratch").strip() == "xfs"
    assert "raid0 nvme1n1[1] nvme0n1[0]" in guest.run("cat /proc/mdstat")
    assert guest.run("stat --format=%a /scratch /scratch/keep /scratch/runs").split() == ["1777"] * 3


def test_boot_passes_its_phases_in_order_and_closes_the_metadata_service_before_any_session(guest):
    gate, closed = at_s(guest, "gpu-ready", "ExecMainExit"), at_s(guest, "gpu-metadata", "ActiveEnter")
    sessions = min(at_s(guest, unit, "InactiveExit") for unit in ("systemd-user-sessions", "ssh"))

    assert 0 < at_s(guest, "scratch", "ActiveEnter") < gate
    assert 0 < at_s(guest, "cloud-init", "ActiveEnter") < gate  # it writes the instance file
    assert 0 < closed < sessions
    assert "accept" in guest.run("nft list chain inet gpu_fleet asked")


def test_the_gate_counts_and_leaves_its_instances_health_to_the_sweep(guest, cloud):
    endpoint, _, instance_id = cloud
    report = json.loads(guest.run("cat /run/gpu-fleet/ready.json"))

    autoscaling = boto3.client("autoscaling", region_name=REGION, endpoint_url=endpoint)
    members = autoscaling.describe_auto_scaling_instances(InstanceIds=[instance_id])["AutoScalingInstances"]

    assert not report["ready"]
    assert report["checks"]["gpu_count"]["detail"].startswith("0 of 8 GPUs")
    assert report["checks"]["fabric"]["detail"] == "0 of 4 EFA interfaces"
    assert members[0]["HealthStatus"].lower() == "healthy"


def test_only_what_this_instance_cannot_have_fails_and_only_ssh_and_figures_listen(guest):
    failed = guest.run("systemctl list-units --state=failed --plain --no-legend").splitlines()
    listening = guest.run("ss --tcp --listening --numeric --no-header").splitlines()
    outside = [line.split()[3] for line in listening if "127.0.0" not in line and "%lo" not in line]

    # no GPU, and no file system with that name
    assert {line.split()[0] for line in failed} <= {"gpu-ready.service", "home-file-system.service"}
    assert {address.rsplit(":", 1)[1] for address in outside} <= {"22", "9100", "5355"}


def test_sessions_of_users_are_led_to_the_credentials_service_and_those_of_root_are_not(guest):
    led = "env | grep -c =http://127.0.0.1:823 || true"

    sessions = [guest.run(f"su {account} -s /bin/sh -c '{led}'").strip() for account in ("nobody", "root")]
    shell = guest.run(f"setpriv --reuid=nobody --clear-groups bash --login -c '{led}'").strip()

    assert (sessions, shell) == (["4", "0"], "4")


def test_the_trainers_account_reads_facts_of_its_instance_from_the_credentials_service(guest, cloud):
    asked = "http://127.0.0.1:823/latest/meta-data/instance-id"
    fetch = f'import urllib.request as u; print(u.urlopen("{asked}", timeout=30).read().decode())'

    said = guest.run(f"setpriv --reuid=gpu-fleet --clear-groups python3 -c '{fetch}'", SLOW_S)

    assert said.strip() == cloud[2]


def test_the_agent_publishes_that_it_cannot_see_its_gpus(guest, cloud):
    endpoint, _, instance_id = cloud
    guest.wait_for("gpu-reaper", "event=state state=unknown", SLOW_S)

    activity = json.loads(guest.run("cat /run/gpu-fleet/activity.json"))
    cloudwatch = boto3.client("cloudwatch", region_name=REGION, endpoint_url=endpoint)
    published = cloudwatch.list_metrics(Namespace=f"GpuFleet/{STACK}")["Metrics"]

    # services, and so shells of Session Manager, may pin memory for the network cards
    shown = guest.run("systemctl show gpu-reaper --property=ActiveState,LimitMEMLOCK")
    assert sorted(shown.split()) == ["ActiveState=active", "LimitMEMLOCK=infinity"]
    assert guest.ends_of_agent() == []
    assert (activity["state"], activity["instance_id"]) == ("unknown", instance_id)
    assert {"Name": metrics.DIMENSION_INSTANCE, "Value": instance_id} in [
        dimension for metric in published for dimension in metric["Dimensions"]
    ]


def test_a_reboot_keeps_scratch_and_a_stop_renews_it(guest):
    guest.run("touch /scratch/mine && umount /scratch && mdadm --stop --scan")

    guest.run("systemctl restart scratch")
    kept = guest.attempt("test -e /scratch/mine")[0] == 0
    guest.run("umount /scratch && mdadm --stop --scan && wipefs --all --quiet /dev/nvme0n1 /dev/nvme1n1")
    guest.run("systemctl restart scratch")

    assert kept
    assert guest.run("ls -A /scratch").split() == ["keep", "runs"]


def test_the_stop_file_ends_the_trainer_with_a_checkpoint(guest):
    prepare = "/opt/gpu-fleet/venv/bin/python -m gpu_fleet prepare digits /scratch/digits"
    guest.run(f"cd /scratch && HOME=/scratch runuser -u gpu-fleet -- {prepare}", SLOW_S)
    guest.write("/etc/gpu-fleet/jobs/demo.toml", JOB)
    guest.write("/etc/gpu-fleet/jobs/demo.env", "LAUNCH_OPTIONS=--alone --nproc-per-node 1\n")
    # the gate failed this machine without GPUs: whoever knows better says so
    assert guest.attempt("systemctl start trainer@demo")[0] != 0
    assert guest.run("systemctl show trainer@demo --value --property=AssertResult").strip() == "no"
    guest.run("touch /run/gpu-fleet/ready && systemctl start trainer@demo")
    guest.wait_for("trainer@demo", "event=checkpoint step=2 ", SLOW_S)

    guest.write("/run/gpu-fleet/stop", "idle for 12 hours\n")
    guest.wait_for("trainer@demo", "Deactivated successfully|Failed with", SLOW_S)

    result = json.loads(guest.run("cat /scratch/runs/demo/result.json"))
    assert guest.run("systemctl show trainer@demo --value --property=Result").strip() == "success"
    assert (result["outcome"], result["reason"]) == ("stopped", "stop-file")
    assert guest.run(f"find /scratch/runs/demo -type d -name step-{result['step']}")

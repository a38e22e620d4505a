"""From the user data that ``aws-dev`` registers to an instance that is marked, drained and terminated.

A plain Debian disk with nothing of ours boots under QEMU as an instance of the stack's own launch template.
cloud-init takes it for one of EC2's and asks the metadata service at 169.254.169.254 for the user data; from
there on everything on the instance is what that user data brings. What stands in for AWS answers under AWS's
names and refuses what is not signed by the role's keys, which only the metadata service hands out.

Of the test are, on the disk: host names, one certificate authority, and a library in the place of NVIDIA's
driver, for the virtual machine has no GPU. Hours pass at once where the pool's idle time and grace ask for it
(``Aws.pass_hours`` says what is moved). The pool is ``spot``: the other one leaves weekends alone, and this
test must run on each day.
"""

import json
import sys

import pytest

from gpu_fleet_stacks.settings import people, stack_files
from tests.image.recipe import first_boot, last_hours
from tests.image.stand_ins import nvml
from tests.image.stand_ins.aws import KEYS, POOL, REGION, STACK, aws_account
from tests.ran import ran
from tests.stacks import examples
from tests.stacks.registrations import ROOT

pytestmark = [pytest.mark.image, pytest.mark.timeout(3600)]

SETTINGS = next(pool for pool in stack_files.settings_of(STACK).pools if pool.name == POOL)


@pytest.fixture(scope="module")
def account(plain, tmp_path_factory):
    with aws_account(tmp_path_factory.mktemp("aws")) as account:
        yield account


@pytest.fixture(scope="module")
def instance(plain, account, tmp_path_factory):
    """The instance after its first heartbeat."""
    folder = tmp_path_factory.mktemp("first-boot")
    with account.guest(plain, folder, nvml.files(folder)) as instance:
        first_boot.record(first_boot.until_heartbeat(instance, account.heartbeats))
        yield instance


def environment_of(instance, unit: str) -> dict[str, str]:
    """What the unit's main process was started with."""
    words = instance.run(
        f"tr '\\0' '\\n' < /proc/$(systemctl show {unit} --value --property=MainPID)/environ"
    ).split("\n")
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_cloud_init_got_exactly_what_the_stack_registered(account, instance):
    assert instance.run("cat /var/lib/cloud/instance/user-data.txt").rstrip() == account.user_data.rstrip()
    assert instance.run("cloud-init query platform").strip() == "ec2"


def test_the_agent_runs_with_nothing_in_its_environment_that_leads_it(instance):
    assert instance.run("systemctl is-active gpu-reaper").strip() == "active"
    assert instance.ends_of_agent() == []
    assert not [
        name for name in environment_of(instance, "gpu-reaper") if name.startswith(("AWS", "GPU_FLEET"))
    ]


def test_the_agent_and_the_gate_see_the_gpu_that_the_stack_expects(account, instance):
    activity = first_boot.whole_activity(instance)
    checks = json.loads(instance.run("cat /run/gpu-fleet/ready.json"))["checks"]

    assert activity["instance_id"] == account.instance.id
    assert activity["gpu_memory_used_percent"] == pytest.approx(100 / 24)
    assert checks["gpu_count"] == {"ok": True, "detail": "1 of 1 GPUs", "count": 1}


def test_the_metadata_service_refuses_users_who_have_credentials_of_their_own(instance):
    """The gate has tried it as the trainer's account; root's services have the instance's role still."""
    instance.wait_for("gpu-ready", "event=gate ready=(True|False)", 300)
    checks = json.loads(instance.run("cat /run/gpu-fleet/ready.json"))["checks"]
    asked = "timeout 50 bash -c 'exec 3<>/dev/tcp/169.254.169.254/80'"

    assert checks["metadata"] == {"ok": True, "detail": "closed to users"}
    assert checks["user_credentials"] == {"ok": True, "detail": "users get the user role's"}
    assert "refused" in instance.attempt(f"setpriv --reuid=nobody --clear-groups {asked}")[1]
    instance.run(asked)


def test_no_file_that_users_read_holds_a_key_of_the_instances_role(instance):
    places = "/etc /run /var /tmp /opt"
    found = instance.run(
        f"setpriv --reuid=nobody --clear-groups grep -rlsF {KEYS.secret} {places} || true", 120
    )

    assert found.split() == []
    assert instance.run("stat --format='%U %a' /etc/gpu-fleet /etc/gpu-fleet/instance.toml").split() == [
        *("root", "755", "root", "644")
    ]


def test_every_request_was_signed_by_the_role_and_went_to_a_name_of_the_service(account, instance):
    assert account.front.refused == []
    assert {
        f"monitoring.{REGION}.amazonaws.com",
        f"{account.rehearsed.outputs['bucket_uris']['records'].removeprefix('s3://')}.s3.{REGION}.amazonaws.com",
    } <= account.front.hosts()


def test_users_have_accounts_once_the_stack_names_them(account, instance):
    assert instance.run("systemctl is-active gpu-accounts.timer").strip() == "active"
    ada = {"uid": 5001, "team": "vision", "admin": True}
    named = examples.stack(access={"people": {"ada": ada, "bob": {"uid": 5002}}})
    account.publish_people(people.roster_text(named))

    instance.attempt("systemctl start gpu-accounts", 180)  # it fails: the stack's shared homes are not there

    assert instance.run("id -u ada").strip() == "5001"
    assert "gpu-fleet-admins" in instance.run("id -Gn ada")
    assert "not mounted yet" in instance.run("journalctl --no-pager --unit=gpu-accounts")
    account.publish_people(people.roster_text(examples.stack()))
    instance.run("systemctl start gpu-accounts", 180)
    assert instance.run("getent passwd ada bob | cut -d: -f7").split() == ["/usr/sbin/nologin"] * 2


def test_status_outside_shows_the_instance(account, instance):
    command = [sys.executable, "-m", "gpu_fleet_image.console", "status", "--stack", STACK]

    shown = ran(command, cwd=ROOT, check=True).stdout

    (line,) = [line for line in shown.splitlines() if account.instance.id in line]
    assert "ml-platform" in line
    assert f"{POOL} g5.xlarge" in line
    assert "KEEP-unknown" not in line


def test_the_function_marks_the_idle_instance_waits_for_its_grace_and_terminates_it_once_it_saved(
    account, instance
):
    assert last_hours.lived(account, instance, SETTINGS) == last_hours.whole(account)

"""From the user data that ``alicloud-dev`` registers to an instance that is marked, drained and terminated.

As ``test_first_boot_aws.py``, with Alibaba Cloud's endpoints inside a VPC: its API by the tests' own server,
which holds every signature, and OSS by moto. The user data comes by cloud-init's NoCloud source (see
``stand_ins/alicloud.py``).
"""

import os
import sys

import pytest

from gpu_fleet_stacks.settings import stack_files
from tests.image.recipe import first_boot, last_hours
from tests.image.stand_ins import nvml
from tests.image.stand_ins.alicloud import OSS, POOL, REGION, STACK, alicloud_account
from tests.ran import ran
from tests.stacks.registrations import ROOT

pytestmark = [pytest.mark.image, pytest.mark.prove, pytest.mark.timeout(3600)]

SETTINGS = next(pool for pool in stack_files.settings_of(STACK).pools if pool.name == POOL)


@pytest.fixture(scope="module")
def account(plain, tmp_path_factory):
    with alicloud_account(tmp_path_factory.mktemp("alicloud")) as account:
        yield account


@pytest.fixture(scope="module")
def instance(plain, account, tmp_path_factory):
    """The instance after its first heartbeat."""
    folder = tmp_path_factory.mktemp("first-boot")
    with account.guest(plain, folder, nvml.files(folder)) as instance:
        found = first_boot.until_heartbeat(instance, account.heartbeats)
        first_boot.record(found, "bootstrap_first_heartbeat_alicloud_s")
        yield instance


def test_cloud_init_got_exactly_what_the_stack_registered_and_the_agent_sees_the_gpu_of_it(account, instance):
    assert instance.run("cat /var/lib/cloud/instance/user-data.txt").rstrip() == account.user_data.rstrip()
    assert first_boot.whole_activity(instance)["instance_id"] == account.instance.id


def test_every_request_was_made_by_the_role_and_went_to_a_name_inside_the_network(account, instance):
    records = account.rehearsed.outputs["bucket_uris"]["records"].removeprefix("oss://")

    assert account.front.refused == []
    assert {f"{records}.{OSS}", f"metrics-vpc.{REGION}.aliyuncs.com"} <= account.front.hosts()


def test_status_outside_shows_the_instance(account, instance):
    command = [sys.executable, "-m", "gpu_fleet_image.console", "status", "--stack", STACK]

    shown = ran(command, cwd=ROOT, env={**os.environ, **account.environment}, check=True).stdout

    (line,) = [line for line in shown.splitlines() if account.instance.id in line]
    assert f"{POOL} ecs.gn7i-c8g1.2xlarge" in line
    assert "KEEP-unknown" not in line


def test_the_function_marks_the_idle_instance_waits_for_its_grace_and_terminates_it_once_it_saved(
    account, instance
):
    assert last_hours.lived(account, instance, SETTINGS) == last_hours.whole(account)

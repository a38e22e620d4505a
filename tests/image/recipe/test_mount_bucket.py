"""A bucket as a folder: on each cloud the instance's own role signs."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.image.metadata_server import metadata_server
from tests.ran import executable, ran

ROOT = Path(__file__).parents[3]
PROGRAMS = ROOT / "image" / "gpu_fleet_image" / "recipe" / "rootfs" / "usr" / "libexec" / "gpu-fleet"
CREDENTIALS = "gpu_fleet_image.core.alicloud_credentials"
PROFILE = PROGRAMS.parents[1] / "share" / "gpu-fleet" / "oss-profile"


@pytest.fixture
def mounted(tmp_path):
    """How rclone is called on a cloud, and which profile it is pointed to."""
    for name, body in {"rclone": 'echo "$AWS_CONFIG_FILE" "$@"', "mkdir": "true"}.items():
        executable(tmp_path / name, f"#!/bin/sh\n{body}\n")

    def run(cloud):
        file = tmp_path / "instance.toml"
        file.write_text(f'cloud = "{cloud}"\nregion = "here-1"\ndata_uri = "s3://bucket"\n')
        environment = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "GPU_FLEET_INSTANCE_FILE": str(file),
            "AWS_CONFIG_FILE": "",
        }
        script = ["bash", PROGRAMS / "mount-bucket", "data"]
        return ran(script, env=environment, check=True).stdout

    return run


@pytest.fixture
def cached(tmp_path):
    """Runs the program for real up to rclone, with its cache at a place of the test's."""
    executable(tmp_path / "rclone", '#!/bin/sh\necho "$@"\n')
    file, cache = tmp_path / "instance.toml", tmp_path / "scratch/.bucket-cache"
    cache.parent.mkdir()
    file.write_text('cloud = "aws"\nregion = "here-1"\ndata_uri = "s3://bucket"\n')
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "GPU_FLEET_INSTANCE_FILE": str(file),
        "GPU_FLEET_CACHE_DIR": str(cache),
    }
    script = (PROGRAMS / "mount-bucket").read_text().replace("/mnt/", f"{tmp_path}/mnt/")

    def run(name="data"):
        command = ["bash", "-c", script, "mount-bucket", name]
        return ran(command, env=environment)

    return run, cache


def test_the_cache_lies_in_a_folder_of_roots_own_that_a_restart_finds_again(cached):
    run, cache = cached

    for _ in range(2):
        assert f"--cache-dir {cache}/data" in run().stdout
    assert oct(cache.stat().st_mode)[-3:] == "700"


def test_an_existing_bucket_is_mounted_by_its_name(cached, tmp_path):
    run, _ = cached
    with (tmp_path / "instance.toml").open("a") as file:
        file.write('existing_bucket_uris = ["s3://lab-datasets"]\n')

    assert f":lab-datasets {tmp_path}/mnt/lab-datasets --read-only" in run("lab-datasets").stdout


def test_a_bucket_that_the_stack_file_does_not_name_is_not_mounted(cached):
    run, _ = cached

    refused = run("lab-datasets")

    assert refused.returncode == 1
    assert "a bucket is data, checkpoint or a name in existing_bucket_uris" in refused.stderr


def test_a_link_planted_in_place_of_the_cache_is_refused(cached, tmp_path):
    run, cache = cached
    (tmp_path / "etc").mkdir()
    cache.symlink_to(tmp_path / "etc")

    refused = run()

    assert refused.returncode == 1
    assert f"{cache} is not root's own folder" in refused.stderr
    assert "mount" not in refused.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for two users")
def test_a_folder_of_another_in_place_of_the_cache_is_refused(cached):
    run, cache = cached
    cache.mkdir()
    os.chown(cache, 4242, 4242)

    assert run().returncode == 1


def test_on_aws_rclone_finds_the_role_itself(mounted):
    assert mounted("aws").startswith(" mount :s3,provider=AWS,env_auth=true,region=here-1:bucket /mnt/data ")


def test_on_alibaba_cloud_rclone_is_given_who_knows_the_role(mounted):
    called = mounted("alicloud")

    assert called.startswith("/usr/share/gpu-fleet/oss-profile mount :s3,provider=Alibaba,env_auth=true,")
    assert f"credential_process = /usr/bin/python3 -I /opt/gpu-fleet/bin/run {CREDENTIALS}\n" in (
        PROFILE.read_text()
    )


def credentials(base):
    return ran(
        [sys.executable, "-m", CREDENTIALS], cwd=ROOT, env={"GPU_FLEET_ALICLOUD_METADATA_ENDPOINT": base}
    )


def test_the_keys_of_the_role_are_given_as_the_sdk_of_aws_asks_for_them():
    with metadata_server("alicloud") as service:
        service.says("ram/security-credentials/", "fleet")
        service.says(
            "ram/security-credentials/fleet",
            '{"AccessKeyId": "STS.id", "AccessKeySecret": "secret", "SecurityToken": "token",'
            ' "Expiration": "2026-11-21T22:00:00Z", "Code": "Success"}',
        )

        done = credentials(service.base)

    assert json.loads(done.stdout) == {
        "Version": 1,
        "AccessKeyId": "STS.id",
        "SecretAccessKey": "secret",
        "SessionToken": "token",
        "Expiration": "2026-11-21T22:00:00Z",
    }


def test_an_instance_without_a_role_is_one_line():
    with metadata_server("alicloud") as service:
        done = credentials(service.base)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no keys of this instance's role: ")
    assert len(done.stderr.splitlines()) == 1

"""How an instance mounts homes, scratch and buckets: nothing is mounted, programs say what they were told."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.image.metadata_server import metadata_server
from tests.image.recipe.recipe import LIBEXEC, ROOTFS
from tests.ran import executable, ran

UNITS = ROOTFS / "etc/systemd/system"
EFS = 'cloud = "aws"\nhome_file_system = "fs-1.efs.example"\n'
EXTREME = 'cloud = "alicloud"\nhome_file_system = "1.extreme.nas.example"\n'
NAS = EXTREME.replace("1.extreme", "31a8e4-abc12.cn-shenzhen")
NO_HOMES = 'cloud = "aws"\nhome_file_system = ""\n'
LUSTRE = 'cloud = "aws"\nscratch_file_system = "fs-1.fsx.example"\nscratch_mount_name = "abcdefgh"\n'
BUCKETS = 'cloud = "aws"\nregion = "here-1"\ndata_uri = "s3://bucket"\nexisting_bucket_uris = ["s3://lab-datasets"]\n'
PROGRAMS = {
    "mount": 'echo "mount $*"',
    "mount.lustre": "exit 1",
    "mountpoint": "exit 1",
    "getent": "case $2 in *.example) ;; *) exit 2 ;; esac",
    "stunnel4": 'echo "stunnel4 $*"; cat',
    "rclone": 'echo "$AWS_CONFIG_FILE" "$@"',
}
CREDENTIALS = "gpu_fleet_image.core.alicloud_credentials"
KEYS = {"AccessKeyId": "STS.id", "Expiration": "2026-11-21T22:00:00Z"}


class Instance:
    """An instance's programs and its places, below a folder."""

    def __init__(self, root):
        self.root, self.shared, self.cache = root, root / "scratch/shared", root / "scratch/cache"
        self.shared.parent.mkdir()
        for name, body in PROGRAMS.items():
            self.program(name, body)

    def program(self, name, body):
        executable(self.root / "bin" / name, f"#!/bin/sh\n{body}\n")

    def run(self, script, text, *arguments):
        file = self.root / "instance.toml"
        file.write_text(text)
        environment = os.environ | {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "GPU_FLEET_INSTANCE_FILE": str(file),
            "GPU_FLEET_SHARED_SCRATCH": str(self.shared),
            "GPU_FLEET_CACHE_DIR": str(self.cache),
            "AWS_CONFIG_FILE": "",
        }
        here = (LIBEXEC / script).read_text().replace("/mnt/", f"{self.root}/mnt/")
        return ran(["bash", "-c", here, script, *arguments], env=environment)


@pytest.fixture
def instance(tmp_path):
    return Instance(tmp_path)


@pytest.mark.parametrize(
    ("text", "options", "what"),
    [
        (EFS, "nfs4 -o nfsvers=4.1,port=20049,resvport,", "127.0.0.1:/"),  # it refuses plain connections
        (EXTREME, "nfs -o vers=3,nolock,noacl,proto=tcp,", "1.extreme.nas.example:/share"),
        (NAS, "nfs -o vers=3,nolock,noacl,proto=tcp,", "31a8e4-abc12.cn-shenzhen.nas.example:/"),
    ],
)
def test_homes_are_mounted_as_their_file_system_asks_and_give_no_root_on_another(
    instance, text, options, what
):
    done = instance.run("mount-home", text)

    assert done.returncode == 0, done.stderr
    assert f"mount -t {options}" in done.stdout
    assert f" {what} /home\n" in done.stdout
    assert {"nosuid", "nodev"} <= set(re.search(r" -o (\S+) ", done.stdout)[1].split(","))


def test_the_tunnel_leads_to_the_file_system_and_to_no_other(instance):
    calls = instance.run("mount-home", EFS, "tunnel").stdout.splitlines()

    assert calls[0] == "stunnel4 -fd 0"
    assert {
        "accept = 127.0.0.1:20049",
        "connect = fs-1.efs.example:2049",
        "checkHost = fs-1.efs.example",
        "verifyChain = yes",
        "sslVersionMin = TLSv1.2",
    } <= set(calls)


@pytest.mark.parametrize(
    ("unit", "text", "needed"),
    [
        ("home-tunnel", EFS, True),
        ("home-tunnel", NAS, False),
        ("home-tunnel", NO_HOMES, False),
        ("scratch-file-system", LUSTRE, True),
        ("scratch-file-system", LUSTRE.replace("fs-1.fsx.example", ""), False),
        ("scratch-file-system", LUSTRE.replace('"aws"', '"alicloud"'), False),
    ],
)
def test_a_unit_starts_where_its_file_system_is_one_that_needs_it(tmp_path, unit, text, needed):
    (tmp_path / "instance.toml").write_text(text)
    here = (UNITS / f"{unit}.service").read_text().replace("/etc/gpu-fleet", str(tmp_path))
    conditions = re.findall("^ExecCondition=(.*)$", here, flags=re.MULTILINE)

    met = [subprocess.run(["sh", "-c", condition], check=False).returncode == 0 for condition in conditions]

    assert all(met) is needed


def test_an_unknown_name_is_reported_in_one_line(instance):
    done = instance.run("mount-home", EFS.replace("example", "nowhere"))

    assert done.returncode == 1
    assert done.stderr.endswith("home_file_system = 'fs-1.efs.nowhere': no such host\n")


@pytest.mark.parametrize("text", [NO_HOMES, NO_HOMES.replace("aws", "alicloud")])
def test_a_stack_without_homes_leaves_them_on_the_root_disk(instance, text):
    done = instance.run("mount-home", text)

    assert done.stdout == "event=home-on-root-disk reason=no-home-file-system\n"


def test_the_tunnel_comes_back_while_homes_hang():
    """To make mounts of its own a service walks over /home, and waits there for the tunnel that it is."""
    lines = (UNITS / "home-tunnel.service").read_text().splitlines()
    settings = {line.partition("=")[0] for line in lines}
    without_mounts = {"PrivateUsers", "ProtectClock"}  # systemd: exec_needs_mount_namespace()

    assert "User" in settings
    assert {
        name for name in settings if name.startswith(("DynamicUser", "Protect", "Private", "ReadOnly"))
    } <= without_mounts


def test_lustre_is_mounted_by_its_name_on_a_folder_of_its_own(instance):
    done = instance.run("mount-scratch", LUSTRE)

    options = "-t lustre -o nosuid,nodev,relatime,flock"
    assert done.stdout.startswith(f"mount {options} fs-1.fsx.example@tcp:/abcdefgh {instance.shared}\n")
    assert done.returncode == 0, done.stderr
    assert instance.shared.stat().st_mode & 0o777 == 0o755


def test_what_does_not_mount_fails_and_is_tried_again_as_long_as_the_instance_is_up(instance):
    unit = (UNITS / "scratch-file-system.service").read_text().splitlines()
    instance.program("mount", "echo 'no route' >&2; exit 32")
    failed = instance.run("mount-scratch", LUSTRE)
    instance.program("mount", PROGRAMS["mount"])

    assert failed.returncode == 32
    assert {"Restart=on-failure", "StartLimitIntervalSec=0"} <= set(unit)
    assert "event=scratch-mounted" in instance.run("mount-scratch", LUSTRE).stdout


def test_an_image_without_the_client_mounts_nothing(instance):
    (instance.root / "bin/mount.lustre").unlink()

    done = instance.run("mount-scratch", LUSTRE)

    said = "event=scratch-not-mounted reason=no-lustre-client server=fs-1.fsx.example\n"
    assert (done.returncode, done.stdout) == (0, said)
    assert not instance.shared.exists()


def test_what_is_mounted_already_is_left_alone(instance):
    instance.program("mountpoint", "exit 0")

    done = instance.run("mount-scratch", LUSTRE)

    assert (done.returncode, done.stdout) == (0, "")


TAKEN = {
    "link": lambda path: path.symlink_to(path.parents[1] / "bin"),
    "file": lambda path: path.touch(),
    "another's": lambda path: (path.mkdir(), os.chown(path, 4242, 4242)),
}


@pytest.mark.parametrize("kind", TAKEN)
@pytest.mark.parametrize("script", ["mount-scratch", "mount-bucket"])
def test_root_mounts_on_no_name_and_caches_in_none_that_a_user_took_first(instance, script, kind):
    if kind == "another's" and os.geteuid() != 0:
        pytest.skip("only root can act for two users")
    words = {"mount-scratch": (LUSTRE,), "mount-bucket": (BUCKETS, "data")}[script]
    taken = {"mount-scratch": instance.shared, "mount-bucket": instance.cache}[script]
    TAKEN[kind](taken)

    done = instance.run(script, *words)

    assert done.returncode == 1
    assert done.stderr == f"error: {taken} is not root's own folder: move it away\n"
    assert "mount " not in done.stdout


def test_the_cache_lies_in_a_folder_of_roots_own_that_a_restart_finds_again(instance):
    for _ in range(2):
        assert f"--cache-dir {instance.cache}/data" in instance.run("mount-bucket", BUCKETS, "data").stdout
    assert oct(instance.cache.stat().st_mode)[-3:] == "700"


def test_a_bucket_that_the_stack_file_names_is_mounted_by_its_name_and_no_other(instance):
    named = instance.run("mount-bucket", BUCKETS, "lab-datasets")
    refused = instance.run("mount-bucket", BUCKETS, "lab-others")

    assert f":lab-datasets {instance.root}/mnt/lab-datasets --read-only" in named.stdout
    assert refused.returncode == 1
    assert "a bucket is data, checkpoint or a name in existing_bucket_uris" in refused.stderr


def test_rclone_finds_the_role_itself_on_aws_and_is_given_who_knows_it_on_alibaba_cloud(instance):
    aws, alicloud = (
        instance.run("mount-bucket", BUCKETS.replace("aws", cloud), "data").stdout
        for cloud in ("aws", "alicloud")
    )

    data = f"bucket {instance.root}/mnt/data "
    assert aws.startswith(f" mount :s3,provider=AWS,env_auth=true,region=here-1:{data}")
    assert alicloud.startswith("/usr/share/gpu-fleet/oss-profile mount :s3,provider=Alibaba,env_auth=true,")
    assert f"credential_process = /usr/bin/python3 -I /opt/gpu-fleet/bin/run {CREDENTIALS}\n" in (
        (ROOTFS / "usr/share/gpu-fleet/oss-profile").read_text()
    )


def credentials(**answers):
    """What the program prints where the metadata service has these answers."""
    with metadata_server("alicloud") as service:
        for path, text in answers.items():
            service.says(f"ram/security-credentials/{path}", text)
        environment = os.environ | {"GPU_FLEET_ALICLOUD_METADATA_ENDPOINT": service.base}
        return ran([sys.executable, "-m", CREDENTIALS], env=environment)


def test_the_keys_of_the_role_are_given_as_the_sdk_of_aws_asks_for_them():
    secrets = {"AccessKeySecret": "secret", "SecurityToken": "token", "Code": "Success"}

    done = credentials(**{"": "fleet", "fleet": json.dumps(KEYS | secrets)})

    wanted = {"Version": 1, "SecretAccessKey": "secret", "SessionToken": "token"}
    assert json.loads(done.stdout) == KEYS | wanted


def test_an_instance_without_a_role_is_one_line():
    done = credentials()

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no keys of this instance's role: ")
    assert len(done.stderr.splitlines()) == 1

"""How an instance mounts the shared homes: each cloud's file system speaks its own NFS."""

import os
import re
import subprocess

import pytest

from tests.image.recipe.recipe import LIBEXEC, ROOTFS
from tests.ran import ran

SCRIPT = LIBEXEC / "mount-home"
UNIT = ROOTFS / "etc/systemd/system/home-tunnel.service"


@pytest.fixture
def instance(tmp_path):
    """Programs that only say how they were called; nothing is mounted."""
    (tmp_path / "mount").write_text('#!/bin/sh\necho "mount $*"\n')
    (tmp_path / "mountpoint").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "getent").write_text("#!/bin/sh\ncase $2 in *.example) ;; *) exit 2 ;; esac\n")
    (tmp_path / "stunnel4").write_text('#!/bin/sh\necho "stunnel4 $*"; cat\n')
    for name in ("mount", "mountpoint", "getent", "stunnel4"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


def run(instance, text, *arguments):
    (instance / "instance.toml").write_text(text)
    environment = os.environ | {
        "PATH": f"{instance}:{os.environ['PATH']}",
        "GPU_FLEET_INSTANCE_FILE": str(instance / "instance.toml"),
    }
    return ran(["bash", SCRIPT, *arguments], env=environment)


def mounted(instance, text):
    done = run(instance, text)
    assert done.returncode == 0, done.stderr
    return done.stdout


EFS = 'cloud = "aws"\nhome_file_system = "fs-1.efs.example"\n'
NAS = 'cloud = "alicloud"\nhome_file_system = "1.extreme.nas.example"\n'


def test_efs_which_refuses_plain_connections_is_mounted_through_the_tunnel(instance):
    mount_call = mounted(instance, EFS)

    assert "-t nfs4 -o nfsvers=4.1,port=20049,resvport," in mount_call
    assert "127.0.0.1:/ /home" in mount_call


def test_the_tunnel_leads_to_the_file_system_and_to_no_other(instance):
    done = run(instance, EFS, "tunnel")

    calls = done.stdout.splitlines()
    assert calls[0] == "stunnel4 -fd 0"
    assert {
        "accept = 127.0.0.1:20049",
        "connect = fs-1.efs.example:2049",
        "checkHost = fs-1.efs.example",
        "verifyChain = yes",
        "sslVersionMin = TLSv1.2",
    } <= set(calls)


@pytest.mark.parametrize(
    ("text", "needed"),
    [(EFS, True), (NAS, False), ('cloud = "aws"\nhome_file_system = ""\n', False)],
    ids=["efs", "nas", "none"],
)
def test_only_homes_on_efs_start_the_tunnel(tmp_path, text, needed):
    (tmp_path / "instance.toml").write_text(text)
    unit = UNIT.read_text().replace("/etc/gpu-fleet/instance.toml", str(tmp_path / "instance.toml"))
    conditions = re.findall("^ExecCondition=(.*)$", unit, flags=re.MULTILINE)

    assert (
        all(subprocess.run(["sh", "-c", condition], check=False).returncode == 0 for condition in conditions)
        is needed
    )


def test_an_unknown_name_is_reported_in_one_line(instance):
    done = run(instance, 'cloud = "aws"\nhome_file_system = "fs-1.efs.nowhere"\n')

    assert done.returncode == 1
    assert done.stderr.endswith("home_file_system = 'fs-1.efs.nowhere': no such host\n")


def test_extreme_nas_is_mounted_by_version_3_from_its_share(instance):
    mount_call = mounted(instance, NAS)

    assert "-t nfs -o vers=3,nolock,noacl,proto=tcp," in mount_call
    assert "1.extreme.nas.example:/share /home" in mount_call


def test_general_purpose_nas_is_mounted_from_its_root(instance):
    mount_call = mounted(
        instance, 'cloud = "alicloud"\nhome_file_system = "31a8e4-abc12.cn-shenzhen.nas.example"\n'
    )

    assert "-t nfs -o vers=3,nolock,noacl,proto=tcp," in mount_call
    assert "31a8e4-abc12.cn-shenzhen.nas.example:/ /home" in mount_call


@pytest.mark.parametrize("text", [EFS, NAS], ids=["efs", "nas"])
def test_what_root_of_one_instance_leaves_in_a_home_gives_no_root_on_another(instance, text):
    options = re.search(r" -o (\S+) ", mounted(instance, text))[1].split(",")

    assert {"nosuid", "nodev"} <= set(options)


@pytest.mark.parametrize("cloud", ["aws", "alicloud"])
def test_a_stack_without_homes_leaves_them_on_the_root_disk(instance, cloud):
    mount_call = mounted(instance, f'cloud = "{cloud}"\nhome_file_system = ""\n')

    assert mount_call == "event=home-on-root-disk reason=no-home-file-system\n"


def test_the_tunnel_comes_back_while_homes_hang():
    """To make mounts of its own a service walks over /home, and waits there for the tunnel that it is."""
    settings = {line.partition("=")[0] for line in UNIT.read_text().splitlines()}
    without_mounts = {"PrivateUsers", "ProtectClock"}  # systemd: exec_needs_mount_namespace()

    assert "User" in settings
    assert {
        name for name in settings if name.startswith(("DynamicUser", "Protect", "Private", "ReadOnly"))
    } <= without_mounts

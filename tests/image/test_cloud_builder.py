"""Steps as the clouds run them, on Ubuntu 24.04 that is up: what they ask apt for, and whom they trust."""

import re
import shutil
import subprocess
import tempfile

import pytest

from image import build_requirements, payload

VERSIONS = "versions/ubuntu-24.04.tsv"
DROP_IN = "nvidia-fabricmanager.service.d/10-nvswitch.conf"


@pytest.fixture
def cloud_builder(tmp_path):
    """Runs a step as a cloud would: /etc is made up, and programs only write down how they were called.

    Gives what was said and, in their order, the calls.
    """
    if build_requirements.hindrance() is not None or shutil.which("unshare") is None:
        pytest.skip("a step changes the instance: in mounts of its own, which need root and unshare")
    payload.write(payload.assemble(), tmp_path)
    for folder in ("sources.list.d", "preferences.d"):
        (tmp_path / "etc/apt" / folder).mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", tmp_path / "etc")
    shutil.copytree("/etc/alternatives", tmp_path / "etc/alternatives", symlinks=True)

    def run(step, target, answers=None):
        programs = dict.fromkeys(
            ("apt-get", "apt-mark", "systemctl", "systemd-run", "systemd-sysusers"), "true"
        ) | (answers or {})
        (tmp_path / "bin").mkdir()
        for name, body in programs.items():
            (tmp_path / "bin" / name).write_text(f'#!/bin/bash\necho "{name} $*" >>"$CALLS"\n{body}\n')
            (tmp_path / "bin" / name).chmod(0o755)
        own_etc = f'mount --bind "$PAYLOAD/etc" /etc; exec bash "$PAYLOAD/steps/{step}.sh"'
        done = subprocess.run(
            ["unshare", "--mount", "bash", "-e", "-c", own_etc],
            env={
                "PATH": f"{tmp_path}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "PAYLOAD": str(tmp_path),
                "FILES": str(tmp_path),
                "TARGET": target,
                "CALLS": str(tmp_path / "calls"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_services_may_pin_memory_for_the_network_cards(cloud_builder, tmp_path):
    done, _ = cloud_builder("10-base", "aws")

    assert done.returncode == 0, done.stderr
    said = (tmp_path / "etc/systemd/system.conf.d/60-gpu-fleet.conf").read_text()
    assert "[Manager]\nDefaultLimitMEMLOCK=infinity\n" in said


def test_a_builder_that_upgrades_itself_is_waited_for(cloud_builder):
    done, calls = cloud_builder("10-base", "aws")

    assert done.returncode == 0, done.stderr
    assert calls[:3] == [
        "systemctl stop apt-daily.timer apt-daily-upgrade.timer",
        "systemd-run --quiet --wait --property=After=apt-daily.service apt-daily-upgrade.service true",
        "apt-get update --quiet",
    ]


@pytest.mark.parametrize(("target", "kernel"), [("aws", "aws"), ("alicloud", "generic")])
def test_the_modules_are_of_the_clouds_own_kernel_and_of_its_version(cloud_builder, tmp_path, target, kernel):
    (tmp_path / VERSIONS).write_text("nvidia-driver\tversion\t580.95.05-0ubuntu1\n")
    answers = {
        "apt-cache": "echo 'nvidia-headless-no-dkms-580-server-open | 580.95.05-0ubuntu1 | noble'",
        "modinfo": "echo 580.95.05",
        "dpkg-query": "true",
        "find": 'case "$*" in *nvidia.ko*) echo nvidia.ko ;; /lib/modules*) echo 6.14.0-1018-aws ;; '
        '*) exec /usr/bin/find "$@" ;; esac',
    }

    done, calls = cloud_builder("20-driver", target, answers)

    assert done.returncode == 0, done.stderr
    driver, modules = [line.split() for line in calls if line.startswith("apt-get install ")]
    name = f"linux-modules-nvidia-580-server-open-{kernel}"
    assert "nvidia-utils-580-server=580.95.05-0ubuntu1" in driver
    assert modules[-1] == name
    assert f"apt-mark hold {name}" in calls


@pytest.fixture
def keys():
    """Two keys as an archive's maker publishes them: fingerprint -> the key in armour."""
    if shutil.which("gpg") is None:
        pytest.skip("no gpg on this computer")
    return dict(new_key(person) for person in ("maker", "stranger"))


def new_key(person):
    # its own folder: the agent's socket must have a short path
    with tempfile.TemporaryDirectory() as home:
        gpg = ["gpg", "--homedir", home, "--batch", "--passphrase", ""]

        def said(*arguments):
            return subprocess.run([*gpg, *arguments], check=True, capture_output=True, text=True).stdout

        said("--quick-generate-key", person, "default", "default")
        listed, armour = said("--list-keys", "--with-colons"), said("--armor", "--export")
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=True)
    return re.search(r"^fpr:+(\w+):", listed, flags=re.MULTILINE).group(1), armour


def archive(fingerprint):
    rows = {"uri": "https://archive.example ./", "file": "keys.asc", "key_fingerprint": fingerprint}
    return "".join(f"dcgm\t{field}\t{value}\n" for field, value in rows.items())


@pytest.mark.parametrize("stranger", [False, True], ids=["the maker's key", "and a stranger's"])
def test_apt_trusts_the_locked_key_and_none_beside_it(cloud_builder, tmp_path, keys, stranger):
    (locked, of_maker), (other, of_stranger) = keys.items()
    (tmp_path / "keys.asc").write_text(of_maker + (of_stranger if stranger else ""))
    (tmp_path / VERSIONS).write_text(archive(locked))
    (tmp_path / "steps/45-exporters.sh").write_text('set -e\n. "$PAYLOAD/lib.sh"\nrepository dcgm\n')

    done, _ = cloud_builder("45-exporters", "aws")

    assert done.returncode == int(stranger), done.stderr
    assert (tmp_path / "etc/apt/sources.list.d/dcgm.list").exists() is not stranger
    if stranger:
        assert f"fingerprint is {locked} {other}, versions.toml has {locked}" in done.stderr


def test_the_switches_of_a_b200_get_their_subnet_manager(cloud_builder, tmp_path, keys):
    fingerprint, key = next(iter(keys.items()))
    (tmp_path / "keys.asc").write_text(key)
    locked = "nvidia-driver\tversion\t580.95.05-0ubuntu1\nnvlsm\tversion\t2025.06.5-1\n"
    (tmp_path / VERSIONS).write_text(archive(fingerprint) + locked)

    done, calls = cloud_builder("25-nvswitch", "aws", {"dpkg-query": "echo 580.95.05-1"})

    assert done.returncode == 0, done.stderr
    assert any(call.endswith(" nvlsm=2025.06.5-1") for call in calls)
    conditions = (tmp_path / "etc/systemd/system" / DROP_IN).read_text()
    # either is enough: "|"
    assert "ConditionDirectoryNotEmpty=|/proc/driver/nvidia-nvswitch/devices\n" in conditions
    assert "ConditionPathExistsGlob=|/sys/class/infiniband/mlx5_*\n" in conditions

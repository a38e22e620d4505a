"""The baked root file system, looked at from outside and run from inside."""

import json
import re
import stat
from pathlib import Path

import pytest

from image import lock

pytestmark = [pytest.mark.image, pytest.mark.timeout(1500)]

ENABLED = ("scratch", "gpu-ready", "gpu-reaper", "home-file-system", "auditd", "prometheus-node-exporter")
PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:OPENSSH |RSA |EC |DSA |ENCRYPTED )?PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{64}"
)
TOKENS = re.compile(rb"\b(?:AKIA[0-9A-Z]{16}|LTAI[0-9A-Za-z]{16,20}|ghp_[0-9A-Za-z]{36}|hf_[A-Za-z]{34})\b")
# Where a machine's own secrets would lie; packages bring examples of keys elsewhere.
SECRET_PLACES = ("etc", "root", "home", "opt/gpu-fleet/lib", "var/lib", "srv", "usr/local")
LARGEST_GIB = 3.5


def version_of(name):
    return next(one.version for one in lock.load() if (one.name, one.base) == (name, "debian-12"))


def files_below(root, *places):
    for place in places:
        yield from (path for path in (root / place).rglob("*") if path.is_file() and not path.is_symlink())


def test_every_nvidia_package_has_the_drivers_version(inside):
    listing = inside(
        "dpkg-query --show --showformat '${Package} ${Version} ${source:Package} ${db:Status-Status}\\n'"
    )
    rows = [line.split() for line in listing.splitlines() if line.endswith(" installed")]
    driver = {
        name: version
        for name, version, source, _ in rows
        if source in ("nvidia-graphics-drivers", "nvidia-open-gpu-kernel-modules")
    }

    assert {"nvidia-open-kernel-dkms", "nvidia-smi", "libnvidia-ml1", "libcuda1"} <= driver.keys()
    assert set(driver.values()) == {version_of("nvidia-driver")}


def test_the_driver_was_built_for_the_kernel_that_boots(root, inside):
    kernels = [path.name for path in (root / "lib/modules").iterdir()]

    built = inside(f"modinfo --set-version {kernels[0]} --field version nvidia-current-open").strip()

    assert len(kernels) == 1
    assert version_of("nvidia-driver").startswith(built)
    assert built


def test_driver_and_kernel_are_held(inside):
    held = inside("apt-mark showhold").split()

    assert {"nvidia-open-kernel-dkms", "linux-image-cloud-amd64"} <= set(held)


def test_nothing_compiles_or_upgrades_at_boot(root):
    units = root / "etc/systemd/system"

    assert (units / "dkms.service").readlink() == Path("/dev/null")
    assert not list(units.rglob("apt-daily*.timer"))
    assert not (root / "usr/bin/unattended-upgrade").exists()


@pytest.mark.parametrize("unit", ENABLED)
def test_the_unit_starts_at_boot(root, unit):
    assert (root / f"etc/systemd/system/multi-user.target.wants/{unit}.service").is_symlink()


def test_no_machine_shares_an_identity(root):
    assert (root / "etc/machine-id").read_text() == ""
    assert not list((root / "etc/ssh").glob("ssh_host_*"))
    assert not (root / "var/lib/systemd/random-seed").exists()
    assert not list((root / "var/lib/cloud").glob("instance*"))


def test_no_private_key_or_token_lies_in_it(root):
    guilty = [
        str(path)
        for path in files_below(root, *SECRET_PLACES)
        if PRIVATE_KEY.search(content := path.read_bytes()) or TOKENS.search(content)
    ]

    assert guilty == []


def test_no_history_or_log_of_the_builder_lies_in_it(root):
    histories = [
        path for path in files_below(root, "root", "home", "opt/gpu-fleet/lib") if "_history" in path.name
    ]

    assert histories == []
    assert list(files_below(root, "var/log")) == []
    assert not (root / "root/.ssh").exists()
    assert not (root / "usr/sbin/policy-rc.d").exists()


def test_nobody_can_log_in_with_a_password(root):
    shadow = [line.split(":") for line in (root / "etc/shadow").read_text().splitlines()]

    assert {name for name, password, *_ in shadow if not password.startswith(("!", "*"))} == set()


def test_our_files_belong_to_root_and_only_programs_run(root):
    own = [
        *files_below(root, "usr/libexec/gpu-fleet"),
        *(root / "etc/systemd/system").glob("*.service"),
    ]
    for path in (path for path in own if not path.is_symlink()):
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (0, 0)
        assert bool(found.st_mode & stat.S_IXUSR) == ("libexec" in path.parts), path
        assert not found.st_mode & stat.S_IWOTH


def test_the_bill_of_materials_names_every_package(root, inside):
    bill = json.loads((root / "usr/share/gpu-fleet/sbom.cdx.json").read_text())
    urls = {component["purl"] for component in bill["components"]}
    listing = inside("dpkg-query --show --showformat '${Package} ${db:Status-Status}\\n'")
    installed = {line.split()[0] for line in listing.splitlines() if line.endswith(" installed")}
    wheels = inside("/opt/gpu-fleet/venv/bin/pip list --format=freeze --disable-pip-version-check").split()

    debian = {
        url.split("/")[2].split("@")[0].replace("%2B", "+") for url in urls if url.startswith("pkg:deb/")
    }
    python = {url.split("/")[1].split("@")[0] for url in urls if url.startswith("pkg:pypi/")}

    assert bill["bomFormat"] == "CycloneDX"
    assert installed == debian
    assert {wheel.split("==")[0].lower() for wheel in wheels} == python


def test_the_manifest_names_the_payload_it_was_made_from(root, baked):
    manifest = json.loads((root / "usr/share/gpu-fleet/manifest.json").read_text())

    assert manifest["payload_sha256"].startswith(baked.key)
    assert manifest["versions"]["torch"].startswith("2.13")


def test_sshd_takes_keys_only(inside):
    effective = inside(
        "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f /tmp/key && sshd -T -h /tmp/key"
    ).splitlines()

    assert "passwordauthentication no" in effective
    assert "permitrootlogin no" in effective


def test_a_root_file_system_is_small_enough(baked):
    assert baked.size_bytes / 2**30 <= LARGEST_GIB


def test_two_ranks_train_inside(inside):
    result = inside(
        "cd /tmp; ip link set lo up; export OMP_NUM_THREADS=1; python=/opt/gpu-fleet/venv/bin/python; "
        "$python -m training prepare digits digits >&2; "
        "cp /opt/gpu-fleet/lib/training/examples/digits.toml job.toml; "
        "$python -m training launch job.toml --alone --nproc-per-node 2 "
        "--data.path digits --run.directory run --run.epochs 0.0 --run.steps 6 --metrics.progress false >&2; "
        "cat run/result.json"
    )

    assert json.loads(result)["outcome"] == "finished"
    assert json.loads(result)["step"] == 6

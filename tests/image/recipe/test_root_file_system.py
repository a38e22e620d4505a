"""The baked root file system: testinfra looks at what is installed, set and enabled; the rest runs inside."""

import json
import re
from urllib.parse import unquote

import pytest
import testinfra
from packageurl import PackageURL

from gpu_fleet_image.recipe import lock

pytestmark = [pytest.mark.image, pytest.mark.timeout(1500)]

DRIVER = ("nvidia-open-kernel-dkms", "nvidia-smi", "libnvidia-ml1", "libcuda1")
OUR_SERVICES = ("scratch", "scratch-disk", "gpu-metadata", "gpu-ready", "gpu-reaper", "gpu-accounts", "mig")
FILE_SYSTEMS = ("home-file-system", "scratch-file-system")
ENABLED = (
    *(f"{name}.service" for name in (*OUR_SERVICES, *FILE_SYSTEMS, "auditd", "prometheus-node-exporter")),
    *("gpu-credentials.socket", "gpu-door.timer"),  # looks for a door that no agent opens
)
MASKED = ("dkms.service", "rpcbind.service", "rpcbind.socket", "systemd-binfmt.service")
PROGRAMS = (
    *("check-image", "mig", "mount-bucket", "mount-home", "mount-scratch", "open-door", "reserve-gpus"),
    *("scratch", "start-run"),
)
UNITS = (
    *(f"{name}.service" for name in (*OUR_SERVICES, "home-file-system", "home-tunnel", "gpu-door")),
    *("trainer@.service", "gpu-run@.service", "bucket@.service", "mig@.service", "gpu-door.timer"),
)
FILES = {f"/usr/libexec/gpu-fleet/{name}": 0o755 for name in PROGRAMS} | {
    f"/etc/systemd/system/{name}": 0o644 for name in UNITS
}
SOURCES = ("nvidia-graphics-drivers", "nvidia-open-gpu-kernel-modules")
PRIVATE_KEY = re.compile(
    rb"-----BEGIN (?:OPENSSH |RSA |EC |DSA |ENCRYPTED )?PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{64}"
)
TOKENS = re.compile(rb"\b(?:AKIA[0-9A-Z]{16}|LTAI[0-9A-Za-z]{16,20}|ghp_[0-9A-Za-z]{36}|hf_[A-Za-z]{34})\b")
# Where an instance's own secrets would lie; packages bring examples of keys elsewhere.
SECRET_PLACES = ("etc", "root", "home", "opt/gpu-fleet/lib", "var/lib", "srv", "usr/local")
LARGEST_GIB = 3.5


@pytest.fixture(scope="module")
def host(root):
    """The root file system as testinfra sees it."""
    return testinfra.get_host(str(root), connection="chroot")


def version_of(name):
    return next(
        artefact.version for artefact in lock.load() if (artefact.name, artefact.base) == (name, "debian-12")
    )


def installed(host, *fields):
    """The rows of those fields, one for each installed package."""
    form = " ".join(f"${{{field}}}" for field in (*fields, "db:Status-Status"))
    listing = host.check_output("dpkg-query --show --showformat %s", f"{form}\\n")
    return [line.split()[:-1] for line in listing.splitlines() if line.endswith(" installed")]


def files_below(root, *places):
    for place in places:
        yield from (path for path in (root / place).rglob("*") if path.is_file() and not path.is_symlink())


def test_every_package_of_the_driver_and_of_its_sources_has_the_locked_version(host):
    packages = installed(host, "Package", "Version", "source:Package")
    versions = {name: version for name, version, source in packages if source in SOURCES or name in DRIVER}

    assert set(DRIVER) <= versions.keys()
    assert set(versions.values()) == {version_of("nvidia-driver")}


def test_the_driver_was_built_for_the_kernel_that_boots_and_loads_where_there_is_a_gpu_alone(host):
    (kernel,) = host.file("/lib/modules").listdir()

    built = host.check_output("modinfo --set-version %s --field version nvidia-current-open", kernel)
    held = host.check_output("apt-mark showhold").split()

    assert built
    assert version_of("nvidia-driver").startswith(built)
    assert {"nvidia-open-kernel-dkms", "linux-image-cloud-amd64"} <= set(held)
    assert host.file("/etc/modules-load.d/nvidia.conf").linked_to == "/dev/null"
    assert 'ATTR{vendor}=="0x10de"' in host.file("/etc/udev/rules.d/70-gpu-fleet-nvidia.rules").content_string


def test_what_a_boot_needs_starts_and_what_none_needs_or_upgrades_behind_our_back_never_does(host):
    enabled = {unit: host.check_output("systemctl is-enabled %s", unit) for unit in ENABLED}
    masked = {unit: host.file(f"/etc/systemd/system/{unit}").linked_to for unit in MASKED}

    assert enabled == dict.fromkeys(ENABLED, "enabled")
    assert masked == dict.fromkeys(MASKED, "/dev/null")
    assert not host.package("unattended-upgrades").is_installed
    assert "apt-daily" not in host.check_output("ls /etc/systemd/system/timers.target.wants")


def test_users_sessions_wait_for_a_closed_metadata_service(host):
    assert host.file("/etc/systemd/system/systemd-user-sessions.service.requires/gpu-metadata.service").exists


def test_no_instance_shares_an_identity(host):
    assert host.file("/etc/machine-id").content_string == ""
    assert not [name for name in host.file("/etc/ssh").listdir() if name.startswith("ssh_host_")]
    assert not host.file("/var/lib/systemd/random-seed").exists
    assert not host.file("/etc/nvme/hostid").exists
    assert not host.file("/var/lib/dkms/mok.key").exists
    assert not host.file("/var/lib/cloud/instances").exists


def test_no_private_key_or_token_lies_in_it(root):
    guilty = [
        str(path)
        for path in files_below(root, *SECRET_PLACES)
        if PRIVATE_KEY.search(content := path.read_bytes()) or TOKENS.search(content)
    ]

    assert guilty == []


def test_no_history_or_log_of_the_builder_lies_in_it(root):
    below = files_below(root, "root", "home", "opt/gpu-fleet/lib")

    assert [path for path in below if "_history" in path.name] == []
    assert list(files_below(root, "var/log")) == []
    assert not (root / "root/.ssh").exists()
    assert not (root / "usr/sbin/policy-rc.d").exists()


def test_no_account_can_log_in_with_a_password_and_the_one_that_trains_has_no_shell(host):
    rows = [line.split(":") for line in host.file("/etc/shadow").content_string.splitlines()]
    account = host.user("gpu-fleet")

    assert {name for name, password, *_ in rows if not password.startswith(("!", "*"))} == set()
    assert account.shell == "/usr/sbin/nologin"
    assert account.uid < 1000


def test_our_programs_and_units_belong_to_root_and_only_root_changes_them(host):
    files = {path: host.file(path) for path in FILES}

    assert {path: (file.user, file.group, file.mode) for path, file in files.items()} == {
        path: ("root", "root", mode) for path, mode in FILES.items()
    }


def test_the_bill_of_materials_names_every_package(host):
    bill = json.loads(host.file("/usr/share/gpu-fleet/sbom.cdx.json").content_string)
    urls = [component["purl"] for component in bill["components"]]
    named = {
        kind: {unquote(url.split("/")[-1].split("@")[0]) for url in urls if url.startswith(f"pkg:{kind}/")}
        for kind in ("deb", "pypi")
    }
    wheels = host.pip.get_packages(pip_path="/opt/gpu-fleet/venv/bin/pip")

    assert bill["bomFormat"] == "CycloneDX"
    assert named["deb"] == {name for (name,) in installed(host, "Package")}
    assert named["pypi"] == {name.lower().replace("_", "-") for name in wheels}
    assert [url for url in urls if PackageURL.from_string(url).to_string() != url] == []


def test_the_image_finds_itself_in_order_is_small_enough_and_names_the_payload_it_was_made_from(
    inside, root, baked
):
    said = inside("/usr/libexec/gpu-fleet/check-image")
    manifest = json.loads((root / "usr/share/gpu-fleet/manifest.json").read_text())

    assert said.count("ok=true") == 9
    assert "ok=false" not in said
    assert baked.size_bytes / 2**30 <= LARGEST_GIB
    assert manifest["payload_sha256"].startswith(baked.key)
    assert manifest["versions"]["torch"].startswith("2.13")


def test_sshd_takes_keys_only(inside):
    effective = inside(
        "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f /tmp/key && sshd -T -h /tmp/key"
    ).splitlines()

    assert "passwordauthentication no" in effective
    assert "permitrootlogin no" in effective


def test_two_ranks_train_inside(inside):
    result = inside(
        "cd /tmp; ip link set lo up; export OMP_NUM_THREADS=1; python=/opt/gpu-fleet/venv/bin/python; "
        "$python -m gpu_fleet prepare digits digits >&2; "
        "cp /opt/gpu-fleet/examples/digits.toml job.toml; "
        "$python -m gpu_fleet launch job.toml --alone --nproc-per-node 2 "
        "--data.path digits --run.directory run --run.epochs 0.0 --run.steps 6 "
        "--schedule.warmup_steps 2 --metrics.progress false >&2; "
        "cat run/result.json"
    )

    assert json.loads(result)["outcome"] == "finished"
    assert json.loads(result)["step"] == 6

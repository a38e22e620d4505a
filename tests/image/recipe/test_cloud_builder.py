"""Steps as the clouds run them, on Ubuntu 24.04 that is up: what they ask apt for, and whom they trust."""

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib

import pytest

from gpu_fleet_image.recipe import build_requirements, lock, payload
from tests.image.recipe import archives, recipe
from tests.ran import executable, ran

VERSIONS = "versions/ubuntu-24.04.tsv"
DROP_IN = "nvidia-fabricmanager.service.d/10-nvswitch.conf"


@pytest.fixture
def cloud_builder(tmp_path):
    """Runs a step as a cloud would: /etc is made up, and programs only write down how they were called.

    Gives what was said and, in their order, the calls.
    """
    if build_requirements.hindrance() is not None or shutil.which("unshare") is None:
        pytest.skip("a step changes the instance: in mounts of its own, which need root and unshare")
    recipe.lay_down(tmp_path)
    for folder in ("apt.conf.d", "sources.list.d", "preferences.d"):
        (tmp_path / "etc/apt" / folder).mkdir(parents=True)
    (tmp_path / "etc/os-release").write_text('ID=ubuntu\nVERSION_ID="24.04"\n')
    for name in ("passwd", "group"):
        shutil.copy(f"/etc/{name}", tmp_path / "etc")
    shutil.copytree("/etc/alternatives", tmp_path / "etc/alternatives", symlinks=True)

    def run(step, target, answers=None, real=(), after="true", **environment):
        names = ("apt-get", "apt-mark", "systemctl", "systemd-run", "systemd-sysusers")
        programs = {name: "true" for name in names if name not in real} | (answers or {})
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name, body in programs.items():
            executable(tmp_path / "bin" / name, f'#!/bin/bash\necho "{name} $*" >>"$CALLS"\n{body}\n')
        folders = [folder for folder in ("etc", "opt", "usr/local/bin") if (tmp_path / folder).exists()]
        own = "".join(f'mount --bind "$PAYLOAD/{folder}" /{folder}; ' for folder in folders)
        done = ran(
            ["unshare", "--mount", "bash", "-e", "-c", f'{own}bash "$PAYLOAD/steps/{step}.sh"; {after}'],
            env={
                "PATH": f"{tmp_path}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "PAYLOAD": str(tmp_path),
                "FILES": str(tmp_path),
                "TARGET": target,
                "CALLS": str(tmp_path / "calls"),
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(tmp_path / "links"),
                **environment,
            },
        )
        calls = tmp_path / "calls"
        return done, calls.read_text().splitlines() if calls.exists() else []

    return run


def test_a_builder_that_upgrades_itself_is_waited_for_and_services_may_pin_memory(cloud_builder, tmp_path):
    """The network cards' libraries pin it."""
    done, calls = cloud_builder("10-base", "aws")

    assert done.returncode == 0, done.stderr
    assert [call.split(" -o ")[0] for call in calls[:3]] == [
        "systemctl stop apt-daily.timer apt-daily-upgrade.timer",
        "systemd-run --quiet --wait --property=After=apt-daily.service apt-daily-upgrade.service true",
        "apt-get update --quiet",
    ]
    said = (tmp_path / "etc/systemd/system.conf.d/60-gpu-fleet.conf").read_text()
    assert "[Manager]\nDefaultLimitMEMLOCK=infinity\n" in said


@pytest.mark.parametrize(("target", "kernel"), [("aws", "aws"), ("alicloud", "generic")])
def test_the_modules_are_of_the_clouds_own_kernel_and_of_its_version(cloud_builder, tmp_path, target, kernel):
    (tmp_path / VERSIONS).write_text("nvidia-driver\tversion\t580.*\n")
    versions = ("580.95.05-0ubuntu1", "580.65.06-0ubuntu1", "575.1-1")
    answers = {
        "apt-cache": "".join(f"echo 'nvidia-headless | {version} | noble';" for version in versions),
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


@pytest.mark.parametrize("target", ["aws", "alicloud"])
def test_admins_have_docker_users_have_podman_and_only_aws_logs_in_to_ecr(cloud_builder, tmp_path, target):
    answers = {
        "apt-cache": "echo 'nvidia-container-toolkit | 1.19.1-1 | /'",
        # docker's own scripts start it: its settings must lie there before
        "apt-get": 'case "$*" in *docker.io*) test -s /etc/docker/daemon.json ;; esac',
    }

    done, calls = cloud_builder("35-containers", target, answers)

    assert done.returncode == 0, done.stderr
    (installed,) = [call.split() for call in calls if "docker.io" in call]
    assert {"podman", "uidmap", "docker-buildx"} <= set(installed)
    assert any("amazon-ecr-credential-helper" in call for call in calls) is (target == "aws")
    assert calls.index("systemctl disable --quiet docker.service") > 0
    assert "systemctl enable --quiet docker.socket" in calls
    socket = (tmp_path / "etc/systemd/system/docker.socket.d/10-gpu-fleet.conf").read_text()
    assert "[Socket]\nSocketGroup=gpu-fleet-admins\n" in socket
    settings = json.loads((tmp_path / "etc/docker/daemon.json").read_text())
    assert settings["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert settings["features"] == {"cdi": True}
    assert "/run/cdi" in settings["cdi-spec-dirs"]  # where nvidia-cdi.service writes


TOOLS = "/opt/gpu-fleet/tools"
NEW_ENVIRONMENT = f"-m venv --clear {TOOLS}"


@pytest.fixture(scope="module")
def new_environment(tmp_path_factory):
    """What ``python3`` makes of NEW_ENVIRONMENT, with its pip: four seconds of a core."""
    folder = tmp_path_factory.mktemp("opt")
    command = f'mount --bind "$0" /opt; exec /usr/bin/python3 {NEW_ENVIRONMENT}'
    subprocess.run(["unshare", "--mount", "bash", "-e", "-c", command, str(folder)], check=True)
    return folder / "gpu-fleet/tools"


@pytest.fixture
def trainers_environment(cloud_builder, new_environment, tmp_path):
    """An /opt of the test with an environment of the trainer, whose torch is a module of one line; and tools.

    The step's own environment is a copy of one that stands.
    """
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    executable(
        tmp_path / "bin/python3",
        f'#!/bin/bash\n[ "$*" = "{NEW_ENVIRONMENT}" ] || exec /usr/bin/python3 "$@"\n'
        f"exec cp -a {new_environment} {TOOLS}\n",
    )
    environment = tmp_path / "opt/gpu-fleet/venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "torch.py").write_text("here = 'the trainer'\n")
    tools(tmp_path, "jupyter", "jupyter-lab", "uv", "uvx")
    released(tmp_path, "#!/bin/sh\necho conda-forge >&2; echo 2.9.0\n")


def tools(tmp_path, *scripts):
    """A list of one wheel with programs of these names, and the wheel where pip finds it."""
    entries = "".join(f"{name} = tools:main\n" for name in scripts)
    files = {"tools-1.dist-info/entry_points.txt": f"[console_scripts]\n{entries}"}
    name, content = archives.wheel("tools", "1", files | {"tools.py": "def main(): print('runs')\n"})
    (tmp_path / "links").mkdir(exist_ok=True)
    (tmp_path / "links" / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "wheels/tools.txt").write_text(f"tools==1 --hash=sha256:{digest}\n")


def released(tmp_path, program, *, locked=None):
    """A release of micromamba where the builder keeps what it fetched, and the hash that is locked."""
    (tmp_path / "micromamba-linux-64").write_text(program)
    digest = hashlib.sha256((locked or program).encode()).hexdigest()
    rows = (tmp_path / VERSIONS).read_text().splitlines(keepends=True)
    kept = [row for row in rows if not row.startswith("micromamba\tsha256\t")]
    (tmp_path / VERSIONS).write_text("".join([*kept, f"micromamba\tsha256\t{digest}\n"]))


def test_a_release_of_another_hash_than_its_maker_published_ends_the_step(
    cloud_builder, trainers_environment, tmp_path
):
    released(tmp_path, "#!/bin/sh\ncurl evil\n", locked="what its maker published")

    done, _ = cloud_builder("72-tools", "aws")

    assert done.returncode == 1
    assert "micromamba-linux-64: sha256 is" in done.stderr
    assert not (tmp_path / "usr/local/bin/micromamba").exists()


@pytest.mark.parametrize("target", ["aws", "alicloud"])
def test_notebooks_import_what_the_trainer_has_and_users_find_their_tools_and_conda_forge(
    cloud_builder, trainers_environment, tmp_path, target
):
    look = "/opt/gpu-fleet/tools/bin/python -c 'import torch, tools; print(torch.here)'"
    look += "; jupyter-lab; micromamba --version"

    done, calls = cloud_builder("72-tools", target, after=f"PATH=/usr/local/bin:$PATH; {look}")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["the trainer", "runs", "2.9.0"]
    assert "channels: [conda-forge]" in (tmp_path / "etc/conda/condarc").read_text()
    (installed,) = [call.split() for call in calls if call.startswith("apt-get install")]
    assert {"gcc", "libc6-dev", "python3-dev"} <= set(installed)  # Triton compiles against Python.h


def test_a_first_boot_brings_the_tools_from_pypi_and_nothing_from_other_makers(
    cloud_builder, trainers_environment, tmp_path
):
    done, _ = cloud_builder("72-tools", "aws", after="/usr/local/bin/jupyter-lab", BOOTSTRAP="1")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "runs"
    assert not (tmp_path / "usr/local/bin/micromamba").exists()


def test_a_first_boot_without_a_way_to_pypi_says_that_it_leaves_the_tools_out(cloud_builder):
    done, calls = cloud_builder("72-tools", "aws", BOOTSTRAP="1", WHEELS="bucket")

    assert (done.returncode, calls) == (0, [])
    assert "event=tools-left-out reason=no access to PyPI" in done.stdout


def test_a_tool_that_no_wheel_brought_is_named(cloud_builder, trainers_environment, tmp_path):
    tools(tmp_path, "jupyter", "jupyter-lab", "uvx")

    done, _ = cloud_builder("72-tools", "aws")

    assert "error: /opt/gpu-fleet/tools/bin/uv: no wheel brought it" in done.stderr


def test_a_tool_whose_hash_is_another_ends_the_step(cloud_builder, trainers_environment, tmp_path):
    (tmp_path / "wheels/tools.txt").write_text(f"tools==1 --hash=sha256:{'0' * 64}\n")

    done, _ = cloud_builder("72-tools", "aws")

    assert done.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr


@pytest.fixture
def maker(cloud_builder, tmp_path, keys):
    """Real apt with a maker's archive: publishes it, and runs a step that installs from it.

    apt's own folders are made up like /etc; what would be installed is told and left.
    """
    folder = tmp_path / "archive"
    # apt's own account may not look into a test's folder
    (tmp_path / "etc/apt/apt.conf.d/00test").write_text(
        f'APT::Sandbox::User "root"; Dir::State "{tmp_path}/state"; Dir::Cache "{tmp_path}/cache";\n'
        f'Dir::State::status "{tmp_path}/status"; APT::Get::Simulate "true";\n'
    )
    for place in ("state/lists/partial", "cache/archives/partial"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "status").touch()
    (tmp_path / "steps/45-exporters.sh").write_text(
        'set -euo pipefail\n. "$PAYLOAD/lib.sh"\narchive nvidia-cuda\ninstall_locked dcgm\n'
    )

    def run(signer, committed, version="4.*"):
        packages = tomllib.loads((payload.PROJECT / "image/gpu_fleet_image/recipe/packages.toml").read_text())
        names = packages["dcgm"]["ubuntu-24.04"]
        archives.publish(folder, {name: ["4.1-1", "4.10-1", "5.0-1"] for name in names}, signer)
        (tmp_path / "keys/nvidia-cuda.asc").write_text(committed)
        fields = {"uri": f"file:{folder}", "suites": "/", "key_fingerprint": keys[0].fingerprint}
        (tmp_path / VERSIONS).write_text(
            "".join(f"nvidia-cuda\t{field}\t{value}\n" for field, value in fields.items())
            + f"dcgm\tversion\t{version}\n"
        )
        return cloud_builder("45-exporters", "aws", real=("apt-get",))[0]

    return run


def test_the_newest_of_a_locked_series_is_installed_from_an_archive_that_its_maker_signed(maker, keys):
    done = maker(keys[0], keys[0].armour)

    assert done.returncode == 0, done.stderr
    assert "Inst datacenter-gpu-manager-4-core (4.10-1 " in done.stdout


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        ((None, (0,), "4.*"), "error: archive nvidia-cuda: E: The repository"),
        ((1, (0,), "4.*"), "NO_PUBKEY"),
        ((1, (1,), "4.*"), "nvidia-cuda.asc: fingerprint is"),
        ((0, (0, 1), "4.*"), "nvidia-cuda.asc: fingerprint is"),
        ((0, (0,), "3.2-1"), "dcgm.ubuntu-24.04.version = '3.2-1': the archive has"),
    ],
)
def test_an_archive_that_is_not_as_locked_is_one_message(maker, keys, archive, message):
    signer, committed, version = archive
    key = None if signer is None else keys[signer]

    done = maker(key, "".join(keys[fingerprint].armour for fingerprint in committed), version)

    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message in error
    assert "Inst " not in done.stdout


@pytest.mark.parametrize(
    ("serial", "day"),
    [
        (None, "20261121T000000Z"),
        ("20260115", "20261121T000000Z"),
        ("20261122.1", "20261122T235959Z"),
        ("29990101", "now"),
    ],
)
def test_the_distribution_is_of_the_locked_day_or_of_a_newer_base(cloud_builder, tmp_path, serial, day):
    (tmp_path / VERSIONS).write_text("ubuntu-archive\tday\t20261121T000000Z\n")
    (tmp_path / "steps/10-base.sh").write_text(
        f'set -euo pipefail\n. "$PAYLOAD/lib.sh"\nARCHIVE_DAY={tmp_path}/share/day\n'
        'mkdir -p /etc/cloud\n[ ! -f "$PAYLOAD/build.info" ] || cp "$PAYLOAD/build.info" /etc/cloud/\n'
        "log day=$(archive_day)\n"
    )
    if serial is not None:
        (tmp_path / "build.info").write_text(f"build_name: server\nserial: {serial}\n")

    done, _ = cloud_builder("10-base", "aws", {"date": "echo 20300101T000000Z"})

    said = "20300101T000000Z" if day == "now" else day
    assert done.stdout.splitlines() == [f"day={said}"], done.stderr
    assert (tmp_path / "share/day").read_text() == f"{said}\n"


def test_the_switches_of_a_b200_get_their_subnet_manager(cloud_builder, tmp_path):
    (version,) = [artefact.version for artefact in lock.load() if artefact.name == "nvlsm"]
    answers = {
        "dpkg-query": "echo 580.95.05-1",
        "apt-cache": f"echo 'nvlsm | {version} | NVIDIA'",
        "apt-get": "true",
    }

    done, calls = cloud_builder("25-nvswitch", "aws", answers)

    assert done.returncode == 0, done.stderr
    assert any(call.endswith(f" nvlsm={version}") for call in calls)
    conditions = (tmp_path / "etc/systemd/system" / DROP_IN).read_text()
    # either is enough: "|"
    assert "ConditionDirectoryNotEmpty=|/proc/driver/nvidia-nvswitch/devices\n" in conditions
    assert "ConditionPathExistsGlob=|/sys/class/infiniband/mlx5_*\n" in conditions
